"""The visible files of a directory: those of the newest log entry, or all.

Another writer that ends a write there, such as Spark, replaces `_SUCCESS`: then its files count as well.
"""

import posixpath
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from pyarrow import fs as pafs

from spark_channel.connectors.files.file_names import OwnedFileNames, is_ours
from spark_channel.connectors.files.filesystem import Location, is_hidden, read_file
from spark_channel.connectors.files.log import Entry, newest_entry
from spark_channel.connectors.files.manifest import FORMAT, SUCCESS, Manifest
from spark_channel.connectors.files.parts import DataFile, FileList
from spark_channel.errors import TargetError

__all__ = [
    "OURS",
    "Visible",
    "combined",
    "data_files",
    "files_of_prefix",
    "has_files",
    "read_success",
    "visible",
    "walk",
    "with_present_files",
]

OURS = f'{{"manifest": "{FORMAT}", "log": "_spark_channel"}}\n'.encode()
"""The content of `_SUCCESS` in a directory that has a log."""
_READS = 10


@dataclass(frozen=True)
class Visible:
    """`manifest` None: every data file. `success`: an identity of the present `_SUCCESS` file ("" = none, or ours)."""

    manifest: Manifest | None
    success: str
    entry: Entry | None = None


def visible(location: Location, directory: str) -> Visible:
    """Read what holds in `directory`: a listing and two small files.

    Raises:
        TargetError: a damaged log or manifest. OSError: not readable.
    """
    # `_SUCCESS` first: an entry that counts it in is written before it is replaced.
    success = read_success(location, directory)
    return combined(location, directory, newest_entry(location, directory), success)


def read_success(location: Location, directory: str) -> str:
    """Return the identity of another writer's `_SUCCESS`; "" if there is none, or it is spark-channel's.

    Raises:
        TargetError: it changes all the time.
    """
    path = posixpath.join(directory, SUCCESS)
    for _ in range(_READS):
        before = location.fs.get_file_info(path)
        raw = read_file(location, path)
        if raw is None or raw == OURS:
            return ""
        after = location.fs.get_file_info(path)
        if (before.size, before.mtime_ns) == (after.size, after.mtime_ns):
            return f"{after.size}-{after.mtime_ns}"
    raise TargetError(
        f"{location.show(path)} changes all the time; run again when the other writers have ended"
    )


def combined(location: Location, directory: str, entry: Entry | None, success: str) -> Visible:
    """The visible files by the log's newest entry and the identity of `_SUCCESS` together."""
    if entry is None:
        return Visible(None, success)
    manifest = entry.manifest
    if success in ("", manifest.success):
        return Visible(manifest, manifest.success, entry)
    return Visible(with_files_of_others(manifest, data_files(location, directory)), success, entry)


def with_files_of_others(manifest: Manifest, files_there: Mapping[str, pafs.FileInfo]) -> Manifest:
    """The manifest with the files that another writer has put there, without those that it has removed."""
    listed_paths = {file.path for file in manifest.files}
    gone = {replaced.file.path for replaced in manifest.replaced()}
    still_there = [file for file in manifest.files if file.path in files_there]
    others = [
        DataFile(path, info.size, mtime_ns=info.mtime_ns)
        for path, info in sorted(files_there.items())
        if path not in listed_paths and path not in gone and not is_ours(path)
    ]
    return replace(manifest, files=FileList(newest=(*still_there, *others)))


def files_of_prefix(location: Location, directory: str, prefix: str) -> dict[str, pafs.FileInfo]:
    """The files in the directory itself whose names begin with `prefix`, by their names."""
    selector = pafs.FileSelector(directory, allow_not_found=True)
    return {
        info.base_name: info
        for info in location.fs.get_file_info(selector)
        if info.type == pafs.FileType.File and info.base_name.startswith(prefix)
    }


def has_files(location: Location) -> bool:
    """Whether the place is a file, or a directory with one that is not hidden, whatever is in it."""
    kind = location.info(location.path).type
    if kind == pafs.FileType.Directory:
        return next(iter(walk(location, location.path)), None) is not None
    return bool(kind != pafs.FileType.NotFound)


def with_present_files(
    manifest: Manifest, files_there: Mapping[str, pafs.FileInfo], names: OwnedFileNames
) -> Manifest:
    """The manifest of a prefix with the files that are there now: other programs take and replace files freely."""
    replaced = {
        (replaced.file.path, replaced.file.nbytes, replaced.file.mtime_ns)
        for replaced in manifest.replaced()
    }
    ours = [
        file
        for file in manifest.files
        if names.run_of(file.path) is not None and file.path in files_there
    ]
    others = [
        DataFile(path, info.size, mtime_ns=info.mtime_ns)
        for path, info in sorted(files_there.items())
        if names.run_of(path) is None and (path, info.size, info.mtime_ns) not in replaced
    ]
    present = (*ours, *others)
    return (
        manifest
        if present == tuple(manifest.files)
        else replace(manifest, files=FileList(newest=present))
    )


def data_files(location: Location, directory: str) -> dict[str, pafs.FileInfo]:
    """Every file in the directory that is not hidden, by its path relative to it."""
    files = {}
    pending = [directory]
    while pending:
        here = pending.pop()
        for info in location.fs.get_file_info(pafs.FileSelector(here, allow_not_found=True)):
            if is_hidden(info.base_name) or info.base_name == SUCCESS:
                continue
            if info.type == pafs.FileType.Directory:
                pending.append(info.path)
            elif info.type == pafs.FileType.File:
                files[posixpath.relpath(info.path, directory)] = info
    return files


def walk(
    location: Location, directory: str, skips: Callable[[str], bool] = is_hidden
) -> Iterator[pafs.FileInfo]:
    """Every file below `directory` whose name, and those of its folders, are not skipped."""
    if not location.renames:
        # One request lists a whole tree of an object store.
        for info in location.fs.get_file_info(pafs.FileSelector(directory, recursive=True)):
            inside = posixpath.relpath(info.path, directory)
            if info.type == pafs.FileType.File and not any(
                skips(part) for part in inside.split("/")
            ):
                yield info
        return
    for info in location.fs.get_file_info(pafs.FileSelector(directory)):
        if skips(info.base_name):
            continue
        if info.type == pafs.FileType.Directory:
            yield from walk(location, info.path, skips)
        elif info.type == pafs.FileType.File:
            yield info
