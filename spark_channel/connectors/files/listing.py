"""Which files a path means: a file, a directory with all below it, or a glob; with their partitions.

Hidden names are skipped, as Spark does, and of a directory with a manifest only the listed files
are taken. The order is that of the paths, so that every listing of the same files is the same.
"""

import fnmatch
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs as pafs

from spark_channel.connectors.files.file_errors import reading
from spark_channel.connectors.files.filesystem import (
    Location,
    find_replaced,
    is_hidden,
    is_internal,
)
from spark_channel.connectors.files.manifest import Dialect, Manifest
from spark_channel.connectors.files.parts import DataFile, FileList, Merge
from spark_channel.connectors.files.visible_files import visible, walk
from spark_channel.errors import SourceError, TargetError
from spark_channel.final_errors import of_input
from spark_channel.plain_text import log_of

__all__ = [
    "UNCHANGING",
    "SourceFile",
    "beside",
    "list_files",
    "merge_of",
    "origins",
    "unmerged",
]


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
    file: SourceFile, path: str, nbytes: int, mtime_ns: int, data_file: DataFile | None = None
) -> SourceFile:
    """Another file of the same directory's log, of which `path` is relative to that directory."""
    assert file.listed is not None
    directory = file.path.removesuffix(file.listed.path)
    return replace(
        file, path=directory + path, size=nbytes, mtime_ns=mtime_ns, listed=data_file, tag=""
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
    before_merges: dict[int, dict[str, DataFile]] = {}
    pending = list(files)[::-1]
    while pending:
        file = pending.pop()
        merge = merge_of(file)
        if merge is None or file.manifest is None:
            yield file
            continue
        if id(file.manifest) not in before_merges:
            before_merges[id(file.manifest)] = {
                data_file.path: data_file
                for files in file.manifest.removed
                if files.merged
                for data_file in files.files
            }
        sources_there = before_merges[id(file.manifest)]
        if not sources_there:  # then what it was merged from is not read
            yield file
            continue
        sources = [merge.files[index] for index in merge.sources]
        if all(source.path in sources_there for source in sources):
            pending += [
                beside(
                    file, source.path, source.nbytes, source.mtime_ns, sources_there[source.path]
                )
                for source in sources[::-1]
            ]
        else:
            yield file


def list_files(
    location: Location,
    *,
    base: str | None = None,
    partitions: bool = True,
    manifests: bool = True,
    keep: Callable[[pafs.FileInfo], bool] = lambda _: True,
    hidden: bool = False,
) -> list[SourceFile]:
    """The files that `location` means, in the order of their paths.

    `base`: where partition folders begin (default: at `location`). `keep`: a filter of single files; merged ones are
    all there.
    `hidden`: whether files with names of hidden files count, except those of spark-channel. An empty directory
    gives []; so does a directory of hidden files.

    Raises:
        SourceError: missing, unreadable, a glob that matches nothing, or a listed file that was removed.
    """
    with reading(location.show()):
        found_files, literal = _found(location, manifests, is_internal if hidden else is_hidden)
        start = base or (location.path if literal else _fixed_part(location.path))
        files = []
        by_folder: dict[str, tuple[tuple[str, str | None], ...]] = {}
        # Stores list in orders of their own (findings/seaweedfs-lists-in-its-own-order.sh).
        for info, data_file, manifest in sorted(found_files, key=lambda item: item[0].path):
            is_merged = manifest and data_file and data_file.path in manifest.merges
            if is_merged or keep(info):
                folder = info.path.rpartition("/")[0]
                partition = by_folder.get(folder) if partitions else ()
                if partition is None:
                    partition = by_folder[folder] = _partition(info.path, start)
                files.append(
                    SourceFile(
                        location.root,
                        info.path,
                        info.size or 0,
                        info.mtime_ns or 0,
                        partition,
                        data_file,
                        manifest,
                    )
                )
        return files


_Found = tuple[pafs.FileInfo, DataFile | None, Manifest | None]


_Skips = Callable[[str], bool]
"""Whether a name is not read."""


def _found(location: Location, manifests: bool, skips: _Skips) -> tuple[list[_Found], bool]:
    """(the files, whether the path is their name and not a pattern)."""
    info = location.info(location.path)
    if info.type == pafs.FileType.File:
        if location.has_objects_below(location.path):
            raise SourceError(
                f"{location.show()} is an object, and others are below {location.show()}/, so that the path has two "
                f"meanings. Read {location.show()}/* for those below it, or move one of the two away"
            )
        return [(info, None, None)], True
    if info.type == pafs.FileType.Directory:
        # First what is visible, then the files: those that a write adds in between are not listed, and not read.
        top = _manifest(location, location.path) if manifests else None
        manifests_read = {location.path: top}
        visible_files = _visible(
            location,
            list(walk(location, location.path, skips)),
            location.path,
            manifests,
            manifests_read,
            all_listed=True,
        )
        return visible_files, True
    matches = list(_glob(location, skips)) if _GLOB.search(location.path) else []
    if not matches:
        problem = "matches no file" if _GLOB.search(location.path) else "does not exist"
        raise of_input(SourceError(f"{location.show()} {problem}"))
    files: dict[str, pafs.FileInfo] = {}
    for match in matches:
        inside = (
            walk(location, match.path, skips) if match.type == pafs.FileType.Directory else [match]
        )
        files |= {info.path: info for info in inside}
    return _visible(location, list(files.values()), _fixed_part(location.path), manifests), False


def _manifest(location: Location, directory: str) -> Manifest | None:
    try:
        manifest = visible(location, directory).manifest
        # Its parts are read now: later they may be gone.
        return (
            None
            if manifest is None
            else replace(manifest, files=FileList(newest=tuple(manifest.files)))
        )
    except TargetError as error:
        raise SourceError(str(error)) from error


def _visible(
    location: Location,
    files: list[pafs.FileInfo],
    top: str,
    manifests: bool,
    manifests_read: dict[str, Manifest | None] | None = None,
    *,
    all_listed: bool = False,
) -> list[_Found]:
    """Without the files that the manifest of their nearest directory does not list.

    `all_listed`: with every file that these list; a pattern may mean a part of them.
    """
    if not manifests:
        return [(info, None, None) for info in files]
    manifests_read = {} if manifests_read is None else manifests_read
    indexes: dict[str, dict[str, DataFile]] = {}

    def nearest(directory: str) -> tuple[str, Manifest] | None:
        if directory not in manifests_read:
            manifests_read[directory] = _manifest(location, directory)
        manifest = manifests_read[directory]
        if manifest is not None:
            return directory, manifest
        above = posixpath.dirname(directory)
        return nearest(above) if directory != top and above != directory else None

    nearest(top)
    visible_files: list[_Found] = []
    skipped: dict[str, list[str]] = {}
    walked: dict[str, set[str]] = {}
    for info in files:
        owner = nearest(posixpath.dirname(info.path))
        if owner is None:
            visible_files.append((info, None, None))
            continue
        directory, manifest = owner
        inside = posixpath.relpath(info.path, directory)
        if directory not in indexes:
            indexes[directory] = {file.path: file for file in manifest.files}
        data_file = indexes[directory].get(inside)
        if data_file is None:
            skipped.setdefault(directory, []).append(inside)
        else:
            walked.setdefault(directory, set()).add(inside)
            visible_files.append((info, data_file, manifest))
    for directory, names in skipped.items():
        _log.info(
            "%s: %d files are not in its manifest and are not read",
            location.show(directory),
            len(names),
        )
    if all_listed:
        for directory, manifest_there in manifests_read.items():
            if manifest_there is not None:
                visible_files.extend(
                    _not_walked(location, directory, manifest_there, walked.get(directory, set()))
                )
    return visible_files


def _not_walked(
    location: Location, directory: str, manifest: Manifest, walked: set[str]
) -> Iterator[_Found]:
    """Listed files that a listing of the directory did not show: a write added or replaced them meanwhile."""
    for file in manifest.files:
        if file.path in walked:
            continue
        path = posixpath.join(directory, file.path)
        info = location.fs.get_file_info(path)
        if info.type != pafs.FileType.File:
            replaced = find_replaced(location.fs, path) if location.renames else None
            if replaced is None:
                raise SourceError(
                    f"{location.show(path)} is listed in the log of its directory and was removed; read the existing "
                    "files with option useManifest=false"
                )
            info = pafs.FileInfo(
                path, pafs.FileType.File, size=replaced.size, mtime_ns=replaced.mtime_ns
            )
        yield info, file, manifest


def _fixed_part(path: str) -> str:
    """The directory above the first glob of `path`; `path` itself without one."""
    parts = path.split("/")
    for number, part in enumerate(parts):
        if _GLOB.search(part):
            return "/".join(parts[:number]) or "/"
    return path


def _glob(location: Location, skips: _Skips) -> Iterator[pafs.FileInfo]:
    """Files and directories that match; `**` means any number of directories, `{a,b}` either."""
    matched: set[tuple[str, pafs.FileType]] = set()
    for pattern in _braces(location.path.replace("[!/]", "?")):
        # How a uri writes ?, which begins its parameters.
        start = _fixed_part(pattern)
        tail = pattern[len(start) :].strip("/")
        for info in _match(location, start, tail.split("/") if tail else [], skips):
            if (info.path, info.type) not in matched:
                matched.add((info.path, info.type))
                yield info


def _match(
    location: Location, directory: str, parts: list[str], skips: _Skips
) -> Iterator[pafs.FileInfo]:
    if not parts:
        info = location.info(directory)
        if info.type != pafs.FileType.NotFound:
            yield info
        if info.type == pafs.FileType.File and location.has_objects_below(directory):
            yield pafs.FileInfo(directory, pafs.FileType.Directory)
        return
    part, further = parts[0], parts[1:]
    if part == "**":
        yield from _match(location, directory, further or ["*"], skips)
    elif not _GLOB.search(part):
        yield from _match(location, posixpath.join(directory, part), further, skips)
        return
    kind = location.info(directory).type
    if kind != pafs.FileType.Directory and not (
        kind == pafs.FileType.File and location.has_objects_below(directory)
    ):
        return
    matches = re.compile(fnmatch.translate(part.replace("[^", "[!"))).match
    for info in location.fs.get_file_info(pafs.FileSelector(directory)):
        if skips(info.base_name) and not part.startswith((".", "_")):
            continue
        if part == "**":
            if info.type == pafs.FileType.Directory:
                yield from _match(location, info.path, parts, skips)
        elif matches(info.base_name):
            if further:
                yield from _match(location, info.path, further, skips)
            else:
                yield info


def _braces(pattern: str) -> list[str]:
    match = re.search(r"\{([^{}]*)\}", pattern)
    if match is None:
        return [pattern]
    head, tail = pattern[: match.start()], pattern[match.end() :]
    return [path for choice in match.group(1).split(",") for path in _braces(head + choice + tail)]


def _partition(path: str, base: str) -> tuple[tuple[str, str | None], ...]:
    inside = posixpath.relpath(posixpath.dirname(path), base)
    fields = []
    for part in inside.split("/"):
        name, equals, value = part.partition("=")
        if equals and name:
            fields.append((unquote(name), None if value == _NULL_PARTITION else unquote(value)))
    return tuple(fields)
