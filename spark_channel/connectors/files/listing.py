"""Which files a path means: a file, a directory with all below it, or a glob; with their partitions.

Hidden names are skipped, as Spark does, and of a directory with a manifest of ours only the listed files
are taken. The order is that of the paths, so that every listing of the same files is the same.
"""

import fnmatch
import logging
import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import unquote

from pyarrow import fs as pafs

from spark_channel.connectors.files.errors_at import reading
from spark_channel.connectors.files.manifest import DataFile, Manifest
from spark_channel.connectors.files.paths import Location, find_replaced, is_hidden
from spark_channel.connectors.files.visible import visible
from spark_channel.errors import SourceError, TargetError

__all__ = ["UNCHANGING", "SourceFile", "list_files"]

UNCHANGING = -1
"""In place of a file's time of change, where a log says that the file is never written again."""

_log = logging.getLogger(__name__)

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


def list_files(
    place: Location,
    *,
    base: str | None = None,
    partitions: bool = True,
    manifests: bool = True,
    keep: Callable[[pafs.FileInfo], bool] = lambda _: True,
) -> list[SourceFile]:
    """The files that `place` means, in the order of their paths.

    `base`: where partition folders begin (default: at `place`). `keep`: a filter of single files.
    An empty directory gives []; so does a directory of hidden files.

    Raises:
        SourceError: missing, unreadable, a glob that matches nothing, or a listed file that was removed.
    """
    with reading(place.show()):
        found, literal = _found(place, manifests)
        start = base or (place.path if literal else _fixed_part(place.path))
        files = []
        for info, listed, manifest in sorted(found, key=lambda item: item[0].path):
            if keep(info):
                partition = _partition(info.path, start) if partitions else ()
                files.append(
                    SourceFile(
                        place.root, info.path, info.size or 0, info.mtime_ns or 0, partition, listed, manifest
                    )
                )
        return files


_Found = tuple[pafs.FileInfo, DataFile | None, Manifest | None]


def _found(place: Location, manifests: bool) -> tuple[list[_Found], bool]:
    """(the files, whether the path is their name and not a pattern)."""
    info = place.info(place.path)
    if info.type == pafs.FileType.File:
        return [(info, None, None)], True
    if info.type == pafs.FileType.Directory:
        # First what is visible, then the files: those that a write adds in between are not listed, and not read.
        top = _manifest(place, place.path) if manifests else None
        known = {place.path: top}
        shown = _visible(place, list(_walk(place, place.path)), place.path, manifests, known, all_listed=True)
        return shown, True
    matches = list(_glob(place)) if _GLOB.search(place.path) else []
    if not matches:
        what = "matches no file" if _GLOB.search(place.path) else "does not exist"
        raise SourceError(f"{place.show()} {what}")
    files: dict[str, pafs.FileInfo] = {}
    for match in matches:
        inside = _walk(place, match.path) if match.type == pafs.FileType.Directory else [match]
        files |= {found.path: found for found in inside}
    return _visible(place, list(files.values()), _fixed_part(place.path), manifests), False


def _walk(place: Location, directory: str) -> Iterator[pafs.FileInfo]:
    """Every file below `directory` that is not hidden."""
    if not place.renames:
        # One request lists a whole tree of an object store.
        for info in place.fs.get_file_info(pafs.FileSelector(directory, recursive=True)):
            inside = posixpath.relpath(info.path, directory)
            if info.type == pafs.FileType.File and not any(is_hidden(part) for part in inside.split("/")):
                yield info
        return
    for info in place.fs.get_file_info(pafs.FileSelector(directory)):
        if is_hidden(info.base_name):
            continue
        if info.type == pafs.FileType.Directory:
            yield from _walk(place, info.path)
        elif info.type == pafs.FileType.File:
            yield info


def _manifest(place: Location, directory: str) -> Manifest | None:
    try:
        return visible(place, directory).manifest
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
        _log.info("%s: %d files are not in its manifest and are not read", place.show(directory), len(names))
    if all_listed:
        for directory, found in known.items():
            if found is not None:
                shown.extend(_not_walked(place, directory, found, seen.get(directory, set())))
    return shown


def _not_walked(place: Location, directory: str, manifest: Manifest, seen: set[str]) -> Iterator[_Found]:
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


def _glob(place: Location) -> Iterator[pafs.FileInfo]:
    """Files and directories that match; `**` means any number of directories, `{a,b}` either."""
    seen: set[str] = set()
    for pattern in _braces(
        place.path.replace("[!/]", "?")
    ):  # how a uri writes ?, which begins its parameters
        start = _fixed_part(pattern)
        rest = pattern[len(start) :].strip("/")
        for info in _match(place, start, rest.split("/") if rest else []):
            if info.path not in seen:
                seen.add(info.path)
                yield info


def _match(place: Location, directory: str, parts: list[str]) -> Iterator[pafs.FileInfo]:
    if not parts:
        info = place.info(directory)
        if info.type != pafs.FileType.NotFound:
            yield info
        return
    part, rest = parts[0], parts[1:]
    if part == "**":
        yield from _match(place, directory, rest or ["*"])
    elif not _GLOB.search(part):
        yield from _match(place, posixpath.join(directory, part), rest)
        return
    if place.info(directory).type != pafs.FileType.Directory:
        return
    matches = re.compile(fnmatch.translate(part.replace("[^", "[!"))).match
    for info in place.fs.get_file_info(pafs.FileSelector(directory)):
        if is_hidden(info.base_name) and not part.startswith((".", "_")):
            continue
        if part == "**":
            if info.type == pafs.FileType.Directory:
                yield from _match(place, info.path, parts)
        elif matches(info.base_name):
            if rest:
                yield from _match(place, info.path, rest)
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
