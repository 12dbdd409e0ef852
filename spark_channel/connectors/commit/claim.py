"""The states of a claim, and its change in each step of a write. No I/O: targets store the decisions.

Each function is given the claim as the target has it, read under a lock (or as the base of a conditional write), and
returns the claim to write in the same transaction.
"""

from dataclasses import dataclass, replace
from typing import Literal

from spark_channel.connectors.commit.identity import Identity
from spark_channel.errors import SupersededError, TargetError

__all__ = ["Claim", "Held", "Taken", "check", "check_generation", "publish", "release", "take"]

State = Literal["open", "prepared", "published"]


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim of one identity, as the target stores it.

    `owner` is the run that writes under it, "" when the last one gave it back; `epoch` grows with each run that takes
    it over. `prepared`: a `commit=task` run has run its preSql, and emptied or created its table. `position` is the
    last published batch of a stream, which is never `published` as a whole. `published_at` is the time of the last
    publication, `rows` and `nbytes` its size. `process`, `beat_at` and `doubted_at`: see `liveness`. `generation`: see
    `Held`.
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

    def has_published(self, position: int | None) -> bool:
        """Whether the identity, or the stream's batch `position`, was published."""
        if self.identity.kind == "stream":
            return position is not None and self.position is not None and self.position >= position
        return self.state == "published"


@dataclass(frozen=True, slots=True)
class Held:
    """A claim as one run holds it: plain data, in the plan, which travels to the tasks.

    `generation` is how often the table had been overwritten when the run made it ready (`commit=task`): its tasks are
    fenced by that, too.
    """

    identity: Identity
    owner: str
    epoch: int
    position: int | None = None
    generation: int | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """The decision of `take`.

    `claim` is to be written, None when it does not change. `held` is None when the write was published before.
    `overtaken` is the claim of another run as it was until it was taken over.
    """

    claim: Claim | None
    held: Held | None
    published_at: str | None = None
    overtaken: Claim | None = None


def take(
    found: Claim | None,
    identity: Identity,
    owner: str,
    *,
    position: int | None = None,
    committed: tuple[int, int] = (0, 0),
    resume: int | None = None,
    process: str = "",
    now: str = "",
) -> Taken:
    """Claim `identity` for the run `owner`. The later run wins; a run that asks again keeps what it has.

    `committed` are the tasks and rows that runs before this one committed under the claim (`commit=task`). Only a run
    that continues them may take it: `resume` is the epoch whose plan that run follows.

    Raises:
        TargetError: another run has committed tasks, and this one does not continue them.
    """
    if found is None:
        if resume is not None:
            raise TargetError(
                f"{identity.shown} was to be continued, and its claim on {identity.target} is not there any more: "
                "run the job again"
            )
        return _taken(Claim(identity, owner, process=process, beat_at=now), position)
    if found.has_published(position):
        return Taken(None, None, found.published_at)
    if found.owner == owner:
        # A stream's batch has one name whoever writes it, also beside a query that was killed: no one process's death
        # ends a claim that several have asked for.
        shared = replace(found, process="") if found.process not in ("", process) else None
        return Taken(shared, Held(identity, owner, found.epoch, position))
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
            "A new run cannot tell which rows these were: "
            "delete them, and the claim's rows in spark_channel_claims and spark_channel_tasks. "
            "A transfer with commit=task continues by itself, where its plan was kept"
        )
    state: State = found.state if tasks else "open"
    claim = replace(
        found, owner=owner, epoch=found.epoch + 1, state=state, process=process, beat_at=now, doubted_at=""
    )
    return _taken(claim, position, found if found.owner else None)


def _taken(claim: Claim, position: int | None, overtaken: Claim | None = None) -> Taken:
    return Taken(claim, Held(claim.identity, claim.owner, claim.epoch, position), overtaken=overtaken)


def check(found: Claim | None, held: Held) -> None:
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
            f"{held.identity.shown} on {held.identity.target} does not belong to run {held.owner!r} any more: {by}. "
            f"{nothing}; let the later run finish",
            owner=held.owner,
            successor=found.owner,
        )


def check_generation(current: int, held: Held) -> None:
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


def publish(found: Claim | None, held: Held, *, at: str, rows: int, nbytes: int) -> Claim | None:
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
        return replace(done, position=held.position, owner="")  # until the next batch no run holds the claim
    return replace(done, state="published")


def release(
    found: Claim | None, held: Held, *, tasks: int = 0, overtaken: Claim | None = None
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
