"""Files that overwrites replaced: they are kept for option `retention`, and can be put back until they are removed."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from spark_channel.clock import utc_now
from spark_channel.connectors.files.file_errors import writing
from spark_channel.connectors.files.file_names import OwnedFileNames
from spark_channel.connectors.files.filesystem import locate
from spark_channel.connectors.files.log import newest_entry
from spark_channel.connectors.files.parts import Replaced
from spark_channel.connectors.files.publish import TargetDirectory
from spark_channel.connectors.files.store import store_of
from spark_channel.connectors.remote import is_remote
from spark_channel.errors import TargetError

__all__ = ["ReplacedFiles", "put_back", "replaced_files"]

_TIMEOUT, _RETENTION = 600.0, 3600.0
"""The defaults of options `commitTimeout` and `retention`."""


@dataclass(frozen=True, slots=True)
class ReplacedFiles:
    """What one overwrite replaced. `until`: from this time (ISO, UTC) on, the next write removes it."""

    number: int
    until: str
    is_due: bool
    nbytes: int
    paths: Sequence[str]


def replaced_files(path: str, prefix: str | None = None) -> list[ReplacedFiles]:
    """What can be put back in a folder, in the order of the overwrites.

    Raises:
        TargetError: the folder has no log.
    """
    target = _target(path, prefix)
    with writing(target.shown):
        present = sorted(target.replaced(), key=lambda file: file.number)
    groups = groupby(present, key=lambda file: file.number)
    return [_group(number, list(files)) for number, files in groups]


def put_back(path: str, number: int, prefix: str | None = None) -> int:
    """Make the files of one overwrite visible again; those that are visible now are replaced. Returns their number.

    Raises:
        TargetError: they are not all there. CommitError: see `TargetDirectory.put_back`.
    """
    target = _target(path, prefix)
    with writing(target.shown):
        return len(target.put_back(number))


def _group(number: int, files: Sequence[Replaced]) -> ReplacedFiles:
    until = max(file.until for file in files)
    return ReplacedFiles(
        number,
        until,
        until <= utc_now().isoformat(timespec="seconds"),
        sum(file.file.nbytes for file in files),
        [file.file.path for file in files],
    )


def _target(path: str, prefix: str | None) -> TargetDirectory:
    if is_remote(path):
        raise TargetError(
            f"{path} is on a server of files, where an overwrite removes files at its end: nothing is kept there"
        )
    folder = locate(path)
    names = OwnedFileNames(prefix)
    with writing(folder.show()):
        entry = newest_entry(folder, names.home(folder.path))
    if entry is None:
        raise TargetError(
            f"{names.show(folder.show())} has no log of spark-channel, so that no overwrite of it has replaced a file; "
            "name the folder that a job wrote. Delta and Iceberg tables keep replaced files by their own rules"
        )
    form = entry.manifest.format
    return TargetDirectory(store_of(folder), folder.path, form, _TIMEOUT, _RETENTION, names)
