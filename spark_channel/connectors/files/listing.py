"""Which files a path means: a file, a directory with all below it, or a glob; with their partitions.

Hidden names are skipped, as Spark does, and of a directory with a manifest only the listed files
are taken. The order is that of the paths, so that every listing of the same files is the same.
"""

import fnmatch
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs as pafs

from spark_channel.connectors.base.types import is_plain
from spark_channel.connectors.files.claims import OwnedFileNames, is_ours
from spark_channel.connectors.files.filesystem import (
    Location,
    find_replaced,
    is_hidden,
    is_internal,
    read_file,
    reading,
)
from spark_channel.connectors.files.log import (
    FORMAT,
    SUCCESS,
    Dialect,
    Entry,
    Manifest,
    newest_entry,
)
from spark_channel.connectors.files.parts import DataFile, FileList, Merge
from spark_channel.errors import SourceError, TargetError
from spark_channel.final_errors import of_input
from spark_channel.plain_text import log_of

__all__ = [
    "OURS",
    "UNCHANGING",
    "SourceFile",
    "Visible",
    "beside",
    "combined",
    "data_files",
    "files_of_prefix",
    "has_files",
    "list_files",
    "merge_of",
    "origins",
    "partition_fields",
    "partition_value",
    "read_success",
    "unmerged",
    "visible",
    "with_present_files",
]


# The visible files of a directory: those of the newest log entry, or all.
#
# Another writer that ends a write there, such as Spark, replaces `_SUCCESS`: then its files count as well.


OURS = f'{{"manifest": "{FORMAT}", "log": "_spark_channel"}}\n'.encode()
"""The content of `_SUCCESS` in a directory that has a log."""
_READS = 10


@dataclass(frozen=True)
class Visible:
    """`manifest` None: every data file. `success`: an identity of the present `_SUCCESS` file ("" = none, or ours)."""

    manifest: Manifest | None
    success: str
    entry: Entry | None = None


def visible(place: Location, directory: str) -> Visible:
    """Read what holds in `directory`: a listing and two small files.

    Raises:
        TargetError: a damaged log or manifest. OSError: not readable.
    """
    # `_SUCCESS` first: an entry that counts it in is written before it is replaced.
    found = read_success(place, directory)
    return combined(place, directory, newest_entry(place, directory), found)


def read_success(place: Location, directory: str) -> str:
    """Return the identity of another writer's `_SUCCESS`; "" if there is none, or it is spark-channel's.

    Raises:
        TargetError: it changes all the time.
    """
    path = posixpath.join(directory, SUCCESS)
    for _ in range(_READS):
        before = place.fs.get_file_info(path)
        raw = read_file(place, path)
        if raw is None or raw == OURS:
            return ""
        after = place.fs.get_file_info(path)
        if (before.size, before.mtime_ns) == (after.size, after.mtime_ns):
            return f"{after.size}-{after.mtime_ns}"
    raise TargetError(
        f"{place.show(path)} changes all the time; run again when the other writers have ended"
    )


def combined(place: Location, directory: str, entry: Entry | None, success: str) -> Visible:
    """The visible files by the log's newest entry and the identity of `_SUCCESS` together."""
    if entry is None:
        return Visible(None, success)
    made = entry.manifest
    if success in ("", made.success):
        return Visible(made, made.success, entry)
    return Visible(with_files_of_others(made, data_files(place, directory)), success, entry)


def with_files_of_others(made: Manifest, there: Mapping[str, pafs.FileInfo]) -> Manifest:
    """The manifest with the files that another writer has put there, without those that it has removed."""
    listed = {file.path for file in made.files}
    gone = {each.file.path for each in made.replaced()}
    kept = [file for file in made.files if file.path in there]
    more = [
        DataFile(path, info.size, mtime_ns=info.mtime_ns)
        for path, info in sorted(there.items())
        if path not in listed and path not in gone and not is_ours(path)
    ]
    return replace(made, files=FileList(newest=(*kept, *more)))


def files_of_prefix(place: Location, directory: str, prefix: str) -> dict[str, pafs.FileInfo]:
    """The files in the directory itself whose names begin with `prefix`, by their names."""
    selector = pafs.FileSelector(directory, allow_not_found=True)
    return {
        info.base_name: info
        for info in place.fs.get_file_info(selector)
        if info.type == pafs.FileType.File and info.base_name.startswith(prefix)
    }


def has_files(place: Location) -> bool:
    """Whether the place is a file, or a directory with one that is not hidden, whatever is in it."""
    kind = place.info(place.path).type
    if kind == pafs.FileType.Directory:
        return next(iter(_walk(place, place.path)), None) is not None
    return bool(kind != pafs.FileType.NotFound)


def with_present_files(
    made: Manifest, there: Mapping[str, pafs.FileInfo], names: OwnedFileNames
) -> Manifest:
    """The manifest of a prefix with the files that are there now: other programs take and replace files freely."""
    replaced = {(each.file.path, each.file.nbytes, each.file.mtime_ns) for each in made.replaced()}
    ours = [
        file for file in made.files if names.run_of(file.path) is not None and file.path in there
    ]
    others = [
        DataFile(path, info.size, mtime_ns=info.mtime_ns)
        for path, info in sorted(there.items())
        if names.run_of(path) is None and (path, info.size, info.mtime_ns) not in replaced
    ]
    present = (*ours, *others)
    return made if present == tuple(made.files) else replace(made, files=FileList(newest=present))


def data_files(place: Location, directory: str) -> dict[str, pafs.FileInfo]:
    """Every file in the directory that is not hidden, by its path relative to it."""
    found = {}
    pending = [directory]
    while pending:
        here = pending.pop()
        for info in place.fs.get_file_info(pafs.FileSelector(here, allow_not_found=True)):
            if is_hidden(info.base_name) or info.base_name == SUCCESS:
                continue
            if info.type == pafs.FileType.Directory:
                pending.append(info.path)
            elif info.type == pafs.FileType.File:
                found[posixpath.relpath(info.path, directory)] = info
    return found


UNCHANGING = -1
"""In place of a file's time of change, where a log says that the file is never written again."""

_log = log_of(__name__)

_GLOB = re.compile(r"[*?\[{]")
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file to read, as it was when it was listed. `listed` is what a manifest says of it.

    `tag`: what its store says of this version, beside size and time; '' = nothing, or it was not asked yet.
    """

    root: str
    path: str
    size: int
    mtime_ns: int
    partition: tuple[tuple[str, str | None], ...] = ()
    listed: DataFile | None = None
    manifest: Manifest | None = None
    tag: str = ""

    @property
    def written(self) -> tuple[pa.Schema, Dialect] | None:
        """The columns and the dialect with which spark-channel wrote the file; None = the log does not say it."""
        if self.manifest is None or self.listed is None or self.listed.schema is None:
            return None
        key = self.listed.schema
        return self.manifest.schemas[key], self.manifest.dialects.get(key, {})


def beside(
    file: SourceFile, path: str, nbytes: int, mtime_ns: int, listed: DataFile | None = None
) -> SourceFile:
    """Another file of the same directory's log, of which `path` is relative to that directory."""
    assert file.listed is not None
    directory = file.path.removesuffix(file.listed.path)
    return replace(
        file, path=directory + path, size=nbytes, mtime_ns=mtime_ns, listed=listed, tag=""
    )


def merge_of(file: SourceFile) -> Merge | None:
    """What the file was merged from; None = it was not."""
    if file.manifest is None or file.listed is None:
        return None
    return file.manifest.merges.get(file.listed.path)


def origins(file: SourceFile) -> list[SourceFile]:
    """The files that jobs wrote, of which the file has the rows; most of a merged file's are not there any more."""
    merge = merge_of(file)
    if merge is None:
        return [file]
    return [beside(file, one.path, one.nbytes, one.mtime_ns) for one in merge.files if not one.of]


def unmerged(files: Iterable[SourceFile]) -> Iterator[SourceFile]:
    """The files as they were before merges, as far as these are still kept."""
    kept: dict[int, dict[str, DataFile]] = {}
    pending = list(files)[::-1]
    while pending:
        file = pending.pop()
        merge = merge_of(file)
        if merge is None or file.manifest is None:
            yield file
            continue
        if id(file.manifest) not in kept:
            kept[id(file.manifest)] = {
                each.path: each
                for files in file.manifest.removed
                if files.merged
                for each in files.files
            }
        there = kept[id(file.manifest)]
        if not there:  # then what it was merged from is not read
            yield file
            continue
        sources = [merge.files[place] for place in merge.sources]
        if all(each.path in there for each in sources):
            pending += [
                beside(file, each.path, each.nbytes, each.mtime_ns, there[each.path])
                for each in sources[::-1]
            ]
        else:
            yield file


def list_files(
    place: Location,
    *,
    base: str | None = None,
    partitions: bool = True,
    manifests: bool = True,
    keep: Callable[[pafs.FileInfo], bool] = lambda _: True,
    hidden: bool = False,
) -> list[SourceFile]:
    """The files that `place` means, in the order of their paths.

    `base`: where partition folders begin (default: at `place`). `keep`: a filter of single files; merged ones are all
    there.
    `hidden`: whether files with names of hidden files count, except those of spark-channel. An empty directory
    gives []; so does a directory of hidden files.

    Raises:
        SourceError: missing, unreadable, a glob that matches nothing, or a listed file that was removed.
    """
    with reading(place.show()):
        found, literal = _found(place, manifests, is_internal if hidden else is_hidden)
        start = base or (place.path if literal else _fixed_part(place.path))
        files = []
        by_folder: dict[str, tuple[tuple[str, str | None], ...]] = {}
        # Stores list in orders of their own (findings/seaweedfs-lists-in-its-own-order.sh).
        for info, listed, manifest in sorted(found, key=lambda item: item[0].path):
            is_merged = manifest and listed and listed.path in manifest.merges
            if is_merged or keep(info):
                folder = info.path.rpartition("/")[0]
                partition = by_folder.get(folder) if partitions else ()
                if partition is None:
                    partition = by_folder[folder] = _partition(info.path, start)
                files.append(
                    SourceFile(
                        place.root,
                        info.path,
                        info.size or 0,
                        info.mtime_ns or 0,
                        partition,
                        listed,
                        manifest,
                    )
                )
        return files


_Found = tuple[pafs.FileInfo, DataFile | None, Manifest | None]


_Skips = Callable[[str], bool]
"""Whether a name is not read."""


def _found(place: Location, manifests: bool, skips: _Skips) -> tuple[list[_Found], bool]:
    """(the files, whether the path is their name and not a pattern)."""
    info = place.info(place.path)
    if info.type == pafs.FileType.File:
        if place.has_objects_below(place.path):
            raise SourceError(
                f"{place.show()} is an object, and others are below {place.show()}/, so that the path has two "
                f"meanings. Read {place.show()}/* for those below it, or move one of the two away"
            )
        return [(info, None, None)], True
    if info.type == pafs.FileType.Directory:
        # First what is visible, then the files: those that a write adds in between are not listed, and not read.
        top = _manifest(place, place.path) if manifests else None
        known = {place.path: top}
        shown = _visible(
            place,
            list(_walk(place, place.path, skips)),
            place.path,
            manifests,
            known,
            all_listed=True,
        )
        return shown, True
    matches = list(_glob(place, skips)) if _GLOB.search(place.path) else []
    if not matches:
        what = "matches no file" if _GLOB.search(place.path) else "does not exist"
        raise of_input(SourceError(f"{place.show()} {what}"))
    files: dict[str, pafs.FileInfo] = {}
    for match in matches:
        inside = (
            _walk(place, match.path, skips) if match.type == pafs.FileType.Directory else [match]
        )
        files |= {found.path: found for found in inside}
    return _visible(place, list(files.values()), _fixed_part(place.path), manifests), False


def _walk(place: Location, directory: str, skips: _Skips = is_hidden) -> Iterator[pafs.FileInfo]:
    """Every file below `directory` whose name, and those of its folders, are not skipped."""
    if not place.renames:
        # One request lists a whole tree of an object store.
        for info in place.fs.get_file_info(pafs.FileSelector(directory, recursive=True)):
            inside = posixpath.relpath(info.path, directory)
            if info.type == pafs.FileType.File and not any(
                skips(part) for part in inside.split("/")
            ):
                yield info
        return
    for info in place.fs.get_file_info(pafs.FileSelector(directory)):
        if skips(info.base_name):
            continue
        if info.type == pafs.FileType.Directory:
            yield from _walk(place, info.path, skips)
        elif info.type == pafs.FileType.File:
            yield info


def _manifest(place: Location, directory: str) -> Manifest | None:
    try:
        made = visible(place, directory).manifest
        # Its parts are read now: later they may be gone.
        return None if made is None else replace(made, files=FileList(newest=tuple(made.files)))
    except TargetError as error:
        raise SourceError(str(error)) from error


def _visible(
    place: Location,
    files: list[pafs.FileInfo],
    top: str,
    manifests: bool,
    known: dict[str, Manifest | None] | None = None,
    *,
    all_listed: bool = False,
) -> list[_Found]:
    """Without the files that the manifest of their nearest directory does not list.

    `all_listed`: with every file that these list; a pattern may mean a part of them.
    """
    if not manifests:
        return [(info, None, None) for info in files]
    known = {} if known is None else known
    indexes: dict[str, dict[str, DataFile]] = {}

    def nearest(directory: str) -> tuple[str, Manifest] | None:
        if directory not in known:
            known[directory] = _manifest(place, directory)
        manifest = known[directory]
        if manifest is not None:
            return directory, manifest
        above = posixpath.dirname(directory)
        return nearest(above) if directory != top and above != directory else None

    nearest(top)
    shown: list[_Found] = []
    skipped: dict[str, list[str]] = {}
    seen: dict[str, set[str]] = {}
    for info in files:
        owner = nearest(posixpath.dirname(info.path))
        if owner is None:
            shown.append((info, None, None))
            continue
        directory, manifest = owner
        inside = posixpath.relpath(info.path, directory)
        if directory not in indexes:
            indexes[directory] = {file.path: file for file in manifest.files}
        listed = indexes[directory].get(inside)
        if listed is None:
            skipped.setdefault(directory, []).append(inside)
        else:
            seen.setdefault(directory, set()).add(inside)
            shown.append((info, listed, manifest))
    for directory, names in skipped.items():
        _log.info(
            "%s: %d files are not in its manifest and are not read",
            place.show(directory),
            len(names),
        )
    if all_listed:
        for directory, found in known.items():
            if found is not None:
                shown.extend(_not_walked(place, directory, found, seen.get(directory, set())))
    return shown


def _not_walked(
    place: Location, directory: str, manifest: Manifest, seen: set[str]
) -> Iterator[_Found]:
    """Listed files that a listing of the directory did not show: a write added or replaced them meanwhile."""
    for file in manifest.files:
        if file.path in seen:
            continue
        path = posixpath.join(directory, file.path)
        info = place.fs.get_file_info(path)
        if info.type != pafs.FileType.File:
            kept = find_replaced(place.fs, path) if place.renames else None
            if kept is None:
                raise SourceError(
                    f"{place.show(path)} is listed in the log of its directory and was removed; read the existing "
                    "files with option useManifest=false"
                )
            info = pafs.FileInfo(path, pafs.FileType.File, size=kept.size, mtime_ns=kept.mtime_ns)
        yield info, file, manifest


def _fixed_part(path: str) -> str:
    """The directory above the first glob of `path`; `path` itself without one."""
    parts = path.split("/")
    for number, part in enumerate(parts):
        if _GLOB.search(part):
            return "/".join(parts[:number]) or "/"
    return path


def _glob(place: Location, skips: _Skips) -> Iterator[pafs.FileInfo]:
    """Files and directories that match; `**` means any number of directories, `{a,b}` either."""
    seen: set[tuple[str, pafs.FileType]] = set()
    for pattern in _braces(place.path.replace("[!/]", "?")):
        # How a uri writes ?, which begins its parameters.
        start = _fixed_part(pattern)
        rest = pattern[len(start) :].strip("/")
        for info in _match(place, start, rest.split("/") if rest else [], skips):
            if (info.path, info.type) not in seen:
                seen.add((info.path, info.type))
                yield info


def _match(
    place: Location, directory: str, parts: list[str], skips: _Skips
) -> Iterator[pafs.FileInfo]:
    if not parts:
        info = place.info(directory)
        if info.type != pafs.FileType.NotFound:
            yield info
        if info.type == pafs.FileType.File and place.has_objects_below(directory):
            yield pafs.FileInfo(directory, pafs.FileType.Directory)
        return
    part, rest = parts[0], parts[1:]
    if part == "**":
        yield from _match(place, directory, rest or ["*"], skips)
    elif not _GLOB.search(part):
        yield from _match(place, posixpath.join(directory, part), rest, skips)
        return
    kind = place.info(directory).type
    if kind != pafs.FileType.Directory and not (
        kind == pafs.FileType.File and place.has_objects_below(directory)
    ):
        return
    matches = re.compile(fnmatch.translate(part.replace("[^", "[!"))).match
    for info in place.fs.get_file_info(pafs.FileSelector(directory)):
        if skips(info.base_name) and not part.startswith((".", "_")):
            continue
        if part == "**":
            if info.type == pafs.FileType.Directory:
                yield from _match(place, info.path, parts, skips)
        elif matches(info.base_name):
            if rest:
                yield from _match(place, info.path, rest, skips)
            else:
                yield info


def _braces(pattern: str) -> list[str]:
    match = re.search(r"\{([^{}]*)\}", pattern)
    if match is None:
        return [pattern]
    head, tail = pattern[: match.start()], pattern[match.end() :]
    return [made for choice in match.group(1).split(",") for made in _braces(head + choice + tail)]


def _partition(path: str, base: str) -> tuple[tuple[str, str | None], ...]:
    inside = posixpath.relpath(posixpath.dirname(path), base)
    found = []
    for part in inside.split("/"):
        name, equals, value = part.partition("=")
        if equals and name:
            found.append((unquote(name), None if value == _NULL_PARTITION else unquote(value)))
    return tuple(found)


# Partition columns: the values in folder names such as `year=2024`, typed as Spark types them where no value changes.
#
# So `01` and `2020-W01` stay text, which Spark reads as a number and a time.


def _int(text: str, kind: pa.DataType) -> int:
    value = int(text)
    if not -(2 ** (kind.bit_width - 1)) <= value < 2 ** (kind.bit_width - 1):
        raise ValueError
    return value


def _float(text: str, kind: pa.DataType) -> float:
    return float(text)


def _decimal(text: str, kind: pa.DataType) -> Decimal:
    value = Decimal(int(text))
    if len(value.as_tuple().digits) > kind.precision:
        raise ValueError
    return value


def _date(text: str, kind: pa.DataType) -> date:
    return date.fromisoformat(text)


def _time(text: str, kind: pa.DataType) -> datetime:
    value = datetime.fromisoformat(text)
    if value.tzinfo is not None:
        raise ValueError
    return value


def _text(text: str, kind: pa.DataType) -> str:
    return text


_LADDER: tuple[tuple[pa.DataType, Callable[[str, pa.DataType], Any]], ...] = (
    (pa.int32(), _int),
    (pa.int64(), _int),
    (pa.decimal128(38, 0), _decimal),
    (pa.float64(), _float),
    (pa.date32(), _date),
    (pa.timestamp("us"), _time),
    (pa.string(), _text),
)


def _fits(texts: Iterable[str], kind: pa.DataType, read: Callable[[str, pa.DataType], Any]) -> bool:
    """Whether each text is a value of `kind` that gives it back."""
    try:
        for text in texts:
            if not is_plain(text, kind):
                return False
            read(text, kind)
    except ValueError:
        return False
    return True


def partition_fields(files: Sequence[SourceFile]) -> list[pa.Field]:
    """The partition columns that all files share, with the narrowest type that holds every value.

    Raises:
        SourceError: some files lie in other partition folders than the rest.
    """
    names: tuple[str, ...] | None = None
    values: dict[str, set[str]] = {}
    for file in files:
        own = tuple(name for name, _ in file.partition)
        if names is not None and own != names:
            raise SourceError(
                f"{file.path} lies under partition columns {list(own)}, "
                f"and {files[0].path} under {list(names)}; "
                "read each tree separately, or set recursiveFileLookup=true to read without partition columns"
            )
        names = own
        for name, value in file.partition:
            found = values.setdefault(name, set())
            if value is not None:
                found.add(value)
    fields = []
    for name, texts in values.items():
        kind = (
            next(kind for kind, read in _LADDER if _fits(texts, kind, read))
            if texts
            else pa.string()
        )
        fields.append(pa.field(name, kind))
    return fields


def partition_value(name: str, text: str | None, kind: pa.DataType) -> pa.Scalar:
    """The value of a folder's name in its column's type.

    Raises:
        SourceError: it does not fit.
    """
    if text is None:
        return pa.scalar(None, kind)
    for rung, read in _LADDER:
        if rung == kind:
            try:
                return pa.scalar(read(text, rung), rung)
            except ValueError:
                break
    else:
        try:
            return pa.scalar(text, pa.string()).cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            pass
    raise SourceError(
        f"folder {name}={text}: the value is not of the partition column's type {kind}. "
        f"Rename the folder, or give {name!r} another type in the schema"
    )
