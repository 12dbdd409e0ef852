"""Which exit code an error ends a command with."""

from spark_channel.errors import (
    BatchRefusedError,
    DirtyRowsError,
    JobFileError,
    OptionError,
    SchemaError,
    UnsupportedError,
)
from spark_channel.main_thread import TERMINATED

__all__ = ["BAD_INPUT", "DONE", "FAILED", "INTERRUPTED", "REFUSED_ROWS", "TERMINATED", "exit_code"]

DONE, FAILED, BAD_INPUT, REFUSED_ROWS = 0, 1, 2, 3
INTERRUPTED = 130
"""What typer makes of Ctrl-C, without a word."""


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
    return FAILED
