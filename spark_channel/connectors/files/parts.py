"""Long lists of a directory's log, in separate files: `_spark_channel/parts/<number>-<id>.json`.

An entry itself names the newest files only. The others are in parts, which never change, so a job that adds a file to
a hundred thousand neither reads nor writes their names. Ten parts of about one size are merged into one, so an entry
names few parts, and a file's name is written again once for each size.

A part's number is that of the entry for which it was written, or a later one: a writer that other jobs were faster than
writes its parts for a number that the log has not reached for some time, and names them in each try until then. Once an
entry of that number is there, a part that the newest entry does not name was written for nothing, and may go.
"""

import json
import posixpath
import re
import uuid
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import groupby
from typing import Any

from spark_channel.connectors.files.filesystem import LOG, Location, read_file
from spark_channel.errors import TargetError

__all__ = [
    "DataFile",
    "FileList",
    "Merge",
    "OlderJobs",
    "Part",
    "PartFiles",
    "RemovedFiles",
    "Replaced",
    "is_below",
    "merges_of",
    "older_jobs_of",
    "parts_of",
    "removed_of",
]

_NEWEST = 32
"""An entry names at most so many files itself."""
_MERGED = 10
_REMOVED = 1000
"""Removed files of one part: a job that only adds files tidies up so many."""
_NAME = re.compile(r"(\d{20})-[0-9a-f]{12}\.json")


@dataclass(frozen=True, slots=True)
class DataFile:
    """One visible file; `path` is relative to the directory.

    `nbytes` is its size on disk. Files that others wrote have neither `rows` nor `schema`.
    `multi_line`: a text file with line ends inside values.
    """

    path: str
    nbytes: int
    rows: int | None = None
    schema: str | None = None
    job: str | None = None
    mtime_ns: int | None = None
    multi_line: bool | None = None

    def to_json(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in DataFile.__slots__}
        return {name: value for name, value in fields.items() if value is not None}


def is_below(path: str) -> bool:
    """Whether `path`, relative to a directory, is inside, and none of its log's."""
    return not path.startswith("/") and not {"", ".", "..", LOG} & set(path.split("/"))


@dataclass(frozen=True)
class PartFiles:
    """The parts of one log. `directory` has the log's folder."""

    place: Location
    directory: str

    @property
    def folder(self) -> str:
        return posixpath.join(self.directory, LOG, "parts")

    def path(self, name: str) -> str:
        return posixpath.join(self.folder, name)

    def read(self, name: str) -> Any:
        """
        Raises:
            TargetError: it was removed, or is damaged. OSError: not readable.
        """
        path = self.path(name)
        raw = read_file(self.place, path)
        if raw is None:
            raise TargetError(
                f"{self.place.show(path)}, a part of the directory's log, was removed: the log was read longer ago "
                "than replaced files are kept (option retention). Run again"
            )
        try:
            return json.loads(raw)
        except ValueError as error:
            raise TargetError(
                f"{self.place.show(path)} is a damaged part of a log of spark-channel: {error!r}. Restore it, or move "
                f"the folder {LOG} away to read every file of the directory"
            ) from error

    @staticmethod
    def new_name(number: int) -> str:
        """The name of a part that is written for entry `number`."""
        return f"{number:020d}-{uuid.uuid4().hex[:12]}.json"

    @staticmethod
    def number_of(name: str) -> int | None:
        match = _NAME.fullmatch(name)
        return None if match is None else int(match.group(1))


class Part:
    """Some of a directory's files, in the order in which they were added. They are read when they are asked for."""

    def __init__(
        self, name: str, count: int, schemas: Sequence[str], read: Callable[[str], Any]
    ) -> None:
        self.name, self.count, self.schemas = name, count, tuple(schemas)
        self._read = read

    @cached_property
    def files(self) -> tuple[DataFile, ...]:
        """
        Raises:
            TargetError: the part was removed, or is damaged. OSError: not readable.
        """
        data = self._read(self.name)
        try:
            files = tuple(DataFile(**file) for file in data["files"])
            if strange := next((file.path for file in files if not is_below(file.path)), None):
                raise ValueError(f"{strange!r} is not a file below the directory")
            if len(files) != self.count:
                raise ValueError(f"it has {len(files)} files, and not {self.count}")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TargetError(
                f"{self.name} is a damaged part of a log of spark-channel: {error!r}. Restore it, or move the folder "
                f"{LOG} away to read every file of the directory"
            ) from error
        return files

    @classmethod
    def from_files(cls, name: str, files: Sequence[DataFile]) -> "Part":
        """A part that was just written."""
        schemas = sorted({file.schema for file in files if file.schema})
        part = cls(name, len(files), schemas, _never_read)
        part.__dict__["files"] = tuple(files)
        return part

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Part) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[DataFile]:
        return iter(self.files)

    def to_json(self) -> list[Any]:
        return [self.name, self.count, list(self.schemas)]


@dataclass(frozen=True, slots=True)
class Replaced:
    """A file that was replaced in entry `number`: by an overwrite, or `merged` into one that has its rows.

    It may be read until the time `until` (ISO, UTC).
    """

    file: DataFile
    number: int
    until: str
    merged: bool = False

    def to_json(self) -> list[Any]:
        return [self.file.to_json(), self.number, self.until, *([True] if self.merged else [])]


@dataclass(frozen=True, slots=True)
class RemovedFiles:
    """Files that were replaced together, see `Replaced`. To iterate reads their part."""

    number: int
    until: str
    merged: bool
    files: tuple[DataFile, ...] | Part
    """Those that the entry names itself, or a part of them."""

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[Replaced]:
        for file in self.files:
            yield Replaced(file, self.number, self.until, self.merged)

    @property
    def schemas(self) -> set[str]:
        """The keys of the schemas of all files."""
        if isinstance(self.files, Part):
            return set(self.files.schemas)
        return {file.schema for file in self.files if file.schema}

    def folded(self, write: Callable[[Sequence[DataFile]], Part]) -> list["RemovedFiles"]:
        """The same files, of which an entry has to name few itself. `write` keeps files as a part."""
        if isinstance(self.files, Part) or len(self.files) <= _NEWEST:
            return [self]
        starts = range(0, len(self.files), _REMOVED)
        return [
            replace(self, files=write(self.files[start : start + _REMOVED])) for start in starts
        ]


class OlderJobs:
    """When jobs were published that the entry itself does not name any more, in a separate part."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    @cached_property
    def published(self) -> dict[str, str]:
        """
        Raises:
            TargetError: the part was removed, or is damaged. OSError: not readable.
        """
        content = self._read(self.name)
        jobs = content.get("jobs") if isinstance(content, dict) else None
        if not isinstance(jobs, dict):
            raise TargetError(
                f"{self.name} is a damaged part of a log of spark-channel: it has no jobs. Restore it, or move the "
                f"folder {LOG} away to read every file of the directory"
            )
        return jobs


@dataclass(frozen=True, slots=True)
class Merged:
    """A file whose rows are in a merged one. `of`: the places, in the list, of those that it was merged from itself."""

    path: str
    nbytes: int
    mtime_ns: int
    of: tuple[int, ...] = ()


class Merge:
    """The files from which one was merged, in a separate part: streams that took them do not take their rows again.

    All merges of an entry are in one part, each in its `place`; None: the part has this one alone.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[str], Any],
        files: Sequence[Merged] | None = None,
        place: int | None = None,
    ) -> None:
        self.name, self.place = name, place
        """`name` is the part's; "" until it is written."""
        self._read = read
        if files is not None:
            self.__dict__["files"] = tuple(files)

    @cached_property
    def files(self) -> tuple[Merged, ...]:
        """Each file behind those that it was merged from.

        Raises:
            TargetError: the part was removed, or is damaged. OSError: not readable.
        """
        data = self._read(self.name)
        try:
            files = tuple(
                Merged(str(path), int(nbytes), int(mtime_ns), tuple(of))
                for path, nbytes, mtime_ns, of in (
                    data["merged"] if self.place is None else data["merges"][self.place]
                )
            )
            if any(
                not 0 <= source < index for index, file in enumerate(files) for source in file.of
            ):
                raise ValueError("a file comes before those that it was merged from")
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise TargetError(
                f"{self.name} is a damaged part of a log of spark-channel: {error!r}. Restore it, or move the folder "
                f"{LOG} away to read every file of the directory"
            ) from error
        return files

    @property
    def sources(self) -> list[int]:
        """The places of the files that were merged last."""
        inner = {source for file in self.files for source in file.of}
        return [index for index in range(len(self.files)) if index not in inner]

    @classmethod
    def from_sources(cls, sources: Sequence[tuple[DataFile, int, "Merge | None"]]) -> "Merge":
        """Of sources: each with its time of change, and what it was merged from itself."""
        files: list[Merged] = []
        for source, mtime_ns, before in sources:
            start = len(files)
            of: tuple[int, ...] = ()
            if before is not None:
                files += [
                    replace(file, of=tuple(start + source for source in file.of))
                    for file in before.files
                ]
                of = tuple(start + source for source in before.sources)
            files.append(Merged(source.path, source.nbytes, mtime_ns, of))
        return cls("", _never_read, files)

    def to_json(self) -> list[Any]:
        return [[file.path, file.nbytes, file.mtime_ns, list(file.of)] for file in self.files]


def _never_read(name: str) -> Any:
    raise AssertionError(f"the files of {name} are known")


@dataclass(frozen=True)
class FileList:
    """The visible files of a directory, in the order in which they were added. Immutable.

    To iterate reads every part; to count the files, or to add some, reads none.
    """

    parts: tuple[Part, ...] = ()
    newest: tuple[DataFile, ...] = ()

    def __len__(self) -> int:
        return sum(part.count for part in self.parts) + len(self.newest)

    def __iter__(self) -> Iterator[DataFile]:
        for part in self.parts:
            yield from part.files
        yield from self.newest

    def adding(self, files: Sequence[DataFile]) -> "FileList":
        return FileList(self.parts, (*self.newest, *files))

    def merging(self, merged: Mapping[str, DataFile], gone: Container[str]) -> "FileList":
        """Without the files `gone`; those of `merged` are in the place of the file that is their key."""
        files = (
            merged.get(file.path, file)
            for file in self
            if file.path in merged or file.path not in gone
        )
        return FileList(newest=tuple(files))

    def removed(self, number: int, until: str) -> tuple[RemovedFiles, ...]:
        """All files as replaced, see `Replaced`. A part that is small enough stays as it is."""
        parts = (part if part.count <= _REMOVED else part.files for part in self.parts)
        lists = (*parts, *((self.newest,) if self.newest else ()))
        return tuple(RemovedFiles(number, until, False, files) for files in lists)

    def sharing(self, other: "FileList") -> "FileList":
        """The same files, with those parts of `other` that are the same: these may have been read."""
        known_parts = {part.name: part for part in other.parts}
        return FileList(tuple(known_parts.get(part.name, part) for part in self.parts), self.newest)

    @property
    def schemas(self) -> set[str]:
        """The keys of the schemas of all files."""
        return {key for part in self.parts for key in part.schemas} | {
            file.schema for file in self.newest if file.schema
        }

    def missing(self, paths: Sequence[str]) -> list[str]:
        """Those of `paths` that are not in the list. Those that were added last are found without a part."""
        newest = {file.path for file in self.newest}
        missing = [path for path in paths if path not in newest]
        for part in reversed(self.parts):
            if not missing:
                break
            listed = {file.path for file in part.files}
            missing = [path for path in missing if path not in listed]
        return missing

    def folded(self, write: Callable[[Sequence[DataFile]], Part]) -> "FileList":
        """The same files, of which an entry has to name few itself. `write` keeps files as a part."""
        if len(self.newest) <= _NEWEST:
            return self
        parts, files = list(self.parts), list(self.newest)
        # As one counts: ten of one size are one of the next.
        while len(parts) >= _MERGED - 1 and all(
            _size_class(part.count) <= _size_class(len(files)) for part in parts[1 - _MERGED :]
        ):
            merged = parts[1 - _MERGED :]
            del parts[1 - _MERGED :]
            files[:0] = [file for part in merged for file in part.files]
        return FileList((*parts, write(files)))


def _size_class(count: int) -> int:
    size, limit = 0, _NEWEST * _MERGED
    while count >= limit:
        size, limit = size + 1, limit * _MERGED
    return size


def parts_of(data: Mapping[str, Any], read: Callable[[str], Any]) -> tuple[Part, ...]:
    """The parts that an entry names.

    Raises:
        ValueError, TypeError: it is damaged.
    """
    return tuple(
        Part(_checked(name), int(count), schemas, read)
        for name, count, schemas in data.get("parts", ())
    )


def older_jobs_of(data: Mapping[str, Any], read: Callable[[str], Any]) -> OlderJobs | None:
    """
    Raises:
        ValueError, TypeError: the entry is damaged.
    """
    name = data.get("olderJobs")
    return None if name is None else OlderJobs(_checked(name), read)


def merges_of(data: Mapping[str, Any], read: Callable[[str], Any]) -> dict[str, Merge]:
    """By the paths of merged files.

    Raises:
        ValueError, TypeError: the entry is damaged.
    """
    read_once = cache(read)

    def merge(where: Any) -> Merge:
        if isinstance(where, str):
            return Merge(_checked(where), read_once)
        name, index = where
        return Merge(_checked(name), read_once, place=int(index))

    return {str(path): merge(where) for path, where in data.get("merges", {}).items()}


def removed_of(data: Mapping[str, Any], read: Callable[[str], Any]) -> tuple[RemovedFiles, ...]:
    """The replaced files that an entry names itself, and the parts of others.

    Raises:
        KeyError, ValueError, TypeError: the entry is damaged.
    """
    named = [
        Replaced(DataFile(**file), _number(number), until, bool(merged))
        for file, number, until, *merged in data["removed"]
    ]
    groups = groupby(named, lambda file: (file.number, file.until, file.merged))
    return (
        *(RemovedFiles(*of, tuple(file.file for file in files)) for of, files in groups),
        *(
            RemovedFiles(
                _number(number),
                str(until),
                bool(merged),
                Part(_checked(name), int(count), schemas, read),
            )
            for number, until, merged, (name, count, schemas) in data.get("removedParts", ())
        ),
    )


def _number(number: object) -> int:
    if type(number) is not int:
        raise ValueError(f"{number!r} is not the number of an entry")
    return number


def _checked(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is not the name of a part of the log")
    return name
