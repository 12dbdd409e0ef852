"""The exit codes of all commands."""

from collections.abc import Iterator

from spark_channel.errors import BatchRefusedError, ChannelError, DirtyRowsError
from spark_channel.final_errors import is_of_rights
from spark_channel.signals import TERMINATED

__all__ = ["BAD_INPUT", "DONE", "FAILED", "INTERRUPTED", "TERMINATED", "exit_code"]


DONE, FAILED, BAD_INPUT, REFUSED_ROWS = 0, 1, 2, 3
INTERRUPTED = 130
"""Typer's exit code for Ctrl-C."""


def exit_code(error: BaseException) -> int:
    """1 failed, 2 bad input, 3 more rows were refused than allowed, 130 interrupted, 143 ended by SIGTERM."""
    if isinstance(error, (DirtyRowsError, BatchRefusedError)):
        return REFUSED_ROWS
    causes = list(_causes(error))
    # A commit that fails says what the target contains, and why it failed.
    if any(isinstance(cause, ChannelError) and cause.is_of_input for cause in causes[:2]):
        return BAD_INPUT
    if any(map(is_of_rights, causes)):
        return BAD_INPUT
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else FAILED
    return FAILED


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and what it was raised from."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__
