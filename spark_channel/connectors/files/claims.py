"""The change of the manifest in each step of a write, by the write protocol of `connectors.commit`. No I/O.

A claim's epoch is the number of the log entry that took it, so that each run has its own name ("<job>-e<epoch>").
Closing a claim (abort, a dead driver) gives it a new epoch, which no run holds.

An overwrite takes the rows of `commit=task` runs that have not ended out of the directory. Such a run cannot
end well any more, and loses its claim in the same entry.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from spark_channel.connectors import commit
from spark_channel.connectors.commit import Claim, Held, Identity
from spark_channel.connectors.contracts import Receipt, WriteContext
from spark_channel.connectors.files.manifest import DataFile, Dialect, Manifest, Replaced, claim_key
from spark_channel.errors import SupersededError, TargetError

__all__ = ["Added", "add_task", "check_format", "fence", "not_listed", "publish", "release", "take"]

_NOTHING = "Nothing of this run was added by this step"


@dataclass(frozen=True)
class Added:
    """Files that become visible, and how to read them. `key` names schema and dialect in the manifest."""

    format: str
    files: tuple[DataFile, ...]
    schemas: Mapping[str, pa.Schema]
    dialects: Mapping[str, Dialect]


def take(
    manifest: Manifest,
    number: int,
    context: WriteContext,
    identity: Identity,
    *,
    empty: bool,
    until: str,
    process: str,
    now: str,
    dead: Collection[tuple[str, int]] = (),
) -> tuple[Manifest | None, commit.Taken]:
    """The manifest with the claim of `context`, None when it does not change.

    `empty`: an overwrite with `commit=task` begins, which is its claim. `until`: how long replaced files are kept.
    `dead`: runs (job, epoch) whose process is known to be gone; they lose their claims.

    Raises:
        TargetError: tasks of an earlier run are committed, and this one does not continue them.
    """
    starts_over = context.overwrite and context.resume is None
    receipts = () if starts_over else manifest.receipts(identity)
    position = context.stream[1] if context.stream else None
    found = manifest.claim(identity)
    if receipts and found is not None and found.owner != context.job and context.resume is None:
        raise TargetError(
            f"{identity.shown} is partially committed: run {found.owner!r} committed {len(receipts)} tasks "
            f"with {sum(each.rows for each in receipts)} rows to {identity.target} (commit=task) "
            "and did not end. A new run cannot tell which rows these were: "
            "overwrite the directory, or remove that run's files and use another txnVersion. "
            "A transfer with commit=task continues by itself, where its plan was kept"
        )
    taken = commit.take(
        found,
        identity,
        context.job,
        position=position,
        committed=(len(receipts), sum(each.rows for each in receipts)),
        resume=context.resume,
        process=process,
        now=now,
    )
    if taken.claim is None:
        return None, taken
    claim = replace(taken.claim, epoch=max(number, taken.claim.epoch))
    made = manifest if receipts else manifest.without_tasks(identity)
    if found is not None and receipts:
        made = made.with_plan(identity, manifest.plans.get(claim_key(identity), found.epoch))
    if taken.overtaken is not None:
        made = made.with_ended(taken.overtaken.owner, taken.overtaken.epoch, f"run {context.job!r} took over")
    for other in manifest.claims.values():
        if (other.owner, other.epoch) in dead and claim_key(other.identity) != claim_key(identity):
            made = _closed(made, other, number, "its driver has ended")
    if empty and claim.state != "prepared":
        made = _emptied(made, number, until, by=context.job)
        claim = replace(claim, state="prepared")
    made = made.with_claim(claim)
    return made, replace(taken, claim=claim, held=Held(identity, context.job, claim.epoch, position))


def fence(manifest: Manifest, held: Held) -> Claim:
    """Hold `held` to be the claim that the log has.

    Raises:
        SupersededError: it is another run's, was published, or was closed.
    """
    found = manifest.claim(held.identity)
    try:
        commit.check(found, held)
    except SupersededError as error:
        why = manifest.ended.get(f"{held.owner}/{held.epoch}")
        if why is None:
            raise
        successor = found.owner if found is not None and found.owner != held.owner else ""
        raise SupersededError(
            f"job {held.owner!r} does not hold its claim on {held.identity.target} any more: {why}. {_NOTHING}",
            owner=held.owner,
            successor=successor,
        ) from error
    assert found is not None
    return found


def add_task(manifest: Manifest, held: Held, receipt: Receipt, added: Added) -> Manifest | None:
    """The manifest with a task's files (`commit=task`); None = an attempt of the task has committed.

    Raises:
        SupersededError: as `fence`.
    """
    fence(manifest, held)
    if any(each.task == receipt.task for each in manifest.receipts(held.identity)):
        return None
    return _with(manifest, added).with_task(held, receipt)


def publish(
    manifest: Manifest,
    number: int,
    held: Held,
    added: Added,
    *,
    overwrite: bool,
    until: str,
    at: str,
    rows: int,
    nbytes: int,
) -> Manifest | None:
    """The manifest in which the write is published; None = it was before, by this run or another.

    Raises:
        SupersededError: as `fence`. TargetError: the directory has got files of another format.
    """
    found = manifest.claim(held.identity)
    if found is not None and found.has_published(held.position):
        return None
    fence(manifest, held)
    done = commit.publish(found, held, at=at, rows=rows, nbytes=nbytes)
    assert done is not None
    made = manifest
    if overwrite:
        made = _emptied(made, number, until, by=held.owner, but=held.identity)
    elif added.files:
        check_format(made, added.format, held.identity.target)
    made = _with(made, added).with_claim(done)
    return made.with_job(held.owner, at) if held.identity.kind == "job" else made


def check_format(manifest: Manifest, form: str, shown: str) -> None:
    """
    Raises:
        TargetError: files of another format are there.
    """
    if manifest.files and manifest.format != form:
        raise TargetError(f"{shown} holds {manifest.format} files; {form} files cannot be appended to it")


def release(manifest: Manifest, number: int, held: Held) -> Manifest | None:
    """The manifest without the run's claim; None when it holds none."""
    found = manifest.claims.get(claim_key(held.identity))
    if found is None or (found.owner, found.epoch) != (held.owner, held.epoch):
        return None
    if found.has_published(held.position):
        return None
    return _closed(manifest, found, number, "it was aborted")


def _closed(manifest: Manifest, claim: Claim, number: int, why: str) -> Manifest:
    """No run holds the claim any more. What its tasks have committed is remembered for a run that continues it."""
    made = manifest.with_ended(claim.owner, claim.epoch, why)
    receipts = manifest.receipts(claim.identity)
    if claim.identity.kind == "job" or not (receipts or claim.position is not None):
        return made.without_claim(claim.identity)
    if receipts:
        key = claim_key(claim.identity)
        made = made.with_plan(claim.identity, manifest.plans.get(key, claim.epoch))
        # Without a process: it is not found dead, and closed, again and again.
        return made.with_claim(replace(claim, epoch=max(number, claim.epoch + 1), process=""))
    return made.with_claim(replace(claim, owner="", epoch=max(number, claim.epoch + 1), state="open"))


def _emptied(
    manifest: Manifest, number: int, until: str, *, by: str, but: Identity | None = None
) -> Manifest:
    """Every visible file is replaced, and `commit=task` runs whose rows go with them lose their claims."""
    made = replace(
        manifest,
        files=(),
        removed=(*manifest.removed, *(Replaced(file, number, until) for file in manifest.files)),
    )
    for claim in manifest.claims.values():
        receipts = manifest.receipts(claim.identity)
        if (but is None or claim_key(claim.identity) != claim_key(but)) and (
            receipts or claim.state == "prepared"
        ):
            made = made.without_tasks(claim.identity)
            made = _closed(
                made, replace(claim, state="open"), number, f"an overwrite by run {by!r} replaced its rows"
            )
    return made


def _with(manifest: Manifest, added: Added) -> Manifest:
    return replace(
        manifest,
        format=added.format if added.files or not manifest.files else manifest.format,
        files=(*manifest.files, *added.files),
        schemas={**manifest.schemas, **added.schemas},
        dialects={**manifest.dialects, **added.dialects},
    )


def not_listed(manifest: Manifest, files: Sequence[str]) -> list[str]:
    """Those of `files` that are not visible."""
    listed = {file.path for file in manifest.files}
    return [path for path in files if path not in listed]
