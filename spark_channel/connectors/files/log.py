"""The log of a directory: entries `_spark_channel/<number>.json`, each written once by a conditional put.

An entry holds the whole manifest, so readers need the newest one only, and old ones may go; long lists are in parts
beside it (`parts`). A writer reads the newest entry, decides on it, and puts the next number; the loser of a race
reads and decides again. Nothing is locked.

A writer that slept may put a number that was written, and removed as old, while it slept. Newer entries are there
then, so no reader looks at its entry; the writer reads once more after its put, and finds that its entry is not among
the newest one's ancestors. For the same reason an entry counts only if the one before it is there, or it is the first.
"""

import base64
import json
import posixpath
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from itertools import chain
from typing import Any

import pyarrow as pa

from spark_channel.clock import utc_now
from spark_channel.connectors.base.claims import Claim, HeldClaim, Identity
from spark_channel.connectors.base.contract import Receipt
from spark_channel.connectors.base.kept_claims import joined
from spark_channel.connectors.files.filesystem import LOG, Location, read_file
from spark_channel.connectors.files.parts import (
    DataFile,
    FileList,
    Merge,
    OlderJobs,
    Part,
    PartFiles,
    RemovedFiles,
    Replaced,
    is_below,
    merges_of,
    older_jobs_of,
    parts_of,
    removed_of,
)
from spark_channel.connectors.files.store import Store
from spark_channel.errors import CommitError, TargetError
from spark_channel.retry import commit_pauses

__all__ = [
    "FORMAT",
    "SUCCESS",
    "Dialect",
    "Entry",
    "Log",
    "Manifest",
    "PublishedVersions",
    "claim_key",
    "entry_path",
    "newest_entry",
]


# The published versions of one name of a transaction id: all of them, permanently, as ranges.


_TIMES_KEPT = 100


@dataclass(frozen=True)
class PublishedVersions:
    """`ranges`: (first, last) of versions without a gap, in order. `times`: of the newest, when."""

    ranges: tuple[tuple[int, int], ...] = ()
    times: Mapping[int, str] = field(default_factory=dict)

    def published_at(self, version: int) -> str | None:
        """The time; "an unknown time" of one that is published long since; None = it was not published."""
        if version in self.times:
            return self.times[version]
        published = any(first <= version <= last for first, last in self.ranges)
        return "an unknown time" if published else None

    def having(self, version: int, at: str) -> "PublishedVersions":
        times = {**{key: old for key, old in self.times.items() if key != version}, version: at}
        return PublishedVersions(
            joined([*self.ranges, (version, version)]), dict(list(times.items())[-_TIMES_KEPT:])
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "ranges": [list(each) for each in self.ranges],
            "at": {str(version): at for version, at in self.times.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "PublishedVersions":
        ranges = tuple((int(first), int(last)) for first, last in data["ranges"])
        return cls(ranges, {int(version): at for version, at in data["at"].items()})


# The manifest: the files of a directory, the claims on it, and what was published. Each log entry is one.
#
# Readers of spark-channel see only the files that the newest entry lists, so a directory changes in one step. `log`
# says how entries are written, `docs/files.md` describes the format.


SUCCESS = "_SUCCESS"
FORMAT = "spark-channel/2"
_WITH_PARTS = "spark-channel/3"
"""The format of an entry that names parts: earlier versions would miss their files, and refuse it."""
_WITH_MERGES = "spark-channel/4"
"""The format of an entry that names merged files: the streams of earlier versions would take their rows twice."""
_WITH_REMOVED = "spark-channel/5"
"""The format of an entry that names parts of replaced files, or with several merges: earlier versions would never
remove those files, or take rows twice.
"""

_JOBS_KEPT = 1000
_JOBS_IN_ENTRY = 50
_ENDED_KEPT = 200

Dialect = Mapping[str, Any]
"""The options that a reader needs to read a text file back as it was written."""


def claim_key(identity: Identity) -> str:
    """The name of a claim in the log. Without the target: a directory has several paths and one log."""
    return json.dumps([identity.kind, identity.name, identity.version])


@dataclass(frozen=True)
class Manifest:
    """The visible files and the claims. Immutable: a change makes a new manifest.

    `schemas` and `dialects`: by the key that `DataFile.schema` gives. `claims`, `tasks` (the receipts of tasks that
    committed under a claim) and `plans` (the epoch whose run kept the plan that those tasks follow): by `claim_key`.
    `jobs`, and `older_jobs` before them: when each job was published. `versions`: the published versions of each
    transaction name. `ended`: why runs ("<job>/<epoch>") lost their claims. `removed`: files that are not
    visible and may still be on disk.
    `merges`: what merged files were made from, by their paths.
    `retired`: parts that no entry names any more, and until when (ISO, UTC) a reader of an older entry may need them.
    `success`: the `_SUCCESS` of another writer that is counted in.
    """

    format: str
    files: FileList = field(default_factory=FileList)
    schemas: Mapping[str, pa.Schema] = field(default_factory=dict)
    dialects: Mapping[str, Dialect] = field(default_factory=dict)
    claims: Mapping[str, Claim] = field(default_factory=dict)
    tasks: Mapping[str, tuple[Receipt, ...]] = field(default_factory=dict)
    plans: Mapping[str, int] = field(default_factory=dict)
    jobs: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, PublishedVersions] = field(default_factory=dict)
    ended: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[RemovedFiles, ...] = ()
    success: str = ""
    older_jobs: OlderJobs | None = None
    merges: Mapping[str, Merge] = field(default_factory=dict)
    retired: tuple[tuple[str, str], ...] = ()

    def claim(self, identity: Identity) -> Claim | None:
        """The claim on `identity`; one that was published is kept in short."""
        found = self.claims.get(claim_key(identity))
        if found is not None:
            return replace(found, identity=identity)
        published_at = self._published_at(identity)
        if published_at is None:
            return None
        return Claim(identity, "", state="published", published_at=published_at)

    def _published_at(self, identity: Identity) -> str | None:
        if identity.kind == "job":
            at = self.jobs.get(identity.name)
            older = self.older_jobs
            return older.published.get(identity.name) if at is None and older is not None else at
        if (
            identity.kind == "txn"
            and identity.version is not None
            and identity.name in self.versions
        ):
            return self.versions[identity.name].published_at(identity.version)
        return None

    def missing(self, paths: Sequence[str]) -> list[str]:
        """Those of `paths` that are not visible, nor replaced since: an overwrite or a merge may have been quick."""
        missing = self.files.missing(paths)
        replaced = {each.file.path for each in self.replaced()} if missing else set()
        return [path for path in missing if path not in replaced]

    def has_file(self, test: Callable[[str], bool]) -> bool:
        """Whether the path of a file that is visible, or was replaced, passes. The newest files are tested first."""
        known = chain(
            self.files.newest,
            chain.from_iterable(reversed(self.files.parts)),
            (each.file for each in self.replaced()),
        )
        return any(test(file.path) for file in known)

    def replaced(self) -> Iterator[Replaced]:
        """Each of the `removed` files. This reads their parts."""
        for files in self.removed:
            yield from files

    def receipts(self, identity: Identity) -> tuple[Receipt, ...]:
        """The tasks that committed under the claim (`commit=task`)."""
        return self.tasks.get(claim_key(identity), ())

    def is_open(self, job: str, epoch: int) -> bool:
        """Whether the run still holds a claim: what it staged may become visible."""
        return any((claim.owner, claim.epoch) == (job, epoch) for claim in self.claims.values())

    def with_claim(self, claim: Claim) -> "Manifest":
        """A claim that was published is dropped, but for a stream's, and remembered in short."""
        key, identity = claim_key(claim.identity), claim.identity
        if claim.state != "published":
            return replace(self, claims={**self.claims, key: claim})
        made = self.without_claim(identity)
        if identity.kind == "txn" and identity.version is not None:
            known = self.versions.get(identity.name, PublishedVersions())
            at = claim.published_at or ""
            return replace(
                made, versions={**self.versions, identity.name: known.having(identity.version, at)}
            )
        return made

    def without_claim(self, identity: Identity) -> "Manifest":
        key = claim_key(identity)
        return replace(
            self,
            claims={name: old for name, old in self.claims.items() if name != key},
            plans={name: old for name, old in self.plans.items() if name != key},
        ).without_tasks(identity)

    def without_tasks(self, identity: Identity) -> "Manifest":
        key = claim_key(identity)
        return replace(self, tasks={name: old for name, old in self.tasks.items() if name != key})

    def with_plan(self, identity: Identity, epoch: int) -> "Manifest":
        return replace(self, plans={**self.plans, claim_key(identity): epoch})

    def with_job(self, job: str, at: str) -> "Manifest":
        jobs = {**{name: old for name, old in self.jobs.items() if name != job}, job: at}
        return replace(self, jobs=jobs)

    def with_task(self, held: HeldClaim, receipt: Receipt) -> "Manifest":
        key = claim_key(held.identity)
        return replace(self, tasks={**self.tasks, key: (*self.tasks.get(key, ()), receipt)})

    def with_ended(self, job: str, epoch: int, by: str) -> "Manifest":
        ended = {**self.ended, f"{job}/{epoch}": by}
        return replace(self, ended=dict(list(ended.items())[-_ENDED_KEPT:]))

    def folded(
        self,
        write_files: Callable[[Sequence[DataFile]], Part],
        write_jobs: Callable[[Mapping[str, str]], OlderJobs],
        write_merges: Callable[[Sequence[Merge]], Sequence[Merge]],
    ) -> "Manifest":
        """The same, with lists in parts that are too long for an entry."""
        new = [path for path, merge in self.merges.items() if not merge.name]
        written = write_merges([self.merges[path] for path in new]) if new else ()
        made = replace(
            self,
            files=self.files.folded(write_files),
            removed=tuple(each for files in self.removed for each in files.folded(write_files)),
            merges={**self.merges, **dict(zip(new, written, strict=True))},
        )
        if len(self.jobs) <= _JOBS_IN_ENTRY:
            return made
        older = {} if self.older_jobs is None else self.older_jobs.published
        known = {**{job: at for job, at in older.items() if job not in self.jobs}, **self.jobs}
        kept = dict(list(known.items())[-_JOBS_KEPT:])
        return replace(made, jobs={}, older_jobs=write_jobs(kept))

    @property
    def part_names(self) -> set[str]:
        older = () if self.older_jobs is None else (self.older_jobs.name,)
        merges = (merge.name for merge in self.merges.values())
        removed = (each.files.name for each in self.removed if isinstance(each.files, Part))
        return {*(part.name for part in self.files.parts), *older, *merges, *removed}

    @property
    def has_removed_parts(self) -> bool:
        return any(isinstance(each.files, Part) for each in self.removed)

    def retiring(self, before: "Manifest", now: str, until: str) -> "Manifest":
        """The manifest that follows `before`: parts that it names no more are kept until `until`."""
        kept = [each for each in before.retired if each[1] > now]
        gone = before.part_names - self.part_names
        return replace(self, retired=(*kept, *((name, until) for name in sorted(gone))))

    def to_json(self) -> dict[str, Any]:
        used = self.files.schemas.union(
            *(each.schemas for each in self.removed)
        )  # what was replaced can be put back
        return {
            "format": self.format,
            "files": [file.to_json() for file in self.files.newest],
            **self._parts_to_json(),
            "schemas": {
                key: {
                    "columns": {column.name: str(column.type) for column in schema},
                    "arrow": base64.b64encode(schema.serialize().to_pybytes()).decode("ascii"),
                    "dialect": dict(self.dialects.get(key, {})),
                }
                for key, schema in self.schemas.items()
                if key in used
            },
            "claims": {key: asdict(claim) for key, claim in self.claims.items()},
            "tasks": {
                key: [[each.task, each.attempt, each.rows, each.nbytes] for each in receipts]
                for key, receipts in self.tasks.items()
            },
            "plans": dict(self.plans),
            "jobs": dict(self.jobs),
            "versions": {app: known.to_json() for app, known in self.versions.items()},
            "ended": dict(self.ended),
            "removed": [
                each.to_json()
                for files in self.removed
                if not isinstance(files.files, Part)
                for each in files
            ],
            "success": self.success,
        }

    def _parts_to_json(self) -> dict[str, Any]:
        """Nothing where there are none: then earlier versions can read the entry."""
        older = self.older_jobs
        return {
            **(
                {"parts": [part.to_json() for part in self.files.parts]} if self.files.parts else {}
            ),
            **({"olderJobs": older.name} if older is not None else {}),
            **(
                {
                    "merges": {
                        path: merge.name if merge.place is None else [merge.name, merge.place]
                        for path, merge in self.merges.items()
                    }
                }
                if self.merges
                else {}
            ),
            **(
                {
                    "removedParts": [
                        [each.number, each.until, each.merged, each.files.to_json()]
                        for each in self.removed
                        if isinstance(each.files, Part)
                    ]
                }
                if self.has_removed_parts
                else {}
            ),
            **({"retired": [list(each) for each in self.retired]} if self.retired else {}),
        }

    @classmethod
    def from_json(
        cls, data: Mapping[str, Any], shown: str, read: Callable[[str], Any]
    ) -> "Manifest":
        """`read` gives the content of a part.

        Raises:
            TargetError: it is damaged.
        """
        try:
            schemas = data["schemas"]
            files = tuple(DataFile(**file) for file in data["files"])
            made = cls(
                format=data["format"],
                files=FileList(parts_of(data, read), files),
                schemas={key: _schema(found["arrow"]) for key, found in schemas.items()},
                dialects={key: found["dialect"] for key, found in schemas.items()},
                claims={key: _claim(claim) for key, claim in data["claims"].items()},
                tasks={
                    key: tuple(Receipt(*each) for each in found)
                    for key, found in data["tasks"].items()
                },
                plans=data["plans"],
                jobs=data["jobs"],
                versions={
                    app: PublishedVersions.from_json(known)
                    for app, known in data["versions"].items()
                },
                ended=data["ended"],
                removed=removed_of(data, read),
                success=data["success"],
                older_jobs=older_jobs_of(data, read),
                merges=merges_of(data, read),
                retired=tuple((str(name), str(until)) for name, until in data.get("retired", ())),
            )
            _check_places(made)
            return made
        except (KeyError, TypeError, ValueError, AttributeError, pa.ArrowException) as error:
            raise TargetError(
                f"{shown} is a damaged log entry of spark-channel: {error!r}. Restore it, or move the folder {LOG} "
                "away to read every file of the directory"
            ) from error


def _check_places(made: Manifest) -> None:
    """A damaged or forged log names nothing outside its directory: files that it names are read, moved and removed.

    Raises:
        ValueError: it does.
    """
    named = (each.files for each in made.removed if not isinstance(each.files, Part))
    files = [*made.files.newest, *chain.from_iterable(named)]
    if strange := next((file.path for file in files if not is_below(file.path)), None):
        raise ValueError(f"{strange!r} is not a file below the directory")
    for claim in made.claims.values():
        if "/" in claim.owner or type(claim.epoch) is not int:
            raise ValueError(f"{claim.owner!r} is not the name of a job")


def _schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _claim(data: Mapping[str, Any]) -> Claim:
    return Claim(**{**data, "identity": Identity(**data["identity"])})


_NAME = re.compile(r"(\d{20})\.json")
_PAUSES = 0.001, 0.25
"""Seconds: the first pause after another job was first, at most, and the longest."""
_READS = 10
_ANCESTORS = 100
_LEAD = 32
"""How far ahead of the log a try that lost writes its parts; as many times further, each time that the log is there."""
_KEPT = 20
"""So many of the newest entries stay, for people who want to know what happened."""


@dataclass(frozen=True)
class Entry:
    """One entry, as it was read. `ancestors`: the ids of those before it, the newest first."""

    number: int
    id: str
    ancestors: tuple[str, ...]
    manifest: Manifest

    def has(self, entry_id: str) -> bool:
        return entry_id == self.id or entry_id in self.ancestors


def entry_path(directory: str, number: int) -> str:
    return posixpath.join(directory, LOG, f"{number:020d}.json")


def newest_entry(place: Location, directory: str) -> Entry | None:
    """The entry that holds; None = the directory has no log.

    Raises:
        TargetError: a damaged entry. OSError: not readable.
    """
    found = _read_newest(place, directory)
    return None if found is None else _parse(*found, PartFiles(place, directory))


def _read_newest(place: Location, directory: str) -> tuple[bytes, int, str] | None:
    """The newest entry's bytes, its number, and what errors call it."""
    for _ in range(_READS):
        number = _newest(_numbers(place, directory))
        if number is None:
            return None
        path = entry_path(directory, number)
        raw = read_file(place, path)
        if raw is not None:
            return raw, number, place.show(path)
        # It was removed as old since the listing: newer ones are there.
    raise TargetError(
        f"{place.show(directory)}: entries of the log were removed faster than they could be read; run again"
    )


def _numbers(place: Location, directory: str) -> set[int]:
    from pyarrow import fs as pafs

    selector = pafs.FileSelector(posixpath.join(directory, LOG), allow_not_found=True)
    found = (_NAME.fullmatch(info.base_name) for info in place.fs.get_file_info(selector))
    return {int(match.group(1)) for match in found if match is not None}


def _newest(numbers: set[int]) -> int | None:
    return max((each for each in numbers if each == 1 or each - 1 in numbers), default=None)


def _parse(raw: bytes, number: int, shown: str, parts: PartFiles) -> Entry:
    try:
        data = json.loads(raw)
        form = data["log"]
        if form not in (FORMAT, _WITH_PARTS, _WITH_MERGES, _WITH_REMOVED):
            raise TargetError(
                f"{shown} is a log entry of version {form!r}; this spark-channel knows {FORMAT!r} to "
                f"{_WITH_REMOVED!r}: use the version that wrote it, or a newer one"
            )
        entry_id, ancestors = str(data["id"]), tuple(data["ancestors"])
        state = data["state"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise TargetError(
            f"{shown} is a damaged log entry of spark-channel: {error!r}. "
            f"Restore it, or move the folder {LOG} away to read every file of the directory"
        ) from error
    return Entry(number, entry_id, ancestors, Manifest.from_json(state, shown, parts.read))


Change = Callable[[Manifest, int], Manifest | None]
"""Given the newest manifest and the number to be written: the next manifest, or None when nothing is to be changed."""


class Log:
    """The log of one directory, for writers. Parts that no entry names any more stay for `retention` seconds."""

    def __init__(self, store: Store, directory: str, timeout: float, retention: float) -> None:
        self._store = store
        self._directory = directory
        self._timeout = timeout
        self._retention = timedelta(seconds=retention)
        self._parts = PartFiles(store.place, directory)
        self._parsed: tuple[bytes, Entry] | None = None

    def newest(self) -> Entry | None:
        found = _read_newest(self._store.place, self._directory)
        if found is None:
            return None
        parsed = self._parsed
        if parsed is None or (parsed[0], parsed[1].number) != found[:2]:
            # Each commit looks at it ten times.
            entry = _parse(*found, self._parts)
            if parsed is not None:
                files = entry.manifest.files.sharing(parsed[1].manifest.files)
                entry = replace(entry, manifest=replace(entry.manifest, files=files))
            self._parsed = parsed = found[0], entry
        return parsed[1]

    def rejects_newest(self) -> bool:
        """Whether the entry that `newest` found last is rejected when it is put once more, unchanged."""
        assert self._parsed is not None
        raw, entry = self._parsed
        return not self._store.put_new(entry_path(self._directory, entry.number), raw)

    def change(
        self, change: Change, base: Callable[[Entry | None], Manifest], what: str
    ) -> tuple[Entry | None, bool]:
        """Write the next entry as `change` decides; again on a newer state whenever another job was first.

        `change` may be asked several times, and once more after its entry was written: it gives None for a state that
        has its change. `base` says what the directory holds beside the newest entry (files of other writers).
        Returns the newest entry, and whether this call wrote one.

        Raises:
            CommitError: other jobs were first for longer than the timeout. OSError: not known whether it is written.
            Whatever `change` raises.
        """
        clock = self._store.clock
        deadline, pauses = clock.now() + self._timeout, commit_pauses(*_PAUSES)
        newest = self.newest()
        parts = _WrittenParts(self._store, self._parts)
        while True:
            number = 1 if newest is None else newest.number + 1
            made = change(base(newest), number)
            if made is None:
                parts.remove_unnamed(newest)
                return newest, False
            parts.begin(number)
            made = self._folded(made, newest, parts)
            entry = Entry(number, uuid.uuid4().hex[:12], _ancestors(newest), made)
            path = entry_path(self._directory, number)
            put = self._store.put_new(path, _dumps(entry, what))
            newest = self.newest()
            # Also when the put was rejected: the first of two tries of one request may have been accepted.
            if newest is not None and newest.has(entry.id):
                if parts.names:
                    # The entry is accepted, so nothing here may fail the write. The next such entry tries again.
                    with suppress(OSError, pa.ArrowException, TargetError):
                        self.remove_parts()
                    parts.remove_unnamed(newest)
                return (entry if newest.id == entry.id else newest), True
            if put:
                # Its number was written and removed before: no reader looks at it.
                self._store.remove(path)
            if clock.now() >= deadline:
                parts.remove_unnamed(newest)
                raise CommitError(
                    f"{what}: other jobs wrote the log of {self._store.place.show()} first for {self._timeout:g} s; "
                    "run again, or raise option commitTimeout"
                )
            clock.sleep(next(pauses))

    def _folded(self, made: Manifest, newest: Entry | None, parts: "_WrittenParts") -> Manifest:
        """The manifest, with long lists in parts."""

        def write_merges(merges: Sequence[Merge]) -> list[Merge]:
            name = parts.write({"merges": [merge.to_json() for merge in merges]})
            return [
                Merge(name, self._parts.read, merge.files, place)
                for place, merge in enumerate(merges)
            ]

        folded = made.folded(
            parts.write_files,
            lambda jobs: OlderJobs(parts.write({"jobs": dict(jobs)}), self._parts.read),
            write_merges,
        )
        now = utc_now()
        before = Manifest(made.format) if newest is None else newest.manifest
        until = (now + self._retention).isoformat(timespec="seconds")
        return folded.retiring(before, now.isoformat(timespec="seconds"), until)

    def remove_parts(self) -> None:
        """Remove parts that no entry needs: those of tries that lost, of killed writers, and retired ones."""
        newest = self.newest()
        if newest is None:
            return
        named = newest.manifest.part_names | {name for name, _ in newest.manifest.retired}
        for info in self._store.entries(self._parts.folder):
            number = PartFiles.number_of(info.base_name)
            if number is not None and number <= newest.number and info.base_name not in named:
                self._store.remove(info.path)

    def prune(self) -> None:
        """Remove entries that neither readers nor writers need."""
        numbers = _numbers(self._store.place, self._directory)
        newest = _newest(numbers)
        if newest is None:
            return
        # In their order: a kill leaves no gap.
        for number in sorted(each for each in numbers if each <= newest - _KEPT):
            self._store.remove(entry_path(self._directory, number))


class _WrittenParts:
    """The parts that one change writes for its tries. Lists of files that an earlier try wrote are not written again.

    A list that takes longer to write than other jobs take to add a file would else never be published. So its parts
    have numbers ahead of the log from the second try on, further ahead each time that the log has reached them.
    """

    def __init__(self, store: Store, parts: PartFiles) -> None:
        self._store, self._parts = store, parts
        self._number = self._ahead = 0
        self._known: dict[tuple[DataFile, ...], Part] = {}
        self.names: list[str] = []

    def begin(self, number: int) -> None:
        """The next try, for entry `number`."""
        if number <= self._ahead:
            return
        # Another job may have removed those of a lower number, which its entry does not name.
        lead = 0 if not self.names else _LEAD * max(1, self._number and self._ahead - self._number)
        self._number, self._ahead = number, number + lead
        self._known.clear()

    def write(self, content: Mapping[str, Any]) -> str:
        """Write a part; return its name."""
        name = self._parts.new_name(self._ahead)
        if not self.names:
            self._store.make(self._parts.folder)
        self._store.put(self._parts.path(name), json.dumps(content).encode())
        self.names.append(name)
        return name

    def write_files(self, files: Sequence[DataFile]) -> Part:
        key = tuple(files)
        if key not in self._known:
            name = self.write({"files": [file.to_json() for file in files]})
            self._known[key] = Part.of(name, files)
        return self._known[key]

    def remove_unnamed(self, newest: Entry | None) -> None:
        """Remove those that the log does not need, after a change whose tries are all known to have lost, but the last.

        What cannot be removed goes when the log has reached its number.
        """
        if newest is None or not self.names:
            return
        manifest = newest.manifest
        needed = manifest.part_names | {name for name, _ in manifest.retired}
        with suppress(OSError, pa.ArrowException, TargetError):
            for name in self.names:
                if name not in needed:
                    self._store.remove(self._parts.path(name))


def _ancestors(newest: Entry | None) -> tuple[str, ...]:
    return () if newest is None else (newest.id, *newest.ancestors)[:_ANCESTORS]


def _dumps(entry: Entry, what: str) -> bytes:
    made = entry.manifest
    form = _WITH_PARTS if made.part_names else FORMAT
    has_places = any(merge.place is not None for merge in made.merges.values())
    if made.merges or any(each.merged for each in made.removed):
        form = _WITH_MERGES
    data = {
        "log": _WITH_REMOVED if made.has_removed_parts or has_places else form,
        "number": entry.number,
        "id": entry.id,
        "ancestors": list(entry.ancestors),
        "what": what,
        "at": utc_now().isoformat(timespec="seconds"),
        "state": entry.manifest.to_json(),
    }
    return (
        json.dumps(data) + "\n"
    ).encode()  # indented, it takes Python's encoder ten times as long
