"""Which manifest holds in a directory: the one in `_SUCCESS`, or the state before the first of them."""

import posixpath
from dataclasses import dataclass

from pyarrow import fs as pafs

from spark_channel.connectors.files.manifest import BASE, HIDDEN, SUCCESS, Manifest
from spark_channel.connectors.files.paths import Location

__all__ = ["Standing", "read_file", "standing"]


@dataclass(frozen=True)
class Standing:
    """What a directory says of itself.

    `manifest`: what is visible; None = every data file. `success`: an identity of the `_SUCCESS`
    file as it is ('' = there is none). `published`: `manifest` comes from `_SUCCESS`.
    """

    manifest: Manifest | None
    success: str
    published: bool


def read_file(fs: pafs.FileSystem, path: str) -> bytes | None:
    """The whole of a small file; None when there is none."""
    try:
        with fs.open_input_file(path) as file:
            return bytes(file.read())
    except FileNotFoundError:
        return None


def standing(place: Location, directory: str) -> Standing:
    """Read what holds in `directory`: at most three small requests.

    Raises:
        TargetError: a damaged manifest. OSError: not readable.
    """
    path = posixpath.join(directory, SUCCESS)
    # The file may be replaced between the two calls; its content is always whole.
    raw = read_file(place.fs, path)
    manifest = None if raw is None else Manifest.loads(raw, place.show(path))
    if manifest is not None:
        return Standing(manifest, "ours", True)
    info = place.fs.get_file_info(path)
    success = "" if info.type == pafs.FileType.NotFound else f"{info.size}-{info.mtime_ns}"
    before = posixpath.join(directory, HIDDEN, BASE)
    try:
        raw = read_file(place.fs, before)
    except PermissionError:
        raw = None
    base = None if raw is None else Manifest.loads(raw, place.show(before))
    if base is not None and base.successor_of == success:
        return Standing(base, success, False)
    return Standing(None, success, False)
