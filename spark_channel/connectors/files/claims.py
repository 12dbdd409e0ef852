"""The change of the manifest in each step of a write, by the write protocol of `connectors.commit`. No I/O.

A claim's epoch is the number of the log entry that took it, so that each run has its own name ("<job>-e<epoch>").
Closing a claim (abort, a dead driver) gives it a new epoch, which no run holds.

An overwrite takes the rows of `commit=task` runs that have not ended out of the directory. Such a run can no
longer end well, and loses its claim in the same entry.
"""

import json
import posixpath
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs as pafs

from spark_channel.clock import utc_now
from spark_channel.connectors.base import claims
from spark_channel.connectors.base.claims import Claim, HeldClaim, Identity, is_alive
from spark_channel.connectors.base.contract import Receipt, WriteContext
from spark_channel.connectors.files.filesystem import LOG, PREFIXES
from spark_channel.connectors.files.log import Dialect, Manifest, claim_key
from spark_channel.connectors.files.parts import DataFile, FileList, Merge, RemovedFiles
from spark_channel.connectors.files.store import Store
from spark_channel.errors import SupersededError, TargetError

__all__ = [
    "ALL_FILES",
    "AddedFiles",
    "JobFolder",
    "MergedFile",
    "OwnedFileNames",
    "add_task",
    "check_format",
    "dead_runs",
    "fence",
    "file_name",
    "is_ours",
    "merge",
    "new_attempt",
    "publish",
    "put_back",
    "release",
    "run_name",
    "run_of",
    "staging_folders",
    "take",
]


_NOTHING = "Nothing of this run was added by this step"


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


def fence(manifest: Manifest, claim: HeldClaim) -> Claim:
    """Check that `claim` is the claim that the log has.

    Raises:
        SupersededError: it is another run's, was published, or was closed.
    """
    current = manifest.claim(claim.identity)
    try:
        claims.check(current, claim)
    except SupersededError as error:
        reason = manifest.ended.get(f"{claim.owner}/{claim.epoch}")
        if reason is None:
            raise
        successor = current.owner if current is not None and current.owner != claim.owner else ""
        raise SupersededError(
            f"job {claim.owner!r} no longer holds its claim on {claim.identity.target}: {reason}. {_NOTHING}",
            owner=claim.owner,
            successor=successor,
        ) from error
    assert current is not None
    return current


_FOLLOWS = 1
"""The generation of a stream's claim whose batches follow each other: an overwrite by another writer removes it."""


def add_task(
    manifest: Manifest, claim: HeldClaim, receipt: Receipt, added: AddedFiles
) -> Manifest | None:
    """The manifest with a task's files (`commit=task`); None = an attempt of the task has committed.

    Raises:
        SupersededError: as `fence`.
    """
    fence(manifest, claim)
    if any(earlier.task == receipt.task for earlier in manifest.receipts(claim.identity)):
        return None
    return _with(manifest, added).with_task(claim, receipt)


def publish(
    manifest: Manifest,
    number: int,
    claim: HeldClaim,
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
    current = manifest.claim(claim.identity)
    if current is not None and current.has_published(claim.position):
        return None
    fence(manifest, claim)
    published = claims.publish(current, claim, at=at, rows=rows, nbytes=nbytes)
    assert published is not None
    if claim.follows is not None:
        published = replace(published, generation=_FOLLOWS)
    changed = manifest
    if overwrite:
        changed = _emptied(changed, number, until, _overwritten(claim.owner), but=claim.identity)
    elif added.files:
        check_format(changed, added.format, claim.identity.target)
    changed = _with(changed, added).with_claim(published)
    return changed.with_job(claim.owner, at) if claim.identity.kind == "job" else changed


@dataclass(frozen=True)
class MergedFile:
    """A file with the rows of `sources`, in their order. `times`: when these were changed, in nanoseconds."""

    file: DataFile
    sources: tuple[DataFile, ...]
    times: tuple[int, ...]


def merge(
    manifest: Manifest,
    number: int,
    claim: HeldClaim,
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
    current = manifest.claim(claim.identity)
    if current is not None and current.has_published(claim.position):
        return None
    fence(manifest, claim)
    sources = [source for merged_file in merged for source in merged_file.sources]
    if not set(sources) <= set(manifest.files):
        return None
    gone = {source.path for source in sources}
    changed = replace(
        manifest,
        files=manifest.files.merging(
            {merged_file.sources[0].path: merged_file.file for merged_file in merged}, gone
        ),
        removed=(*manifest.removed, RemovedFiles(number, until, True, tuple(sources))),
        merges={
            **manifest.merges,
            **{
                merged_file.file.path: Merge.from_sources(
                    [
                        (source, time, manifest.merges.get(source.path))
                        for source, time in zip(merged_file.sources, merged_file.times, strict=True)
                    ]
                )
                for merged_file in merged
            },
        },
    )
    published = claims.publish(current, claim, at=at, rows=0, nbytes=0)
    assert published is not None
    return changed.with_claim(published).with_job(claim.owner, at)


def put_back(manifest: Manifest, number: int, of: int, form: str, *, until: str) -> Manifest:
    """The manifest in which the files that an overwrite replaced in entry `of` are visible again, and no others."""
    changed = _emptied(manifest, number, until, "a command put replaced files back")
    gone = [removed for removed in manifest.removed if removed.number == of and not removed.merged]
    back = tuple(
        file if file.schema in changed.schemas else replace(file, schema=None)
        for removed in gone
        for file in removed.files
    )
    return replace(
        changed,
        format=form,
        files=FileList(newest=back),
        removed=tuple(removed for removed in changed.removed if removed not in gone),
    )


def check_format(manifest: Manifest, form: str, label: str) -> None:
    """
    Raises:
        TargetError: files of another format are there.
    """
    if manifest.files and manifest.format != form:
        raise TargetError(
            f"{label} holds {manifest.format} files; {form} files cannot be appended to it"
        )


def release(manifest: Manifest, number: int, claim: HeldClaim) -> Manifest | None:
    """The manifest without the run's claim; None when it holds none."""
    current = manifest.claims.get(claim_key(claim.identity))
    if current is None or (current.owner, current.epoch) != (claim.owner, claim.epoch):
        return None
    if current.has_published(claim.position):
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
    files = tuple(manifest.files)
    gone = (RemovedFiles(number, until, False, files),) if files else ()
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


# Names of data files: unique over all attempts of all runs, sorted by task.


_NAME = re.compile(r"part-\d+-(?P<job>.+)-e(?P<epoch>\d+)-\d+-[0-9a-f]{8}-\d+\.[a-z0-9.]+")


@dataclass(frozen=True, slots=True)
class OwnedFileNames:
    """The files that one write owns in a directory: all files, or those whose names begin with `prefix`.

    The files of a prefix have a separate log, below the directory's `_spark_channel`, so that the directory
    itself has none: readers see the files of every program there.
    """

    prefix: str | None = None

    def home(self, directory: str) -> str:
        """The directory whose folder `_spark_channel` has the log and the staging."""
        return (
            directory
            if self.prefix is None
            else posixpath.join(directory, LOG, PREFIXES, self.prefix)
        )

    def make(
        self, task: int, run: str, attempt: int, unique: str, number: int, extension: str
    ) -> str:
        name = file_name(task, run, attempt, unique, number, extension)
        return name if self.prefix is None else f"{self.prefix}__{name.removeprefix('part-')}"

    def run_of(self, path: str) -> str | None:
        """The run that wrote a file of this name; None = another program wrote it."""
        if self.prefix is None:
            return run_of(path)
        start, name = f"{self.prefix}__", posixpath.basename(path)
        return run_of(f"part-{name.removeprefix(start)}") if name.startswith(start) else None

    def show(self, label: str) -> str:
        """The target, for people."""
        return label if self.prefix is None else f"{label.rstrip('/')}/{self.prefix}*"


ALL_FILES = OwnedFileNames()


def new_attempt() -> str:
    """Distinguishes attempts that have one number: of a stream's batch that another driver runs again."""
    return uuid4().hex[:8]


def file_name(task: int, run: str, attempt: int, unique: str, number: int, extension: str) -> str:
    return f"part-{task:05d}-{run}-{attempt}-{unique}-{number:03d}.{extension}"


def run_name(job: str, epoch: int) -> str:
    """A run's name in file names: one job may hold a claim again, in another epoch."""
    return f"{job}-e{epoch}"


def run_of(path: str) -> str | None:
    """The run that wrote a file of this name; None = another program wrote it."""
    match = _NAME.fullmatch(posixpath.basename(path))
    return f"{match.group('job')}-e{match.group('epoch')}" if match else None


def is_ours(path: str) -> bool:
    return run_of(path) is not None


# The staging of a run, and which staging is orphaned.
#
# A run's folder is `_spark_channel/staging/<job>-e<epoch>/`. It is made after the run has its claim in the log, so a
# folder whose claim the log does not hold is orphaned: the run can publish nothing. A live run keeps its claim however
# long it takes; that of a run known to be dead is closed first. No age of a file decides by itself.


_STAGING = "staging"
_MARKER = "job.json"
_DOUBT = "doubted"


@dataclass(frozen=True)
class JobFolder:
    """The folder of one run in one target."""

    store: Store
    target: str
    job: str
    epoch: int

    @property
    def run(self) -> str:
        return run_name(self.job, self.epoch)

    @property
    def path(self) -> str:
        return posixpath.join(self.target, LOG, _STAGING, self.run)

    @property
    def marker(self) -> str:
        return posixpath.join(self.path, _MARKER)

    def attempt(self, task: int, attempt: int, unique: str) -> str:
        """The folder of an attempt: its own, or the target itself on an object store."""
        return (
            posixpath.join(self.path, f"{task}-{attempt}-{unique}")
            if self.store.staged
            else self.target
        )

    def begin(self) -> None:
        self.store.make(self.path)
        about = {"job": self.job, "started": utc_now().isoformat(timespec="seconds")}
        self.store.put(self.marker, json.dumps(about).encode())

    def is_live(self) -> bool:
        """Whether the run was neither ended nor aborted. The log decides; this spares a task useless work."""
        return self.store.exists(self.marker)

    def heartbeat(self) -> None:
        """Show that the run lives."""
        if self.is_live():
            self.store.touch(self.marker)

    def has_attempts(self) -> bool:
        """Whether attempts left folders: an attempt that has published its files leaves none."""
        return any(info.type == pafs.FileType.Directory for info in self.store.entries(self.path))

    def remove(self) -> None:
        # The marker first: a task that still runs must not take the run for a live one.
        self.store.remove(self.marker)
        self.store.remove_tree(self.path)

    def is_dead(self, claim: Claim) -> bool:
        """Whether the claim's run is known to be dead; see `connectors.base.claims.is_alive`. Notes a doubt."""
        now = utc_now().isoformat(timespec="seconds")
        doubt = posixpath.join(self.path, _DOUBT)
        claim_now = replace(
            claim,
            beat_at=_time(self.store, self.marker) or claim.beat_at,
            doubted_at=_time(self.store, doubt),
        )
        liveness = is_alive(claim_now, now)
        if (
            liveness == "doubtful"
            and not claim_now.doubted_at > claim_now.beat_at
            and self.is_live()
        ):
            self.store.put(doubt, b"")
        return liveness == "dead"


def _time(store: Store, path: str) -> str:
    info = store.info(path)
    if info.type == pafs.FileType.NotFound or info.mtime_ns is None:
        return ""
    return datetime.fromtimestamp(info.mtime_ns / 1e9, UTC).isoformat(timespec="seconds")


def dead_runs(store: Store, target: str, manifest: Manifest, but: str) -> set[tuple[str, int]]:
    """(job, epoch) of the runs that hold a claim and are known to be dead."""
    return {
        (claim.owner, claim.epoch)
        for claim in manifest.claims.values()
        if claim.owner not in ("", but)
        and JobFolder(store, target, claim.owner, claim.epoch).is_dead(claim)
    }


def staging_folders(store: Store, target: str) -> list[JobFolder]:
    """Of every run that has one in the target."""
    folders = []
    for info in store.entries(posixpath.join(target, LOG, _STAGING)):
        job, _, epoch = info.base_name.rpartition("-e")
        if (
            info.type == pafs.FileType.Directory
            and job
            and epoch.isdigit()
            and not store.is_link(info.path)
        ):
            folders.append(JobFolder(store, target, job, int(epoch)))
    return folders
