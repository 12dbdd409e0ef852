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
_FORGOTTEN = -(2**63)
"""The position of a stream that begins again."""
_VOID = _FORGOTTEN + 2
"""The position of a stream whose rows another writer has replaced."""
HEARTBEAT_SECONDS = 3_600.0
ORPHAN_SECONDS = 86_400.0


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
    def for_write(cls, target: str, context: Write) -> "Identity":
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
    current: Claim | None,
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
    if current is None:
        if resume is not None:
            raise TargetError(
                f"{identity.shown} cannot be continued: its claim on {identity.target} was removed. "
                "Run the job again; if rows of the earlier run are in the target, delete them first"
            )
        return _taken(Claim(identity, owner, process=process, beat_at=now), position, follows)
    if current.has_published(position):
        return ClaimDecision(None, None, current.published_at)
    if current.owner == owner:
        # A stream's batch has one name whoever writes it, also beside a query that was killed: no one process's death
        # ends a claim that several have asked for.
        shared = replace(current, process="") if current.process not in ("", process) else None
        return ClaimDecision(
            shared, HeldClaim(identity, owner, current.epoch, position, follows=follows)
        )
    if resume is not None and resume != current.epoch:
        raise TargetError(
            f"{identity.shown} was continued by another run, {current.owner!r}, while this one was planned: "
            "wait for that run, or run this one again"
        )
    tasks, rows = committed
    if tasks and resume is None:
        raise TargetError(
            f"{identity.shown} is partially committed: run {current.owner!r} committed {tasks} tasks "
            f"with {rows} rows to {identity.target} (commit=task) and did not end. "
            "A new run cannot find out which rows these were: "
            "delete them, and the claim's rows in spark_channel_claims and spark_channel_tasks. "
            "A transfer with commit=task continues by itself, where its plan was kept"
        )
    state: State = current.state if tasks else "open"
    claim = replace(
        current,
        owner=owner,
        epoch=current.epoch + 1,
        state=state,
        process=process,
        beat_at=now,
        doubted_at="",
    )
    return _taken(claim, position, follows, current if current.owner else None)


def _taken(
    claim: Claim, position: int | None, follows: Follows | None, overtaken: Claim | None = None
) -> ClaimDecision:
    held_by_run = HeldClaim(claim.identity, claim.owner, claim.epoch, position, follows=follows)
    return ClaimDecision(claim, held_by_run, overtaken=overtaken)


def check(current: Claim | None, claim: HeldClaim) -> None:
    """The fence: hold `claim` to be the claim that the target has.

    Raises:
        SupersededError: another run took over or has published, or the claim was given back.
    """
    nothing = "Nothing of this run was added by this transaction"
    if current is None:
        raise SupersededError(
            f"{claim.identity.shown} was aborted while run {claim.owner!r} was still writing "
            f"to {claim.identity.target}. {nothing}",
            owner=claim.owner,
        )
    if current.has_published(claim.position):
        by = f" by run {current.owner!r}" if current.owner else ""
        raise SupersededError(
            f"{claim.identity.shown} was published to {claim.identity.target} at {current.published_at}{by}, "
            f"while run {claim.owner!r} was still writing. {nothing}",
            owner=claim.owner,
            successor=current.owner,
        )
    if (current.owner, current.epoch) != (claim.owner, claim.epoch):
        by = f"run {current.owner!r} took over" if current.owner else "the run gave its claim back"
        raise SupersededError(
            f"{claim.identity.shown} on {claim.identity.target} no longer belongs to run {claim.owner!r}: {by}. "
            f"{nothing}; let the later run finish",
            owner=claim.owner,
            successor=current.owner,
        )
    if claim.follows is not None and current.last != claim.follows.position:
        raise SupersededError(
            f"{claim.identity.shown} on {claim.identity.target} is at {_at(current.last)}, and run {claim.owner!r} was "
            f"planned when it was at {_at(claim.follows.position)}: another run has published meanwhile. {nothing}; "
            "run it again",
            owner=claim.owner,
            successor=current.owner,
        )


def _at(position: int | None) -> str:
    return "its beginning" if position is None else f"position {position}"


def forget(current: Claim) -> Claim:
    """The claim of a stream that begins again; no run holds it."""
    return replace(current, owner="", epoch=current.epoch + 1, state="open", position=_FORGOTTEN)


def makes_table(current: Claim) -> Claim:
    """The claim of a stream whose first run makes the table, before it has rows: if the run is killed then, the stream
    begins again, and does not meet the table as another's.
    """
    return current if current.position is not None else replace(current, position=_FORGOTTEN)


def unless_replaced(current: Claim, overwrites: int) -> Claim:
    """The claim; of a stream whose batches follow each other, without its position if the table was overwritten since.

    Its next batch would add rows that are there, or miss some. `overwrites`: how often the table has been.
    """
    if current.identity.kind != "stream" or current.generation in (None, overwrites):
        return current
    return replace(current, position=_VOID, generation=None)


def progress_of(current: Claim | None) -> StreamProgress | None:
    """Return what a stream has published; None = nothing yet."""
    if current is None or current.position in (None, _VOID):
        return None
    by = current.owner or current.process
    return StreamProgress(
        current.last, current.rows, current.nbytes, current.published_at or "", by
    )


def check_generation(current: int, claim: HeldClaim) -> None:
    """The fence against overwrites: hold the table to be the one that the run made ready.

    Raises:
        SupersededError: another job has overwritten it since.
    """
    if claim.generation is not None and current != claim.generation:
        raise SupersededError(
            f"{claim.identity.target} was overwritten by another job while run {claim.owner!r} was writing "
            "to it (commit=task): the rows of its earlier tasks are gone, and this task added none. "
            "Run the job again",
            owner=claim.owner,
        )


def publish(
    current: Claim | None, claim: HeldClaim, *, at: str, rows: int, nbytes: int
) -> Claim | None:
    """The claim once `claim` has published; None = it was published before, so that nothing is to be written.

    Raises:
        SupersededError: as `check`.
    """
    if current is not None and current.has_published(claim.position):
        return None
    check(current, claim)
    assert current is not None
    published = replace(current, published_at=at, rows=rows, nbytes=nbytes)
    if claim.identity.kind == "stream":
        # Until the next batch no run holds the claim: instead of its process, the name of the last one is kept.
        position = current.position if claim.position is None else claim.position
        return replace(published, position=position, owner="", process=claim.owner)
    return replace(published, state="published")


def is_of_another_run(current: Claim | None, claim: HeldClaim) -> bool:
    """Whether a published write is another run's. The runs of a stream's batch have one name."""
    return claim.identity.kind == "txn" and (current is None or current.owner != claim.owner)


def release(
    current: Claim | None, claim: HeldClaim, *, tasks: int = 0, overtaken: Claim | None = None
) -> Claim | None:
    """The claim once `claim` is released; None = it does not change.

    A claim under which tasks committed stays, so that no run writes their rows again unknowingly. `overtaken`: the run
    has taken it over, and has written and removed nothing since; the one before it continues.
    """
    if current is None or current.has_published(claim.position):
        return None
    if (current.owner, current.epoch) != (claim.owner, claim.epoch):
        return None
    if overtaken is not None and current.state in ("open", overtaken.state):
        return overtaken
    if tasks:
        return None
    return replace(current, owner="", state="open")


Liveness = Literal["live", "doubtful", "dead"]
"""`doubtful`: note `now` as the claim's `doubted_at`, unless it has one that is newer than its last beat."""


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
        data = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text or "1970-01-01T00:00:00+00:00")
