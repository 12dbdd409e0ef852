"""The exit code that each kind of error ends a command with."""

import pytest

from spark_channel.cli.exit_codes import (
    BAD_INPUT,
    FAILED,
    INTERRUPTED,
    REFUSED_ROWS,
    TERMINATED,
    exit_code,
)
from spark_channel.errors import ChannelError, CommitError, DirtyRowsError, TargetError
from spark_channel.final_errors import of_input


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError("a fault of ours"), FAILED),
        (ChannelError("the server went away"), FAILED),
        (of_input(ChannelError("no such table")), BAD_INPUT),
        (PermissionError(13, "Permission denied"), BAD_INPUT),
        (FileNotFoundError(2, "No such file"), FAILED),
        (DirtyRowsError("3 rows were refused"), REFUSED_ROWS),
        (KeyboardInterrupt(), INTERRUPTED),
        (SystemExit(TERMINATED), TERMINATED),
        (SystemExit("a text"), FAILED),
    ],
)
def test_an_error_has_a_code(error: BaseException, code: int) -> None:
    assert exit_code(error) == code


def test_a_commit_that_fails_for_its_input_has_the_code_of_bad_input() -> None:
    error = CommitError("nothing was written")
    error.__cause__ = of_input(TargetError("the role may not insert"))
    assert exit_code(error) == BAD_INPUT


def test_input_that_is_at_fault_further_down_is_no_bad_input() -> None:
    error, between = ChannelError("a"), ChannelError("b")
    error.__cause__, between.__cause__ = between, of_input(ChannelError("c"))
    assert exit_code(error) == FAILED
