"""Errors of the operating system about a file, for the user: which file, what happened, what to do."""

import errno
import getpass
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from spark_channel.errors import ChannelError, SourceError, TargetError
from spark_channel.final_errors import final, of_input

__all__ = ["not_text", "reading", "writing"]

_REMOVED = re.compile(
    r"BlobNotFound|NO_SUCH_KEY|NoSuchKey|RESOURCE_NOT_FOUND|HTTP status 404|\[NOT_FOUND\]|on closed file"
)
"""What pyarrow says on Azure, S3 and GCS when an open object was deleted."""


def _cause(error: BaseException) -> int | None:
    return error.errno if isinstance(error, OSError) else None


def _text(error: BaseException) -> str:
    code = _cause(error)
    first = str(error).splitlines()[0] if str(error) else type(error).__name__
    return os.strerror(code) if code else first


def _was_removed(label: str, error: Exception) -> bool:
    return "://" in label and _REMOVED.search(str(error)) is not None


@contextmanager
def reading(label: str) -> Iterator[None]:
    """Turn errors of reading `label` into `SourceError`, keeping the cause. Our own pass unchanged."""
    try:
        yield
    except ChannelError:
        raise
    except FileNotFoundError as error:
        raise SourceError(
            f"{label} does not exist, or was removed after the read was planned"
        ) from error
    except PermissionError as error:
        raise of_input(
            SourceError(f"{label} cannot be read: permission denied to user {_user()}")
        ) from error
    except UnicodeDecodeError as error:
        raise SourceError(f"{label} {not_text(error)}") from error
    except (OSError, ValueError) as error:
        if _was_removed(label, error):
            raise SourceError(
                f"{label} was replaced or removed after the read was planned"
            ) from error
        if not isinstance(error, (OSError, pa.ArrowException, UnicodeError)):
            raise
        raise SourceError(f"{label} cannot be read: {_text(error)}") from error
    except pa.ArrowException as error:
        raise SourceError(f"{label} cannot be read: {_text(error)}") from error


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
def writing(label: str) -> Iterator[None]:
    """Turn errors of writing `label` into `TargetError`, keeping the cause. Our own pass unchanged."""
    try:
        yield
    except ChannelError:
        raise
    except (OSError, pa.ArrowException) as error:
        code = _cause(error)
        if code in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error):
            raise final(
                TargetError(f"no space left where {label} is written; free some, then run again")
            ) from error
        if code in (errno.EACCES, errno.EPERM):
            raise of_input(
                TargetError(f"{label} cannot be written: permission denied to user {_user()}")
            ) from error
        if code == errno.EROFS:
            raise of_input(
                TargetError(f"{label} cannot be written: its filesystem is mounted read-only")
            ) from error
        raise TargetError(f"{label} cannot be written: {_text(error)}") from error


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user id without a name
        return str(os.geteuid())
