"""Notes on errors that the same work meets again: see `ChannelError.is_final`."""

import errno
from collections.abc import Iterable
from typing import TypeVar

from spark_channel.errors import ChannelError, TargetError

__all__ = ["HeardError", "final", "first_original", "is_of_rights", "of_input"]

_Error = TypeVar("_Error", bound=ChannelError)
_NO_RIGHT = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}
_MYSQL_NO_RIGHT = {1044, 1045, 1142, 1143, 1227}
_PG_NO_RIGHT = "42501"


def final(error: _Error, *, is_final: bool = True) -> _Error:
    """Return `error`, noted as one that the same work meets again."""
    error.is_final = is_final or error.is_final
    return error


def of_input(error: _Error, *, is_of_input: bool = True) -> _Error:
    """Return `error`, noted as one of what the caller named: an end that is not there, or a right that is missing."""
    error.is_of_input = is_of_input or error.is_of_input
    return final(error, is_final=is_of_input)


def is_of_rights(error: BaseException) -> bool:
    """Whether an error of a driver, or of the system, says that a right is missing, or that a folder is a file."""
    if isinstance(error, OSError):
        return error.errno in _NO_RIGHT
    if type(error).__module__.startswith("pymysql."):
        return bool(error.args) and error.args[0] in _MYSQL_NO_RIGHT
    return getattr(error, "sqlstate", None) == _PG_NO_RIGHT


class HeardError(TargetError):
    """The final error of another task, as this one heard it: its text, without its class and its notes."""

    is_final = True


def first_original(errors: Iterable[_Error]) -> _Error | None:
    """The first error that a task has met itself; else the first that one has heard of; None = there is none."""
    all_errors = list(errors)
    met = (error for error in all_errors if not isinstance(error, HeardError))
    return next(met, all_errors[0] if all_errors else None)
