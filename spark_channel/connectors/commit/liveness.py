"""Whether the run that holds a claim is alive: the staging of a live run is kept, whatever the clock says.

On the machine of the run its process is looked up. Of a run on another machine only its beats are known, one an hour
while its tasks are open. A beat that is a day old raises a doubt, and the doubt must itself grow a day old without a
new beat before the run counts as dead: a clock that jumps makes a beat look old, and no single jump ends a doubt.
"""

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Literal

from spark_channel.connectors.commit.claim import Claim
from spark_channel.connectors.commit.owner import describe_owner, owner_is_gone

__all__ = ["BEAT_SECONDS", "ORPHAN_SECONDS", "Verdict", "beat_is_due", "judge", "own_process"]

Verdict = Literal["live", "doubtful", "dead"]
"""`doubtful`: note `now` as the claim's `doubted_at`, unless it has one that is newer than its last beat."""

BEAT_SECONDS = 3_600.0
ORPHAN_SECONDS = 86_400.0


def own_process() -> str:
    """Identifies this process, for `judge` on this machine or another."""
    return json.dumps(describe_owner(), separators=(",", ":"))


def beat_is_due(claim: Claim, now: str) -> bool:
    return _time(now) - _time(claim.beat_at) >= timedelta(seconds=BEAT_SECONDS)


def judge(claim: Claim, now: str, *, is_gone: Callable[[dict[str, Any]], bool] = owner_is_gone) -> Verdict:
    """`now` and the claim's times are ISO texts in UTC."""
    if not claim.owner or claim.state == "published":
        return "dead"
    process = _process(claim.process)
    if is_gone(process):
        return "dead"
    if process.get("machine") == describe_owner()["machine"]:
        return "live"
    day = timedelta(seconds=ORPHAN_SECONDS)
    if _time(now) - _time(claim.beat_at) < day:
        return "live"
    if claim.doubted_at > claim.beat_at and _time(now) - _time(claim.doubted_at) >= day:
        return "dead"
    return "doubtful"


def _process(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text or "1970-01-01T00:00:00+00:00")
