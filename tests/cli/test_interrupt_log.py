"""What py4j logs of Ctrl-C is not shown."""

import logging

import pytest
from py4j.protocol import Py4JNetworkError

from spark_channel.cli import _no_trace_of_interrupt


def _shown(error: BaseException | None) -> bool:
    found = None if error is None else (type(error), error, None)
    record = logging.LogRecord(
        "root", logging.ERROR, __file__, 1, "Exception while sending command.", (), found
    )
    return _no_trace_of_interrupt(record)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(130), Py4JNetworkError("the JVM is gone")]
)
def test_what_an_interrupt_leaves_in_py4j_is_not_logged(error: BaseException) -> None:
    assert not _shown(error)


def test_an_error_while_an_interrupt_closes_a_socket_is_not_logged() -> None:
    error = BrokenPipeError(32, "Broken pipe")
    error.__context__ = KeyboardInterrupt()
    assert not _shown(error)


@pytest.mark.parametrize("error", [None, ValueError("ours")])
def test_other_records_are(error: BaseException | None) -> None:
    assert _shown(error)
