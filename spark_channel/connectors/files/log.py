"""The log of a directory: entries `_spark_channel/<number>.json`, each written once by a conditional put.

An entry holds the whole manifest, so readers need the newest one only, and old ones may go. A writer reads the newest
entry, decides on it, and puts the next number; one that loses the race reads again and decides again. There is no lock.

A writer that slept may put a number that was written, and removed as old, while it slept. Newer entries are there
then, so no reader looks at its entry; the writer reads once more after its put, and finds that its entry is not among
the newest one's ancestors. For the same reason an entry counts only if the one before it is there, or it is the first.
"""

import json
import posixpath
import random
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from spark_channel.clock import utc_now
from spark_channel.connectors.files.manifest import FORMAT, Manifest
from spark_channel.connectors.files.paths import LOG, Location, read_file
from spark_channel.connectors.files.store import Store
from spark_channel.errors import CommitError, TargetError

__all__ = ["Entry", "Log", "entry_path", "newest_entry"]

_NAME = re.compile(r"(\d{20})\.json")
_FIRST_WAIT, _LONGEST_WAIT = 0.001, 0.25
_READS = 10
_ANCESTORS = 100
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
    return None if found is None else _parse(*found)


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


def _parse(raw: bytes, number: int, shown: str) -> Entry:
    try:
        data = json.loads(raw)
        form = data["log"]
        if form != FORMAT:
            raise TargetError(
                f"{shown} is a log entry of version {form!r}; this spark-channel knows {FORMAT!r}: use the version "
                "that wrote it, or a newer one"
            )
        entry_id, ancestors = str(data["id"]), tuple(data["ancestors"])
        state = data["state"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise TargetError(
            f"{shown} is a damaged log entry of spark-channel: {error!r}. "
            f"Restore it, or move the folder {LOG} away to read every file of the directory"
        ) from error
    return Entry(number, entry_id, ancestors, Manifest.from_json(state, shown))


Change = Callable[[Manifest, int], Manifest | None]
"""Given the newest manifest and the number to be written: the next manifest, or None when nothing is to be changed."""


class Log:
    """The log of one directory, for writers."""

    def __init__(self, store: Store, directory: str, timeout: float) -> None:
        self._store = store
        self._directory = directory
        self._timeout = timeout
        self._parsed: tuple[bytes, Entry] | None = None

    def newest(self) -> Entry | None:
        found = _read_newest(self._store.place, self._directory)
        if found is None:
            return None
        parsed = self._parsed
        if parsed is None or (parsed[0], parsed[1].number) != found[:2]:
            # Its manifest may name ten thousand files, and each commit looks at it ten times.
            self._parsed = parsed = found[0], _parse(*found)
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
        deadline, wait = clock.now() + self._timeout, _FIRST_WAIT
        newest = self.newest()
        while True:
            number = 1 if newest is None else newest.number + 1
            made = change(base(newest), number)
            if made is None:
                return newest, False
            entry = Entry(number, uuid.uuid4().hex[:12], _ancestors(newest), made)
            path = entry_path(self._directory, number)
            put = self._store.put_new(path, _dumps(entry, what))
            newest = self.newest()
            # Also when the put was rejected: the first of two tries of one request may have been accepted.
            if newest is not None and newest.has(entry.id):
                return (entry if newest.id == entry.id else newest), True
            if put:
                self._store.remove(path)  # its number was written and removed before: no reader looks at it
            if clock.now() >= deadline:
                raise CommitError(
                    f"{what}: other jobs wrote the log of {self._store.place.show()} first for {self._timeout:g} s; "
                    "run again, or raise option commitTimeout"
                )
            clock.sleep(wait * random.uniform(0.0, 1.0))  # noqa: S311 - spreads the tries of several jobs
            wait = min(wait * 1.5, _LONGEST_WAIT)

    def prune(self) -> None:
        """Remove entries that neither readers nor writers need."""
        numbers = _numbers(self._store.place, self._directory)
        newest = _newest(numbers)
        if newest is None:
            return
        # In their order: what is left after a kill has no gap.
        for number in sorted(each for each in numbers if each <= newest - _KEPT):
            self._store.remove(entry_path(self._directory, number))


def _ancestors(newest: Entry | None) -> tuple[str, ...]:
    return () if newest is None else (newest.id, *newest.ancestors)[:_ANCESTORS]


def _dumps(entry: Entry, what: str) -> bytes:
    data = {
        "log": FORMAT,
        "number": entry.number,
        "id": entry.id,
        "ancestors": list(entry.ancestors),
        "what": what,
        "at": utc_now().isoformat(timespec="seconds"),
        "state": entry.manifest.to_json(),
    }
    return (json.dumps(data) + "\n").encode()  # indented, it takes Python's encoder ten times as long
