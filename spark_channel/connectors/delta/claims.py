"""Claims in a Delta table's log: `txn` actions, which the log keeps through checkpoints.

The app id is `spark-channel/<key of the identity>`, and the version tells epoch, state, and 30 bits of the owner's
digest: it grows with each change of the claim. A stream's last batch has another app id. Who owns a claim by name
is in the history of commits, for messages only: what decides is in the numbers.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from spark_channel.connectors.commit import Claim, Identity

__all__ = ["OURS", "about", "app_id", "batch_app_id", "decoded", "encoded"]

OURS = "sparkChannel"
"""The key of what a commit says of its claim, among the commit's own words."""
_OPEN, _GIVEN_BACK, _PUBLISHED = range(3)


def app_id(identity: Identity) -> str:
    return f"spark-channel/{identity.key}"


def batch_app_id(identity: Identity) -> str:
    return f"spark-channel/{identity.key}/batch"


def _digest(owner: str) -> int:
    return int.from_bytes(hashlib.blake2b(owner.encode(), digest_size=4).digest()) >> 2


def encoded(claim: Claim) -> int:
    state = _PUBLISHED if claim.state == "published" else _OPEN if claim.owner else _GIVEN_BACK
    return claim.epoch << 32 | state << 30 | (_digest(claim.owner) if claim.owner else 0)


def decoded(
    identity: Identity, version: int, position: int | None, job: str, named: Mapping[str, Any] | None
) -> Claim:
    """`job` is the caller: it knows itself again. `named` is what the history says of this version of the claim."""
    epoch, state, digest = version >> 32, version >> 30 & 3, version & (1 << 30) - 1
    owner, at = str((named or {}).get("job", "another run")), (named or {}).get("publishedAt")
    if state == _GIVEN_BACK:
        owner = ""
    elif digest == _digest(job):
        owner = job
    elif owner == job:
        owner = "another run"
    return Claim(
        identity,
        owner,
        epoch,
        "published" if state == _PUBLISHED else "open",
        position=position,
        published_at=at or ("an unknown time" if state == _PUBLISHED or position is not None else None),
    )


def about(claim: Claim, job: str) -> dict[str, Any]:
    """The text of the commit, for people and messages."""
    said = {
        "claim": app_id(claim.identity),
        "version": encoded(claim),
        "job": job,
        "identity": claim.identity.shown,
    }
    return {**said, "publishedAt": claim.published_at} if claim.published_at else said
