"""Files that an Iceberg table names outside its location: whoever writes its metadata says what a job's user reads."""

import re
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

from spark_channel.errors import UnsupportedError

__all__ = ["check_inside"]

_UUID = re.compile(r"(?<=[^/])[-_.][0-9a-f]{8}(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12}$", re.IGNORECASE)
_SAME = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasbs": "abfs", "wasb": "abfs", "gcs": "gs"}


def check_inside(paths: Iterable[str], label: str, location: str) -> None:
    """Check that a table's files are in its bucket, and those of a disk in its folder.

    The keys of a store may be limited to a table's files; on a disk the job's user can read the tables beside it.

    Raises:
        UnsupportedError: one is elsewhere.
    """
    strange = next((path for path in paths if not _is_inside(path, location)), None)
    if strange is not None:
        where = " on a disk of the host that reads the table" if _is_local(strange) else ""
        raise UnsupportedError(
            f"{label} is at {location}, and names the file {strange}{where}, outside of it; such a file is not read. "
            "If you trust who writes the table, set option 'externalAccess' to true"
        )


def _is_local(path: str) -> bool:
    return urlsplit(path).scheme in ("", "file")


def _is_inside(path: str, location: str) -> bool:
    if _is_local(path) or _is_local(location):
        if not (_is_local(path) and _is_local(location)):
            return False
        is_plain = ".." not in unquote(path).split("/")
        folder, name = _folder_of(location)
        inside = _on_disk(path).removeprefix(folder)
        return is_plain and inside != _on_disk(path) and _chosen_name(inside.split("/")[0]) == name
    return _store(path) == _store(location)


def _on_disk(path: str) -> str:
    plain = path[len("file:") :] if path.lower().startswith("file:") else path
    return "/" + plain.lstrip("/")


def _folder_of(location: str) -> tuple[str, str]:
    """(the namespace's folder, the table's name in it)."""
    folder, slash, name = _on_disk(location).rstrip("/").rpartition("/")
    return folder + slash, _chosen_name(name)


def _chosen_name(folder: str) -> str:
    """Without the UUID that some catalogs add at each creation: the first files are in the folder of the first one."""
    return _UUID.sub("", folder)


def _store(path: str) -> tuple[str, str]:
    parts = urlsplit(path)
    return _SAME.get(parts.scheme, parts.scheme), parts.netloc
