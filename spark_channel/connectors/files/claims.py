"""The change of the manifest in each step of a write, by the write protocol of `base.claims`. No I/O.

A claim's epoch is the number of the log entry that took it, so that each run has its own name ("<job>-e<epoch>").
Closing a claim (abort, a dead driver) gives it a new epoch, which no run holds.

An overwrite takes the rows of `commit=task` runs that have not ended out of the directory. Such a run can no
longer end well, and loses its claim in the same entry.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from spark_channel.connectors.base import claims
from spark_channel.connectors.base.claims import Claim, HeldClaim, Identity
from spark_channel.connectors.base.contract import Receipt, WriteContext
from spark_channel.connectors.files.manifest import Dialect, Manifest, claim_key
from spark_channel.connectors.files.parts import DataFile, FileList, Merge, RemovedFiles
from spark_channel.errors import SupersededError, TargetError

__all__ = [
    "AddedFiles",
    "MergedFile",
    "add_task",
    "check_format",
    "fence",
    "merge",
    "publish",
    "put_back",
    "release",
    "take",
]


_NOTHING = "Nothing of this run was added by this step"

_FOLLOWS = 1
"""The generation of a stream's claim whose batches follow each other: an overwrite by another writer removes it."""


@dataclass(frozen=True)
class AddedFiles:
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
) -> tuple[Manifest | None, claims.ClaimDecision]:
    """The manifest with the claim of `context`, None when it does not change.

    `empty`: an overwrite with `commit=task` begins, which is its claim. `until`: how long replaced files are kept.
    `dead`: runs (job, epoch) whose process is known to be gone; they lose their claims.

    Raises:
        TargetError: tasks of an earlier run are committed, and this one does not continue them.
    """
    starts_over = context.overwrite and context.resume is None
    receipts = () if starts_over else manifest.receipts(identity)
    position = context.stream[1] if context.stream else None
    current = manifest.claim(identity)
    if receipts and current is not None and current.owner != context.job and context.resume is None:
        raise TargetError(
            f"{identity.shown} is partially committed: run {current.owner!r} committed {len(receipts)} tasks "
            f"with {sum(receipt.rows for receipt in receipts)} rows to {identity.target} (commit=task) "
            "and did not end. A new run does not know which rows these were: "
            "overwrite the directory, or remove that run's files and use another version in 'txn'. "
            "A transfer with commit=task continues by itself, where its plan was kept"
        )
    decision = claims.take(
        current,
        identity,
        context.job,
        position=position,
        follows=context.follows,
        committed=(len(receipts), sum(receipt.rows for receipt in receipts)),
        resume=context.resume,
        process=process,
        now=now,
    )
    if decision.claim is None:
        return None, decision
    claim = replace(decision.claim, epoch=max(number, decision.claim.epoch))
    changed = manifest if receipts else manifest.without_tasks(identity)
    if current is not None and receipts:
        changed = changed.with_plan(
            identity, manifest.plans.get(claim_key(identity), current.epoch)
        )
    if decision.overtaken is not None:
        changed = changed.with_ended(
            decision.overtaken.owner, decision.overtaken.epoch, f"run {context.job!r} took over"
        )
    for other in manifest.claims.values():
        if (other.owner, other.epoch) in dead and claim_key(other.identity) != claim_key(identity):
            changed = _closed(changed, other, number, "its driver has ended")
    if empty and claim.state != "prepared":
        changed = _emptied(changed, number, until, _overwritten(context.job))
        claim = replace(claim, state="prepared")
    changed = changed.with_claim(claim)
    assert decision.held is not None
    return changed, replace(decision, claim=claim, held=replace(decision.held, epoch=claim.epoch))


def fence(manifest: Manifest, held_claim: HeldClaim) -> Claim:
    """Check that `held_claim` is the claim that the log has.

    Raises:
        SupersededError: it is another run's, was published, or was closed.
    """
    current = manifest.claim(held_claim.identity)
    try:
        claims.check(current, held_claim)
    except SupersededError as error:
        reason = manifest.ended.get(f"{held_claim.owner}/{held_claim.epoch}")
        if reason is None:
            raise
        successor = (
            current.owner if current is not None and current.owner != held_claim.owner else ""
        )
        raise SupersededError(
            f"job {held_claim.owner!r} no longer holds its claim on {held_claim.identity.target}: {reason}. {_NOTHING}",
            owner=held_claim.owner,
            successor=successor,
        ) from error
    assert current is not None
    return current


def add_task(
    manifest: Manifest, held_claim: HeldClaim, receipt: Receipt, added: AddedFiles
) -> Manifest | None:
    """The manifest with a task's files (`commit=task`); None = an attempt of the task has committed.

    Raises:
        SupersededError: as `fence`.
    """
    fence(manifest, held_claim)
    if any(other.task == receipt.task for other in manifest.receipts(held_claim.identity)):
        return None
    return _with(manifest, added).with_task(held_claim, receipt)


def publish(
    manifest: Manifest,
    number: int,
    held_claim: HeldClaim,
    added: AddedFiles,
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
    current = manifest.claim(held_claim.identity)
    if current is not None and current.has_published(held_claim.position):
        return None
    fence(manifest, held_claim)
    published_claim = claims.publish(current, held_claim, at=at, rows=rows, nbytes=nbytes)
    assert published_claim is not None
    if held_claim.follows is not None:
        published_claim = replace(published_claim, generation=_FOLLOWS)
    changed = manifest
    if overwrite:
        changed = _emptied(
            changed, number, until, _overwritten(held_claim.owner), but=held_claim.identity
        )
    elif added.files:
        check_format(changed, added.format, held_claim.identity.target)
    changed = _with(changed, added).with_claim(published_claim)
    return changed.with_job(held_claim.owner, at) if held_claim.identity.kind == "job" else changed


@dataclass(frozen=True)
class MergedFile:
    """A file with the rows of `sources`, in their order. `times`: when these were changed, in nanoseconds."""

    file: DataFile
    sources: tuple[DataFile, ...]
    times: tuple[int, ...]


def merge(
    manifest: Manifest,
    number: int,
    held_claim: HeldClaim,
    merged: Sequence[MergedFile],
    *,
    until: str,
    at: str,
) -> Manifest | None:
    """The manifest in which each of `merged` is in the place of its sources; None = it was published before, or
    another job has taken one of the sources out.

    Raises:
        SupersededError: as `fence`.
    """
    current = manifest.claim(held_claim.identity)
    if current is not None and current.has_published(held_claim.position):
        return None
    fence(manifest, held_claim)
    sources = [source for merge_file in merged for source in merge_file.sources]
    if not set(sources) <= set(manifest.files):
        return None
    gone = {source.path for source in sources}
    changed = replace(
        manifest,
        files=manifest.files.merging(
            {merge_file.sources[0].path: merge_file.file for merge_file in merged}, gone
        ),
        removed=(*manifest.removed, RemovedFiles(number, until, True, tuple(sources))),
        merges={
            **manifest.merges,
            **{
                merge_file.file.path: Merge.from_sources(
                    [
                        (source, time, manifest.merges.get(source.path))
                        for source, time in zip(merge_file.sources, merge_file.times, strict=True)
                    ]
                )
                for merge_file in merged
            },
        },
    )
    published_claim = claims.publish(current, held_claim, at=at, rows=0, nbytes=0)
    assert published_claim is not None
    return changed.with_claim(published_claim).with_job(held_claim.owner, at)


def put_back(manifest: Manifest, number: int, of: int, form: str, *, until: str) -> Manifest:
    """The manifest in which the files that an overwrite replaced in entry `of` are visible again, and no others."""
    changed = _emptied(manifest, number, until, "a command put replaced files back")
    gone = [
        replaced for replaced in manifest.removed if replaced.number == of and not replaced.merged
    ]
    back = tuple(
        file if file.schema in changed.schemas else replace(file, schema=None)
        for replaced in gone
        for file in replaced.files
    )
    return replace(
        changed,
        format=form,
        files=FileList(newest=back),
        removed=tuple(replaced for replaced in changed.removed if replaced not in gone),
    )


def check_format(manifest: Manifest, form: str, target: str) -> None:
    """
    Raises:
        TargetError: files of another format are there.
    """
    if manifest.files and manifest.format != form:
        raise TargetError(
            f"{target} holds {manifest.format} files; {form} files cannot be appended to it"
        )


def release(manifest: Manifest, number: int, held_claim: HeldClaim) -> Manifest | None:
    """The manifest without the run's claim; None when it holds none."""
    current = manifest.claims.get(claim_key(held_claim.identity))
    if current is None or (current.owner, current.epoch) != (held_claim.owner, held_claim.epoch):
        return None
    if current.has_published(held_claim.position):
        return None
    return _closed(manifest, current, number, "it was aborted")


def reset(manifest: Manifest, number: int, identity: Identity) -> Manifest | None:
    """The manifest in which a stream begins again; None when it is not in it."""
    current = manifest.claim(identity)
    if current is None:
        return None
    begun = claims.forget(current)
    changed = manifest.with_claim(replace(begun, epoch=max(number, begun.epoch)))
    return (
        changed.with_ended(current.owner, current.epoch, "it was reset")
        if current.owner
        else changed
    )


def _closed(manifest: Manifest, claim: Claim, number: int, reason: str) -> Manifest:
    """No run holds the claim. The log keeps what its tasks have committed, for a run that continues it."""
    changed = manifest.with_ended(claim.owner, claim.epoch, reason)
    receipts = manifest.receipts(claim.identity)
    if claim.identity.kind == "job" or not (receipts or claim.position is not None):
        return changed.without_claim(claim.identity)
    if receipts:
        key = claim_key(claim.identity)
        changed = changed.with_plan(claim.identity, manifest.plans.get(key, claim.epoch))
        # Without a process: it is not found dead, and closed, again and again.
        return changed.with_claim(replace(claim, epoch=max(number, claim.epoch + 1), process=""))
    return changed.with_claim(
        replace(claim, owner="", epoch=max(number, claim.epoch + 1), state="open")
    )


def _emptied(
    manifest: Manifest, number: int, until: str, reason: str, *, but: Identity | None = None
) -> Manifest:
    """Every visible file is replaced. `commit=task` runs whose rows go with them lose their claims, and so do streams
    whose batches follow each other.
    """
    gone = manifest.files.removed(number, until)
    changed = replace(manifest, files=FileList(), removed=(*manifest.removed, *gone))
    for claim in manifest.claims.values():
        receipts = manifest.receipts(claim.identity)
        if but is not None and claim_key(claim.identity) == claim_key(but):
            continue
        if claim.generation == _FOLLOWS:
            # Its next batch would add rows that are there, or miss some.
            changed = changed.without_claim(claim.identity)
        elif receipts or claim.state == "prepared":
            changed = changed.without_tasks(claim.identity)
            changed = _closed(
                changed,
                replace(claim, state="open"),
                number,
                reason,
            )
    return changed


def _overwritten(job: str) -> str:
    return f"an overwrite by run {job!r} replaced its rows"


def _with(manifest: Manifest, added: AddedFiles) -> Manifest:
    return replace(
        manifest,
        format=added.format if added.files or not manifest.files else manifest.format,
        files=manifest.files.adding(added.files),
        schemas={**manifest.schemas, **added.schemas},
        dialects={**manifest.dialects, **added.dialects},
    )
