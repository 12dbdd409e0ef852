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
    found = manifest.claim(identity)
    if receipts and found is not None and found.owner != context.job and context.resume is None:
        raise TargetError(
            f"{identity.shown} is partially committed: run {found.owner!r} committed {len(receipts)} tasks "
            f"with {sum(each.rows for each in receipts)} rows to {identity.target} (commit=task) "
            "and did not end. A new run does not know which rows these were: "
            "overwrite the directory, or remove that run's files and use another version in 'txn'. "
            "A transfer with commit=task continues by itself, where its plan was kept"
        )
    taken = claims.take(
        found,
        identity,
        context.job,
        position=position,
        follows=context.follows,
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
        made = made.with_ended(
            taken.overtaken.owner, taken.overtaken.epoch, f"run {context.job!r} took over"
        )
    for other in manifest.claims.values():
        if (other.owner, other.epoch) in dead and claim_key(other.identity) != claim_key(identity):
            made = _closed(made, other, number, "its driver has ended")
    if empty and claim.state != "prepared":
        made = _emptied(made, number, until, _overwritten(context.job))
        claim = replace(claim, state="prepared")
    made = made.with_claim(claim)
    assert taken.held is not None
    return made, replace(taken, claim=claim, held=replace(taken.held, epoch=claim.epoch))


def fence(manifest: Manifest, held: HeldClaim) -> Claim:
    """Check that `held` is the claim that the log has.

    Raises:
        SupersededError: it is another run's, was published, or was closed.
    """
    found = manifest.claim(held.identity)
    try:
        claims.check(found, held)
    except SupersededError as error:
        why = manifest.ended.get(f"{held.owner}/{held.epoch}")
        if why is None:
            raise
        successor = found.owner if found is not None and found.owner != held.owner else ""
        raise SupersededError(
            f"job {held.owner!r} no longer holds its claim on {held.identity.target}: {why}. {_NOTHING}",
            owner=held.owner,
            successor=successor,
        ) from error
    assert found is not None
    return found


_FOLLOWS = 1
"""The generation of a stream's claim whose batches follow each other: an overwrite by another writer removes it."""


def add_task(
    manifest: Manifest, held: HeldClaim, receipt: Receipt, added: AddedFiles
) -> Manifest | None:
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
    held: HeldClaim,
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
    found = manifest.claim(held.identity)
    if found is not None and found.has_published(held.position):
        return None
    fence(manifest, held)
    done = claims.publish(found, held, at=at, rows=rows, nbytes=nbytes)
    assert done is not None
    if held.follows is not None:
        done = replace(done, generation=_FOLLOWS)
    made = manifest
    if overwrite:
        made = _emptied(made, number, until, _overwritten(held.owner), but=held.identity)
    elif added.files:
        check_format(made, added.format, held.identity.target)
    made = _with(made, added).with_claim(done)
    return made.with_job(held.owner, at) if held.identity.kind == "job" else made


@dataclass(frozen=True)
class MergedFile:
    """A file with the rows of `sources`, in their order. `times`: when these were changed, in nanoseconds."""

    file: DataFile
    sources: tuple[DataFile, ...]
    times: tuple[int, ...]


def merge(
    manifest: Manifest,
    number: int,
    held: HeldClaim,
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
    found = manifest.claim(held.identity)
    if found is not None and found.has_published(held.position):
        return None
    fence(manifest, held)
    sources = [source for each in merged for source in each.sources]
    if not set(sources) <= set(manifest.files):
        return None
    gone = {source.path for source in sources}
    made = replace(
        manifest,
        files=manifest.files.merging({each.sources[0].path: each.file for each in merged}, gone),
        removed=(*manifest.removed, RemovedFiles(number, until, True, tuple(sources))),
        merges={
            **manifest.merges,
            **{
                each.file.path: Merge.of(
                    [
                        (source, time, manifest.merges.get(source.path))
                        for source, time in zip(each.sources, each.times, strict=True)
                    ]
                )
                for each in merged
            },
        },
    )
    done = claims.publish(found, held, at=at, rows=0, nbytes=0)
    assert done is not None
    return made.with_claim(done).with_job(held.owner, at)


def put_back(manifest: Manifest, number: int, of: int, form: str, *, until: str) -> Manifest:
    """The manifest in which the files that an overwrite replaced in entry `of` are visible again, and no others."""
    made = _emptied(manifest, number, until, "a command put replaced files back")
    gone = [each for each in manifest.removed if each.number == of and not each.merged]
    back = tuple(
        file if file.schema in made.schemas else replace(file, schema=None)
        for each in gone
        for file in each.files
    )
    return replace(
        made,
        format=form,
        files=FileList(newest=back),
        removed=tuple(each for each in made.removed if each not in gone),
    )


def check_format(manifest: Manifest, form: str, shown: str) -> None:
    """
    Raises:
        TargetError: files of another format are there.
    """
    if manifest.files and manifest.format != form:
        raise TargetError(
            f"{shown} holds {manifest.format} files; {form} files cannot be appended to it"
        )


def release(manifest: Manifest, number: int, held: HeldClaim) -> Manifest | None:
    """The manifest without the run's claim; None when it holds none."""
    found = manifest.claims.get(claim_key(held.identity))
    if found is None or (found.owner, found.epoch) != (held.owner, held.epoch):
        return None
    if found.has_published(held.position):
        return None
    return _closed(manifest, found, number, "it was aborted")


def reset(manifest: Manifest, number: int, identity: Identity) -> Manifest | None:
    """The manifest in which a stream begins again; None when it is not in it."""
    found = manifest.claim(identity)
    if found is None:
        return None
    begun = claims.forget(found)
    made = manifest.with_claim(replace(begun, epoch=max(number, begun.epoch)))
    return made.with_ended(found.owner, found.epoch, "it was reset") if found.owner else made


def _closed(manifest: Manifest, claim: Claim, number: int, why: str) -> Manifest:
    """No run holds the claim. The log keeps what its tasks have committed, for a run that continues it."""
    made = manifest.with_ended(claim.owner, claim.epoch, why)
    receipts = manifest.receipts(claim.identity)
    if claim.identity.kind == "job" or not (receipts or claim.position is not None):
        return made.without_claim(claim.identity)
    if receipts:
        key = claim_key(claim.identity)
        made = made.with_plan(claim.identity, manifest.plans.get(key, claim.epoch))
        # Without a process: it is not found dead, and closed, again and again.
        return made.with_claim(replace(claim, epoch=max(number, claim.epoch + 1), process=""))
    return made.with_claim(
        replace(claim, owner="", epoch=max(number, claim.epoch + 1), state="open")
    )


def _emptied(
    manifest: Manifest, number: int, until: str, why: str, *, but: Identity | None = None
) -> Manifest:
    """Every visible file is replaced. `commit=task` runs whose rows go with them lose their claims, and so do streams
    whose batches follow each other.
    """
    gone = manifest.files.removed(number, until)
    made = replace(manifest, files=FileList(), removed=(*manifest.removed, *gone))
    for claim in manifest.claims.values():
        receipts = manifest.receipts(claim.identity)
        if but is not None and claim_key(claim.identity) == claim_key(but):
            continue
        if claim.generation == _FOLLOWS:
            # Its next batch would add rows that are there, or miss some.
            made = made.without_claim(claim.identity)
        elif receipts or claim.state == "prepared":
            made = made.without_tasks(claim.identity)
            made = _closed(
                made,
                replace(claim, state="open"),
                number,
                why,
            )
    return made


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
        made = file_name(task, run, attempt, unique, number, extension)
        return made if self.prefix is None else f"{self.prefix}__{made.removeprefix('part-')}"

    def run_of(self, path: str) -> str | None:
        """The run that wrote a file of this name; None = another program wrote it."""
        if self.prefix is None:
            return run_of(path)
        start, name = f"{self.prefix}__", posixpath.basename(path)
        return run_of(f"part-{name.removeprefix(start)}") if name.startswith(start) else None

    def show(self, shown: str) -> str:
        """The target, for people."""
        return shown if self.prefix is None else f"{shown.rstrip('/')}/{self.prefix}*"


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
        seen = replace(
            claim,
            beat_at=_time(self.store, self.marker) or claim.beat_at,
            doubted_at=_time(self.store, doubt),
        )
        liveness = is_alive(seen, now)
        if liveness == "doubtful" and not seen.doubted_at > seen.beat_at and self.is_live():
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
    found = []
    for info in store.entries(posixpath.join(target, LOG, _STAGING)):
        job, _, epoch = info.base_name.rpartition("-e")
        if (
            info.type == pafs.FileType.Directory
            and job
            and epoch.isdigit()
            and not store.is_link(info.path)
        ):
            found.append(JobFolder(store, target, job, int(epoch)))
    return found
