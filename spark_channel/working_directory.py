"""Resolves relative paths in the working directory of Spark's driver, in any process that parses options.

A Python worker of Spark may run in a separate folder that Spark deletes. So the Spark side says where the
driver runs (`relative_to`), options become absolute when they are parsed, and travel so. Without Spark it is
this process's own working directory.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

__all__ = [
    "WorkingDirectory",
    "absolute_path",
    "absolute_url",
    "path_of_uri",
    "relative_to",
    "shorten",
]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_URI_AFTER_BLANK = re.compile(r"\s+(?:[A-Za-z][A-Za-z0-9+.-]+://|file:)")
_LOCAL = ("", "file")


@dataclass(frozen=True, slots=True)
class WorkingDirectory:
    """`path`: None where it is unknown. `default_fs`: `fs.defaultFS`, which Spark's formats resolve against."""

    path: str | None
    default_fs: str = ""


_current: ContextVar[WorkingDirectory | None] = ContextVar(
    "spark_channel_working_directory", default=None
)


@contextmanager
def relative_to(directory: WorkingDirectory) -> Iterator[None]:
    """Relative paths that are parsed in this block begin there."""
    before = _current.set(directory)
    try:
        yield
    finally:
        _current.reset(before)


def absolute_path(text: str, *, uri: bool = True) -> str:
    """`text` as an absolute path. A uri of another filesystem stays, and so does what cannot be a path.

    `uri`: the option also takes uris, and its relative paths mean what they mean to Spark's formats.

    Raises:
        ValueError: it is relative to an unknown directory; the message says what to give instead.
    """
    if (
        not text.strip()
        or text.startswith("/")
        or "\0" in text
        or (text.startswith(":") and not uri)
    ):
        return text
    if uri and _URI_AFTER_BLANK.match(text):
        raise ValueError(
            "a path or a uri; this begins with a blank, before a uri: remove it, "
            "or write ./ before the name of a local folder"
        )
    if uri and _SCHEME.match(text):
        scheme, path_text = text.split(":", 1)
        if scheme.lower() == "file":
            path = path_of_uri(path_text)
            return text if path.startswith("/") or not path else _joined(path, text, Path("/"))
        if path_text.startswith("//") or not _exists(text):
            return text  # a colon is legal in a file's name: noon:30.csv
    elif uri:
        _refuse_other_default(text)
    return _joined(text, text, Path("/"))


def path_of_uri(path_text: str) -> str:
    """The local path that `file:` and `path_text` name, percent-decoded; `#` and `?` are characters of it.

    Raises:
        ValueError: a host, or bytes that are not text: what to give instead.
    """
    host, slash, path = (
        path_text[2:].partition("/") if path_text.startswith("//") else ("", "", path_text)
    )
    if host.lower() not in ("", "localhost"):
        raise ValueError(
            f"a local file; file:// is followed by a host, here {host!r}: write file:///{host}/..."
        )
    try:
        unquoted = unquote(slash + path, errors="strict")
    except UnicodeDecodeError:
        raise ValueError(
            "percent-encoded UTF-8; the name is in another encoding: rename the file"
        ) from None
    if "\0" in unquoted:
        raise ValueError("a path; %00 is a zero byte, which no name has")
    return unquoted


def absolute_url(url: str, schemes: tuple[str, ...]) -> str:
    """`sqlite:a/b.db` as `sqlite:/work/a/b.db`: the url of a database that is one local file."""
    names = "|".join(schemes)
    match = re.match(
        rf"\s*((?:jdbc:)?(?:{names}):(?:file:)?+)(?=[^/:?;\s])(?!md:)", url, re.IGNORECASE
    )
    if match is None:
        return url
    path_text = url[match.end() :]
    return match.group(1) + _joined(path_text, path_text, Path("/"))


def shorten(path: str) -> str:
    """`path` relative to where relative paths begin, if it is there: as people typed it."""
    base = None if path.startswith("//") else _base()  # a url's, which is asked for often
    if base is None or base.path is None:
        return path
    start = base.path.rstrip("/") + "/"
    return path[len(start) :] if path.startswith(start) and len(path) > len(start) else path


def _base() -> WorkingDirectory | None:
    directory = _current.get()
    if directory is not None:
        return directory
    try:
        return WorkingDirectory(str(Path.cwd()))
    except OSError:  # it was deleted
        return None


def _exists(text: str) -> bool:
    base = _base()
    return base is not None and base.path is not None and Path(base.path, text).exists()


def _joined(path: str, relative: str, root: Path) -> str:
    base = _base()
    if base is None or base.path is None:
        raise ValueError(
            f"an absolute path such as {root / 'data' / relative}: "
            "this is relative, and the working directory of the driver is not known here"
        )
    return str(Path(base.path, path))


def _refuse_other_default(text: str) -> None:
    base = _base()
    if base is None or base.default_fs.split(":", 1)[0].lower() in _LOCAL:
        return
    hdfs_path = f"{base.default_fs.rstrip('/')}/<folder>/{text}"
    here = f"{base.path or '/<folder>'}/{text}"
    raise ValueError(
        f"an absolute path or uri here: fs.defaultFS is {base.default_fs}, so a relative path may mean {hdfs_path} or, "
        f"on the disk of the driver, {here}"
    )
