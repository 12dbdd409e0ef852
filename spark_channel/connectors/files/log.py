"""The log of a directory: entries `_spark_channel/<number>.json`, each written once by a conditional put.

An entry holds the whole manifest, so readers need the newest one only, and old ones may go; long lists are in parts
beside it (`parts`). A writer reads the newest entry, decides on it, and puts the next number; the loser of a race
reads and decides again. Nothing is locked.

A writer that slept may put a number that was written, and removed as old, while it slept. Newer entries are there
then, so no reader looks at its entry; the writer reads once more after its put, and finds that its entry is not among
the newest one's ancestors. For the same reason an entry counts only if the one before it is there, or it is the first.
"""

import json
import posixpath
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pyarrow as pa

from spark_channel.clock import utc_now
from spark_channel.connectors.files.filesystem import LOG, Location, read_file
from spark_channel.connectors.files.manifest import (
    FORMAT,
    WITH_MERGES,
    WITH_PARTS,
    WITH_REMOVED,
    Manifest,
)
from spark_channel.connectors.files.parts import DataFile, Merge, OlderJobs, Part, PartFiles
from spark_channel.connectors.files.store import Store
from spark_channel.errors import CommitError, TargetError
from spark_channel.retry import commit_pauses

__all__ = ["Entry", "Log", "entry_path", "newest_entry"]


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


def newest_entry(location: Location, directory: str) -> Entry | None:
    """The entry that holds; None = the directory has no log.

    Raises:
        TargetError: a damaged entry. OSError: not readable.
    """
    newest = _read_newest(location, directory)
    return None if newest is None else _parse(*newest, PartFiles(location, directory))


def _read_newest(location: Location, directory: str) -> tuple[bytes, int, str] | None:
    """The newest entry's bytes, its number, and what errors call it."""
    for _ in range(_READS):
        number = _newest(_numbers(location, directory))
        if number is None:
            return None
        path = entry_path(directory, number)
        raw = read_file(location, path)
        if raw is not None:
            return raw, number, location.show(path)
        # It was removed as old since the listing: newer ones are there.
    raise TargetError(
        f"{location.show(directory)}: entries of the log were removed faster than they could be read; run again"
    )


def _numbers(location: Location, directory: str) -> set[int]:
    from pyarrow import fs as pafs

    selector = pafs.FileSelector(posixpath.join(directory, LOG), allow_not_found=True)
    matches = (_NAME.fullmatch(info.base_name) for info in location.fs.get_file_info(selector))
    return {int(match.group(1)) for match in matches if match is not None}


def _newest(numbers: set[int]) -> int | None:
    return max((number for number in numbers if number == 1 or number - 1 in numbers), default=None)


def _parse(raw: bytes, number: int, source: str, parts: PartFiles) -> Entry:
    try:
        data = json.loads(raw)
        form = data["log"]
        if form not in (FORMAT, WITH_PARTS, WITH_MERGES, WITH_REMOVED):
            raise TargetError(
                f"{source} is a log entry of version {form!r}; this spark-channel knows {FORMAT!r} to "
                f"{WITH_REMOVED!r}: use the version that wrote it, or a newer one"
            )
        entry_id, ancestors = str(data["id"]), tuple(data["ancestors"])
        state = data["state"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise TargetError(
            f"{source} is a damaged log entry of spark-channel: {error!r}. "
            f"Restore it, or move the folder {LOG} away to read every file of the directory"
        ) from error
    return Entry(number, entry_id, ancestors, Manifest.from_json(state, source, parts.read))


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
        newest = _read_newest(self._store.place, self._directory)
        if newest is None:
            return None
        parsed = self._parsed
        if parsed is None or (parsed[0], parsed[1].number) != newest[:2]:
            # Each commit looks at it ten times.
            entry = _parse(*newest, self._parts)
            if parsed is not None:
                files = entry.manifest.files.sharing(parsed[1].manifest.files)
                entry = replace(entry, manifest=replace(entry.manifest, files=files))
            self._parsed = parsed = newest[0], entry
        return parsed[1]

    def rejects_newest(self) -> bool:
        """Whether the entry that `newest` found last is rejected when it is put once more, unchanged."""
        assert self._parsed is not None
        raw, entry = self._parsed
        return not self._store.put_new(entry_path(self._directory, entry.number), raw)

    def change(
        self, change: Change, base: Callable[[Entry | None], Manifest], action: str
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
            changed = change(base(newest), number)
            if changed is None:
                parts.remove_unnamed(newest)
                return newest, False
            parts.begin(number)
            changed = self._folded(changed, newest, parts)
            entry = Entry(number, uuid.uuid4().hex[:12], _ancestors(newest), changed)
            path = entry_path(self._directory, number)
            put = self._store.put_new(path, _dumps(entry, action))
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
                    f"{action}: other jobs wrote the log of {self._store.place.show()} first for {self._timeout:g} s; "
                    "run again, or raise option commitTimeout"
                )
            clock.sleep(next(pauses))

    def _folded(self, changed: Manifest, newest: Entry | None, parts: "_WrittenParts") -> Manifest:
        """The manifest, with long lists in parts."""

        def write_merges(merges: Sequence[Merge]) -> list[Merge]:
            name = parts.write({"merges": [merge.to_json() for merge in merges]})
            return [
                Merge(name, self._parts.read, merge.files, index)
                for index, merge in enumerate(merges)
            ]

        folded = changed.folded(
            parts.write_files,
            lambda jobs: OlderJobs(parts.write({"jobs": dict(jobs)}), self._parts.read),
            write_merges,
        )
        now = utc_now()
        before = Manifest(changed.format) if newest is None else newest.manifest
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
        for number in sorted(number for number in numbers if number <= newest - _KEPT):
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
            self._known[key] = Part.from_files(name, files)
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


def _dumps(entry: Entry, action: str) -> bytes:
    manifest = entry.manifest
    form = WITH_PARTS if manifest.part_names else FORMAT
    has_places = any(merge.place is not None for merge in manifest.merges.values())
    if manifest.merges or any(replaced.merged for replaced in manifest.removed):
        form = WITH_MERGES
    data = {
        "log": WITH_REMOVED if manifest.has_removed_parts or has_places else form,
        "number": entry.number,
        "id": entry.id,
        "ancestors": list(entry.ancestors),
        "what": action,
        "at": utc_now().isoformat(timespec="seconds"),
        "state": entry.manifest.to_json(),
    }
    return (
        json.dumps(data) + "\n"
    ).encode()  # indented, it takes Python's encoder ten times as long
