"""Errors of the operating system about a file, for the user: which file, what happened, what to do."""

import errno
import getpass
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from spark_channel.errors import ChannelError, SourceError, TargetError

__all__ = ["not_text", "reading", "writing"]


def _cause(error: BaseException) -> int | None:
    return error.errno if isinstance(error, OSError) else None


def _text(error: BaseException) -> str:
    code = _cause(error)
    first = str(error).splitlines()[0] if str(error) else type(error).__name__
    return os.strerror(code) if code else first


_REMOVED = re.compile(r"BlobNotFound|NO_SUCH_KEY|NoSuchKey|HTTP status 404|\[NOT_FOUND\]|on closed file")
"""What pyarrow says on Azure, S3 and GCS when an open object is not there any more."""


def _was_removed(shown: str, error: Exception) -> bool:
    return "://" in shown and _REMOVED.search(str(error)) is not None


@contextmanager
def reading(shown: str) -> Iterator[None]:
    """Turn errors of reading `shown` into `SourceError`, keeping the cause. Our own pass unchanged."""
    try:
        yield
    except ChannelError:
        raise
    except FileNotFoundError as error:
        raise SourceError(f"{shown} does not exist, or was removed after the read was planned") from error
    except PermissionError as error:
        raise SourceError(f"{shown} cannot be read: permission denied to user {_user()}") from error
    except UnicodeDecodeError as error:
        raise SourceError(f"{shown} {not_text(error)}") from error
    except (OSError, ValueError) as error:
        if _was_removed(shown, error):
            raise SourceError(f"{shown} was replaced or removed after the read was planned") from error
        if not isinstance(error, (OSError, pa.ArrowException, UnicodeError)):
            raise
        raise SourceError(f"{shown} cannot be read: {_text(error)}") from error
    except pa.ArrowException as error:
        raise SourceError(f"{shown} cannot be read: {_text(error)}") from error


def not_text(error: UnicodeDecodeError) -> str:
    """The message for a file in another encoding."""
    guess = "ISO-8859-1 or windows-1252 for western European files"
    if error.object.startswith((b"\xff\xfe", b"\xfe\xff")):
        guess = "UTF-16, whose mark it begins with"
    return (
        f"is not {error.encoding.upper()}: it holds byte 0x{error.object[error.start]:02x}; "
        f"name its encoding with option 'encoding', such as {guess}"
    )


@contextmanager
def writing(shown: str) -> Iterator[None]:
    """Turn errors of writing `shown` into `TargetError`, keeping the cause. Our own pass unchanged."""
    try:
        yield
    except ChannelError:
        raise
    except (OSError, pa.ArrowException) as error:
        code = _cause(error)
        if code in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error):
            raise TargetError(f"no space left where {shown} is written; free some, then run again") from error
        if code in (errno.EACCES, errno.EPERM):
            raise TargetError(f"{shown} cannot be written: permission denied to user {_user()}") from error
        if code == errno.EROFS:
            raise TargetError(f"{shown} cannot be written: its filesystem is mounted read-only") from error
        raise TargetError(f"{shown} cannot be written: {_text(error)}") from error


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user id without a name
        return str(os.geteuid())
