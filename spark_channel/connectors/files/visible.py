"""The visible files of a directory: those of the newest log entry, of the previous format's manifest, or all.

Another writer that ends a write there, such as Spark, replaces `_SUCCESS`: then its files count as well.
"""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyarrow import fs as pafs

from spark_channel.connectors.files import legacy
from spark_channel.connectors.files.log import Entry, newest_entry
from spark_channel.connectors.files.manifest import FORMAT, SUCCESS, DataFile, Manifest
from spark_channel.connectors.files.names import Names, is_ours
from spark_channel.connectors.files.paths import Location, is_hidden, read_file
from spark_channel.errors import TargetError

__all__ = [
    "OURS",
    "Success",
    "Visible",
    "combined",
    "data_files",
    "files_of_prefix",
    "read_success",
    "visible",
    "with_present_files",
]

OURS = f'{{"manifest": "{FORMAT}", "log": "_spark_channel"}}\n'.encode()
"""The content of `_SUCCESS` in a directory that has a log. Former versions of spark-channel refuse it."""
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


@dataclass(frozen=True)
class Success:
    """The content of `_SUCCESS`. `identity` distinguishes files of other writers; "" = none, or spark-channel's."""

    identity: str = ""
    former: Manifest | None = None


def read_success(place: Location, directory: str) -> Success:
    path = posixpath.join(directory, SUCCESS)
    for _ in range(_READS):
        before = place.fs.get_file_info(path)
        raw = read_file(place, path)
        if raw is None or raw == OURS:
            return Success()
        after = place.fs.get_file_info(path)
        if (before.size, before.mtime_ns) == (after.size, after.mtime_ns):
            found = legacy.parse(raw, place.show(path))
            return Success(f"{after.size}-{after.mtime_ns}", None if found is None else found[0])
    raise TargetError(f"{place.show(path)} changes all the time; run again when the other writers have ended")


def combined(place: Location, directory: str, entry: Entry | None, found: Success) -> Visible:
    """The visible files by the log and `_SUCCESS` together."""
    success, former = found.identity, found.former
    if entry is None:
        return Visible(former or legacy.state_before(place, directory, success), success)
    made = entry.manifest
    if success in ("", made.success):
        return Visible(made, made.success, entry)
    if former is not None:  # the former version has written here since
        return Visible(_merged(made, former), success, entry)
    return Visible(with_files_of_others(made, data_files(place, directory)), success, entry)


def _merged(log: Manifest, former: Manifest) -> Manifest:
    versions = dict(log.versions)
    for app, known in former.versions.items():
        versions[app] = known if app not in versions else versions[app].joined(known)
    return replace(
        log,
        format=former.format,
        files=former.files,
        schemas={**log.schemas, **former.schemas},
        dialects={**log.dialects, **former.dialects},
        jobs={**log.jobs, **former.jobs},
        versions=versions,
    )


def with_files_of_others(made: Manifest, there: Mapping[str, pafs.FileInfo]) -> Manifest:
    """The manifest with the files that another writer has put there, without those that it has removed."""
    listed = {file.path for file in made.files}
    gone = {each.file.path for each in made.removed}
    kept = [file for file in made.files if file.path in there]
    more = [
        DataFile(path, info.size, mtime_ns=info.mtime_ns)
        for path, info in sorted(there.items())
        if path not in listed and path not in gone and not is_ours(path)
    ]
    return replace(made, files=(*kept, *more))


def files_of_prefix(place: Location, directory: str, prefix: str) -> dict[str, pafs.FileInfo]:
    """The files in the directory itself whose names begin with `prefix`, by their names."""
    selector = pafs.FileSelector(directory, allow_not_found=True)
    return {
        info.base_name: info
        for info in place.fs.get_file_info(selector)
        if info.type == pafs.FileType.File and info.base_name.startswith(prefix)
    }


def with_present_files(made: Manifest, there: Mapping[str, pafs.FileInfo], names: Names) -> Manifest:
    """The manifest of a prefix with the files that are there now: other programs take and replace files freely."""
    replaced = {(each.file.path, each.file.nbytes, each.file.mtime_ns) for each in made.removed}
    ours = [file for file in made.files if names.run_of(file.path) is not None and file.path in there]
    others = [
        DataFile(path, info.size, mtime_ns=info.mtime_ns)
        for path, info in sorted(there.items())
        if names.run_of(path) is None and (path, info.size, info.mtime_ns) not in replaced
    ]
    return replace(made, files=(*ours, *others))


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
