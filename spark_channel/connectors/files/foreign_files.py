"""Files of other programs that an overwrite of a directory would remove: only the log says which files are ours."""

import errno
import json
import os
import posixpath
import pwd
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pyarrow.fs import FileType

from spark_channel.connectors.files.file_names import is_ours
from spark_channel.connectors.files.filesystem import Location
from spark_channel.errors import TargetError

__all__ = [
    "check_directory",
    "check_may_write",
    "counted",
    "foreign",
    "format_by_name",
    "head_of",
    "refuse_shared_directory",
    "refuse_strange",
    "refuse_table",
]

_NAMED = 3
_LAKE_LOGS = {"_delta_log": "Delta Lake", ".hoodie": "Apache Hudi"}
"""Their files are hidden. Those of Iceberg are not, and are refused as files of another format."""
_ENDINGS = {
    "parquet": (".parquet", ".pq", ".parq"),
    "arrow": (".arrow", ".feather", ".ipc"),
    "orc": (".orc",),
    "json": (".json", ".jsonl", ".ndjson"),
    "csv": (".csv", ".tsv"),
}
_COMPRESSED = (".gz", ".zst", ".bz2", ".lz4", ".snappy", ".deflate", ".xz")
_OUTPUT = re.compile(
    r"part-(?:[mr]-)?\d{5}[^.]*"  # Spark, MapReduce, Sqoop
    r"|\d{6}_\d+(?:_copy_\d+)?"  # Hive
    r"|\d{8}_\d{6}_\d{5}_[a-z0-9]{5}_[0-9a-f-]{36}"  # Trino
)
"""Names without an ending that other programs give to the files of a table, whatever its format."""
_OF_SPARK = re.compile(r"part-(?:[mr]-)?\d{5}.*")
_HEAD = 1 << 16
"""Bytes in which the first line of a file of JSON lines is looked for."""


def format_by_name(path: str) -> str | None:
    """The format that the file's name shows; None = it shows none."""
    plain = path.lower()
    for ending in _COMPRESSED:
        plain = plain.removesuffix(ending)
    return next((form for form, endings in _ENDINGS.items() if plain.endswith(endings)), None)


def check_directory(location: Location) -> None:
    """
    Raises:
        TargetError: there is a file in place of the directory.
    """
    if location.info(location.path).type == FileType.File:
        raise TargetError(
            f"{location.show()} is a file; a write needs a directory, which it fills with files"
        )


def check_may_write(location: Location) -> None:
    """Check that this user may make files in a folder of the local disk, or the folder itself; makes none.

    Raises:
        OSError: as the system would refuse it.
    """
    if not location.local:
        return
    folder = next(
        path for path in (Path(location.path), *Path(location.path).parents) if path.exists()
    )
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        is_mounted_so = os.statvfs(folder).f_flag & os.ST_RDONLY
        code = errno.EROFS if is_mounted_so else errno.EACCES
        raise OSError(code, os.strerror(code), str(folder))


def foreign(paths: Iterable[str]) -> list[str]:
    """Those of `paths`, relative to a directory, that spark-channel did not name."""
    return sorted(path for path in paths if not is_ours(path))


def counted(paths: Sequence[str]) -> str:
    """How many files that our log does not name an overwrite replaces, for people; "" = none.

    A DataX job's own files are among them: a job that names its files has no log.
    """
    if not paths:
        return ""
    return f"{len(paths)} {'file' if len(paths) == 1 else 'files'} that {'was' if len(paths) == 1 else 'were'} there"


def head_of(location: Location, path: str, size: int) -> bytes:
    """The first `size` bytes of a file, whose path is relative to the directory."""
    with location.fs.open_input_file(posixpath.join(location.path, path)) as stream:
        return bytes(stream.read(size))


def refuse_strange(
    label: str, form: str, paths: Sequence[str], head: Callable[[str, int], bytes]
) -> None:
    """Check that files of others, which an overwrite replaces, look like a former state of the same data.

    `head` returns the first bytes of a file. Files called `.json` are looked into, since most of those in the world
    are settings.

    Raises:
        TargetError: files that are not of the format, or are in folders that are not partitions.
    """
    strange = [path for path in paths if _is_strange(path, form, head)]
    if not strange:
        return
    others = f" and {len(strange) - _NAMED} more" if len(strange) > _NAMED else ""
    count = "1 file" if len(strange) == 1 else f"{len(strange)} files"
    raise TargetError(
        f"{label} holds {count} of other programs that are not {form} files in partition folders: "
        f"{', '.join(strange[:_NAMED])}{others}. An overwrite would remove them: name another directory, "
        "move them away, or set option 'replaceForeignFiles' to true. Nothing was changed"
    )


def _is_strange(path: str, form: str, head: Callable[[str, int], bytes]) -> bool:
    *folders, name = path.lower().split("/")
    if any("=" not in folder for folder in folders):
        return True
    plain = name
    for ending in _COMPRESSED:
        plain = plain.removesuffix(ending)
    if _OUTPUT.fullmatch(plain):
        return False
    if form == "json" and name.endswith(".json") and not _OF_SPARK.fullmatch(name):
        return not _has_lines(head(path, _HEAD))
    return not plain.endswith(_ENDINGS[form])


def _has_lines(head: bytes) -> bool:
    """Whether a file begins with JSON lines: an object, whole in the first line, or the beginning of a long one."""
    first, ended, _ = head.lstrip().partition(b"\n")
    if not first:
        return not head.strip()  # an empty file has no lines that could be lost
    if not ended and len(head) == _HEAD:
        return first.startswith(b"{")
    try:
        return isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


def refuse_shared_directory(location: Location) -> None:
    """Check that the target of an overwrite is not a directory that also serves for something else.

    Raises:
        TargetError: the root, a home, a mount point, the working directory or one above it.
    """
    use = _shared(location)
    if use:
        raise TargetError(
            f"{location.show()} is {use}, and an overwrite removes every file below its directory: name a directory "
            "below it. Nothing was changed"
        )


def refuse_table(at: Location) -> None:
    """Check that the target of an overwrite is not a lake table, whose log would name removed files.

    Raises:
        TargetError: it is one.
    """
    for log, kind in _LAKE_LOGS.items():
        if at.info(posixpath.join(at.path, log)).type != FileType.NotFound:
            raise TargetError(
                f"{at.show()} is a table of {kind} (it holds {log}), and an overwrite of its files would break it: "
                "write it by that format, or name another directory. Nothing was changed"
            )


def _shared(location: Location) -> str:
    if not location.local:
        return _shared_remote(location)
    path = Path(os.path.realpath(location.path))
    if path == path.parent:
        return "the root of the file system"
    working = Path.cwd().resolve()
    if path == working:
        return "the working directory"
    if path in working.parents:
        return f"above the working directory {working}"
    if path in _homes(path):
        return "a home directory"
    return "a mount point" if path.is_mount() else ""


def _shared_remote(location: Location) -> str:
    """In an object store the first part of a path is the bucket or container, in HDFS `/user/NAME` is a home."""
    parts = [part for part in location.path.split("/") if part]
    if not parts:
        return "the root of its file system"
    if not location.renames:
        return "the root of its bucket" if len(parts) == 1 else ""
    return "a home directory" if len(parts) == 2 and parts[0] == "user" else ""


def _homes(path: Path) -> list[Path]:
    """The home of this user, and of the directory's owner."""
    homes: list[Path] = []
    try:
        homes.append(Path.home())
        homes.append(Path(pwd.getpwuid(path.stat().st_uid).pw_dir))
    except (OSError, KeyError, RuntimeError):
        pass  # the directory is not there yet, or a user has no entry, as in containers
    return [home.resolve() for home in homes]
