"""Where files are: paths and uris become a `pyarrow.fs` filesystem and a path in it.

Local paths are plain, absolute or relative to the driver, or `file:` uris (percent-encoded, as
`pathlib.Path.as_uri` writes them). Others are what `pyarrow.fs` takes: s3:// (s3a, s3n), gs://, abfs://, hdfs://.
"""

import posixpath
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs as pafs

from spark_channel.errors import OptionError

__all__ = ["Location", "is_hidden", "locate"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_SAME_AS = {"s3a": "s3", "s3n": "s3", "abfss": "abfss", "gcs": "gs"}


@dataclass(frozen=True)
class Location:
    """A path in a filesystem. `root` makes the filesystem again in another process: '' = local disk."""

    fs: pafs.FileSystem
    path: str
    root: str

    @property
    def local(self) -> bool:
        return self.root == ""

    def show(self, path: str | None = None) -> str:
        """`path` (default: this one) for a message, with the scheme of its filesystem."""
        path = self.path if path is None else path
        return path if self.local else f"{self.root.split('://', 1)[0]}://{path}"


def is_hidden(name: str) -> bool:
    """Names that Spark does not read: `_x`, `.x` and files being copied; but `_x=1` is a partition."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


def locate(path: str, option: str = "path") -> Location:
    """The filesystem and path that `path` names. Opens no connection.

    Raises:
        OptionError: empty, an unknown scheme, a password inside, or a uri that its filesystem refuses.
    """
    if not path:
        raise OptionError(f"option {option!r} is empty; it takes a path or a uri", option=option, got=path)
    if "\0" in path:
        raise OptionError(f"option {option!r} holds a zero byte", option=option)
    if not _SCHEME.match(path):
        return Location(_local(), str(Path(path).absolute()), "")
    scheme, rest = path.split(":", 1)
    if scheme.lower() == "file":
        return Location(_local(), str(Path(unquote(re.sub(r"^//[^/]*", "", rest))).absolute()), "")
    if not rest.startswith("//"):
        # A colon is legal in a file's name: 12:30.csv.
        if Path(path).exists():
            return Location(_local(), str(Path(path).absolute()), "")
        raise OptionError(
            f"option {option!r} got {path!r}; a uri starts with a scheme and two slashes, such as s3://bucket/key",
            option=option, got=path,
        )  # fmt: skip
    parts = urlsplit(path)
    if parts.password is not None:
        raise OptionError(
            f"option {option!r} holds a password or secret key; leave it to the environment, the profile or "
            "the role that the filesystem reads",
            option=option,
        )
    scheme = _SAME_AS.get(scheme.lower(), scheme.lower())
    query = f"?{parts.query}" if parts.query else ""
    root = f"{scheme}://{parts.netloc}{query}"
    found = _remote(root, option)
    # The filesystem says how it spells the bucket or container; the rest of the path is the user's own.
    inside = _remote_path(root) if scheme in ("s3", "gs", "abfs", "abfss") else ""
    return Location(found, posixpath.normpath(f"{inside}{parts.path}" or "/"), root)


def reopen(root: str) -> pafs.FileSystem:
    """The filesystem that a `Location.root` names."""
    return _remote(root, "path") if root else _local()


@lru_cache(maxsize=1)
def _local() -> pafs.FileSystem:
    return pafs.LocalFileSystem()


@lru_cache(maxsize=32)
def _from_uri(root: str) -> tuple[pafs.FileSystem, str]:
    found: tuple[pafs.FileSystem, str] = pafs.FileSystem.from_uri(root)
    return found


def _remote(root: str, option: str) -> pafs.FileSystem:
    try:
        return _from_uri(root)[0]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, OSError) as error:
        scheme = root.split(":", 1)[0]
        raise OptionError(
            f"option {option!r} got a {scheme}:// uri that pyarrow cannot open: {error}",
            option=option, got=scheme, takes="a local path, or a file, s3, gs, abfs or hdfs uri",
        ) from error  # fmt: skip


def _remote_path(root: str) -> str:
    return _from_uri(root)[1].rstrip("/")
