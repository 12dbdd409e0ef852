"""Which exit code an error ends a command with."""

from collections.abc import Iterator

from spark_channel.errors import (
    BatchRefusedError,
    ChannelError,
    DirtyRowsError,
    JobFileError,
    OptionError,
    SchemaError,
    TargetError,
    UnsupportedError,
)

__all__ = ["BAD_INPUT", "DONE", "FAILED", "INTERRUPTED", "REFUSED_ROWS", "TERMINATED", "exit_code"]

DONE, FAILED, BAD_INPUT, REFUSED_ROWS = 0, 1, 2, 3
INTERRUPTED = 130
"""What typer makes of Ctrl-C, without a word."""
TERMINATED = 143
"""After SIGTERM: 128 and the signal's number."""

_DATA_STATES = ("22", "23")
"""Classes of SQLSTATE: a value does not fit, or breaks a constraint."""
_OF_DRIVERS = ("IntegrityError", "DataError")
"""What Python's database drivers (PEP 249) call the same."""


def exit_code(error: BaseException) -> int:
    """1 failed, 2 bad input, 3 more rows were refused than allowed, 130 interrupted, 143 ended by SIGTERM."""
    if isinstance(error, (OptionError, JobFileError, SchemaError, UnsupportedError)):
        return BAD_INPUT
    if isinstance(error, (DirtyRowsError, BatchRefusedError)):
        return REFUSED_ROWS
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else FAILED
    if isinstance(error, TargetError) and any(_is_refusal(each) for each in _causes(error)):
        return REFUSED_ROWS  # no row may be refused, and so none was looked for
    return FAILED


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _is_refusal(error: BaseException) -> bool:
    if isinstance(error, (BatchRefusedError, DirtyRowsError)):
        return True
    if isinstance(error, ChannelError):
        return False
    state = getattr(error, "sqlstate", None)
    if isinstance(state, str):
        return state[:2] in _DATA_STATES
    return type(error).__name__ in _OF_DRIVERS
