"""The states of a claim, and its change in each step of a write. No I/O: targets store the decisions.

Each function is given the claim as the target has it, read under a lock (or as the base of a conditional write), and
returns the claim to write in the same transaction.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol

from spark_channel.errors import SupersededError, TargetError
from spark_channel.processes import describe_owner, owner_is_gone

__all__ = [
    "HEARTBEAT_SECONDS",
    "ORPHAN_SECONDS",
    "Claim",
    "ClaimDecision",
    "Follows",
    "HeldClaim",
    "Identity",
    "Liveness",
    "StreamNote",
    "StreamProgress",
    "check",
    "check_generation",
    "forget",
    "heartbeat_is_due",
    "is_alive",
    "is_of_another_run",
    "own_process",
    "progress_of",
    "publish",
    "release",
    "take",
    "unless_replaced",
]


Kind = Literal["txn", "stream", "job", "table", "versions"]


class Write(Protocol):
    """The identity of a write: `connectors.WriteContext`."""

    @property
    def job(self) -> str: ...
    @property
    def txn(self) -> tuple[str, int] | None: ...
    @property
    def stream(self) -> tuple[str, int | None] | None: ...


@dataclass(frozen=True, slots=True)
class Identity:
    """A write to `target`: a transaction pair, a streaming query, or else the job that carries it out.

    `version` is the pair's; a stream has one identity for all its batches. "table" is the target itself: the epoch of
    its claim counts how often it was overwritten. "versions" are published versions of a pair that share one record.
    """

    target: str
    kind: Kind
    name: str
    version: int | None = None

    @classmethod
    def of(cls, target: str, context: Write) -> "Identity":
        if context.stream is not None:
            return cls(target, "stream", context.stream[0])
        if context.txn is not None:
            return cls(target, "txn", *context.txn)
        return cls(target, "job", context.job)

    @property
    def key(self) -> str:
        """64 letters: one column that every database can index, whatever the names hold."""
        text = json.dumps([self.target, self.kind, self.name, self.version], ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def shown(self) -> str:
        """For messages."""
        if self.kind == "txn":
            return f"transaction id '{self.name}:{self.version}'"
        return f"stream {self.name!r}" if self.kind == "stream" else f"job {self.name!r}"


State = Literal["open", "prepared", "published"]
_FORGOTTEN = -(2**63)
"""The position of a stream that begins again."""
_VOID = _FORGOTTEN + 2
"""The position of a stream whose rows another writer has replaced."""


@dataclass(frozen=True, slots=True)
class Follows:
    """The batch that a stream must have published last, so that another one may be published; None = none."""

    position: int | None


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """The last batch that a stream has published, its size, and when. `position` None: it was forgotten since.

    `by`: the run that did so, or that is to publish the next one, as far as the target keeps its name.
    """

    position: int | None
    rows: int
    nbytes: int
    published_at: str
    by: str = ""


@dataclass(frozen=True, slots=True)
class StreamNote:
    """What a run noted of a stream beside its progress, and when."""

    text: str
    at: str


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim of one identity, as the target stores it.

    `owner` is the run that writes under it, "" when the last one gave it back; `epoch` grows with each run that takes
    it over. `prepared`: a `commit=task` run has run its preSql, and emptied or created its table. `position` is the
    last published batch of a stream, which is never `published` as a whole. `published_at` is the time of the last
    publication, `rows` and `nbytes` its size. `process`, `beat_at` and `doubted_at`: see `liveness`; the
    `process` of a stream that no run holds is the name of the run that published last. `generation`: see
    `HeldClaim`; of a stream whose batches follow each other, as its last batch has left it.
    """

    identity: Identity
    owner: str
    epoch: int = 1
    state: State = "open"
    position: int | None = None
    published_at: str | None = None
    rows: int = 0
    nbytes: int = 0
    process: str = ""
    beat_at: str = ""
    doubted_at: str = ""
    generation: int | None = None

    @property
    def last(self) -> int | None:
        """The last published batch of a stream that was not forgotten since, and whose rows were not replaced."""
        return None if self.position in (_FORGOTTEN, _VOID) else self.position

    def has_published(self, position: int | None) -> bool:
        """Whether the identity, or the stream's batch `position`, was published."""
        if self.identity.kind == "stream":
            return position is not None and self.last is not None and self.last >= position
        return self.state == "published"


@dataclass(frozen=True, slots=True)
class HeldClaim:
    """A claim as one run holds it: plain data, in the plan, which travels to the tasks.

    `position` None: the stream's last batch is written once more, with the rows that belong to it by now. `generation`
    is how often the table had been overwritten when the run made it ready (`commit=task`): its tasks are fenced by
    that, too. `follows`: see `Follows`.
    """

    identity: Identity
    owner: str
    epoch: int
    position: int | None = None
    generation: int | None = None
    follows: Follows | None = None


@dataclass(frozen=True, slots=True)
class ClaimDecision:
    """The decision of `take`.

    `claim` is to be written, None when it does not change. `held` is None when the write was published before.
    `overtaken` is the claim of another run as it was until it was taken over.
    """

    claim: Claim | None
    held: HeldClaim | None
    published_at: str | None = None
    overtaken: Claim | None = None


def take(
    found: Claim | None,
    identity: Identity,
    owner: str,
    *,
    position: int | None = None,
    follows: Follows | None = None,
    committed: tuple[int, int] = (0, 0),
    resume: int | None = None,
    process: str = "",
    now: str = "",
) -> ClaimDecision:
    """Claim `identity` for the run `owner`. The later run wins; a run that asks again keeps what it has.

    `committed` are the tasks and rows that runs before this one committed under the claim (`commit=task`). Only a run
    that continues them may take it: `resume` is the epoch whose plan that run follows.

    Raises:
        TargetError: another run has committed tasks, and this one does not continue them.
    """
    if found is None:
        if resume is not None:
            raise TargetError(
                f"{identity.shown} cannot be continued: its claim on {identity.target} was removed. "
                "Run the job again; if rows of the earlier run are in the target, delete them first"
            )
        return _taken(Claim(identity, owner, process=process, beat_at=now), position, follows)
    if found.has_published(position):
        return ClaimDecision(None, None, found.published_at)
    if found.owner == owner:
        # A stream's batch has one name whoever writes it, also beside a query that was killed: no one process's death
        # ends a claim that several have asked for.
        shared = replace(found, process="") if found.process not in ("", process) else None
        return ClaimDecision(
            shared, HeldClaim(identity, owner, found.epoch, position, follows=follows)
        )
    if resume is not None and resume != found.epoch:
        raise TargetError(
            f"{identity.shown} was continued by another run, {found.owner!r}, while this one was planned: "
            "wait for that run, or run this one again"
        )
    tasks, rows = committed
    if tasks and resume is None:
        raise TargetError(
            f"{identity.shown} is partially committed: run {found.owner!r} committed {tasks} tasks "
            f"with {rows} rows to {identity.target} (commit=task) and did not end. "
            "A new run cannot find out which rows these were: "
            "delete them, and the claim's rows in spark_channel_claims and spark_channel_tasks. "
            "A transfer with commit=task continues by itself, where its plan was kept"
        )
    state: State = found.state if tasks else "open"
    claim = replace(
        found,
        owner=owner,
        epoch=found.epoch + 1,
        state=state,
        process=process,
        beat_at=now,
        doubted_at="",
    )
    return _taken(claim, position, follows, found if found.owner else None)


def _taken(
    claim: Claim, position: int | None, follows: Follows | None, overtaken: Claim | None = None
) -> ClaimDecision:
    held = HeldClaim(claim.identity, claim.owner, claim.epoch, position, follows=follows)
    return ClaimDecision(claim, held, overtaken=overtaken)


def check(found: Claim | None, held: HeldClaim) -> None:
    """The fence: hold `held` to be the claim that the target has.

    Raises:
        SupersededError: another run took over or has published, or the claim was given back.
    """
    nothing = "Nothing of this run was added by this transaction"
    if found is None:
        raise SupersededError(
            f"{held.identity.shown} was aborted while run {held.owner!r} was still writing "
            f"to {held.identity.target}. {nothing}",
            owner=held.owner,
        )
    if found.has_published(held.position):
        by = f" by run {found.owner!r}" if found.owner else ""
        raise SupersededError(
            f"{held.identity.shown} was published to {held.identity.target} at {found.published_at}{by}, "
            f"while run {held.owner!r} was still writing. {nothing}",
            owner=held.owner,
            successor=found.owner,
        )
    if (found.owner, found.epoch) != (held.owner, held.epoch):
        by = f"run {found.owner!r} took over" if found.owner else "the run gave its claim back"
        raise SupersededError(
            f"{held.identity.shown} on {held.identity.target} no longer belongs to run {held.owner!r}: {by}. "
            f"{nothing}; let the later run finish",
            owner=held.owner,
            successor=found.owner,
        )
    if held.follows is not None and found.last != held.follows.position:
        raise SupersededError(
            f"{held.identity.shown} on {held.identity.target} is at {_at(found.last)}, and run {held.owner!r} was "
            f"planned when it was at {_at(held.follows.position)}: another run has published meanwhile. {nothing}; "
            "run it again",
            owner=held.owner,
            successor=found.owner,
        )


def _at(position: int | None) -> str:
    return "its beginning" if position is None else f"position {position}"


def forget(found: Claim) -> Claim:
    """The claim of a stream that begins again; no run holds it."""
    return replace(found, owner="", epoch=found.epoch + 1, state="open", position=_FORGOTTEN)


def unless_replaced(found: Claim, overwrites: int) -> Claim:
    """The claim; of a stream whose batches follow each other, without its position if the table was overwritten since.

    Its next batch would add rows that are there, or miss some. `overwrites`: how often the table has been.
    """
    if found.identity.kind != "stream" or found.generation in (None, overwrites):
        return found
    return replace(found, position=_VOID, generation=None)


def progress_of(found: Claim | None) -> StreamProgress | None:
    """Return what a stream has published; None = nothing yet."""
    if found is None or found.position in (None, _VOID):
        return None
    by = found.owner or found.process
    return StreamProgress(found.last, found.rows, found.nbytes, found.published_at or "", by)


def check_generation(current: int, held: HeldClaim) -> None:
    """The fence against overwrites: hold the table to be the one that the run made ready.

    Raises:
        SupersededError: another job has overwritten it since.
    """
    if held.generation is not None and current != held.generation:
        raise SupersededError(
            f"{held.identity.target} was overwritten by another job while run {held.owner!r} was writing "
            "to it (commit=task): the rows of its earlier tasks are gone, and this task added none. "
            "Run the job again",
            owner=held.owner,
        )


def publish(
    found: Claim | None, held: HeldClaim, *, at: str, rows: int, nbytes: int
) -> Claim | None:
    """The claim once `held` has published; None = it was published before, so that nothing is to be written.

    Raises:
        SupersededError: as `check`.
    """
    if found is not None and found.has_published(held.position):
        return None
    check(found, held)
    assert found is not None
    done = replace(found, published_at=at, rows=rows, nbytes=nbytes)
    if held.identity.kind == "stream":
        # Until the next batch no run holds the claim: instead of its process, the name of the last one is kept.
        position = found.position if held.position is None else held.position
        return replace(done, position=position, owner="", process=held.owner)
    return replace(done, state="published")


def is_of_another_run(found: Claim | None, held: HeldClaim) -> bool:
    """Whether a published write is another run's. The runs of a stream's batch have one name."""
    return held.identity.kind == "txn" and (found is None or found.owner != held.owner)


def release(
    found: Claim | None, held: HeldClaim, *, tasks: int = 0, overtaken: Claim | None = None
) -> Claim | None:
    """The claim once `held` is released; None = it does not change.

    A claim under which tasks committed stays, so that no run writes their rows again unknowingly. `overtaken`: the run
    has taken it over, and has written and removed nothing since; the one before it continues.
    """
    if found is None or found.has_published(held.position):
        return None
    if (found.owner, found.epoch) != (held.owner, held.epoch):
        return None
    if overtaken is not None and found.state in ("open", overtaken.state):
        return overtaken
    if tasks:
        return None
    return replace(found, owner="", state="open")


Liveness = Literal["live", "doubtful", "dead"]
"""`doubtful`: note `now` as the claim's `doubted_at`, unless it has one that is newer than its last beat."""

HEARTBEAT_SECONDS = 3_600.0
ORPHAN_SECONDS = 86_400.0


def own_process() -> str:
    """Identifies this process, for `is_alive` on this machine or another."""
    return json.dumps(describe_owner(), separators=(",", ":"))


def heartbeat_is_due(claim: Claim, now: str) -> bool:
    return _time(now) - _time(claim.beat_at) >= timedelta(seconds=HEARTBEAT_SECONDS)


def is_alive(
    claim: Claim, now: str, *, is_gone: Callable[[dict[str, Any]], bool] = owner_is_gone
) -> Liveness:
    """Return whether the run that holds `claim` is alive. The staging of a live run is kept.

    On the machine of the run its process is looked up. For a run on another machine only its beats are known, one per
    hour while its tasks are open. A beat that is a day old raises a doubt, and the run counts as dead when the doubt is
    a day old, too, without a new beat. A clock that jumps makes a beat look old, but no single jump ends a doubt.

    Args:
        now: ISO text in UTC, as the claim's times.
    """
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
