"""What py4j logs of Ctrl-C is not shown."""

import logging
import subprocess
import sys

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


@pytest.mark.parametrize("logger", ["root", "py4j.java_gateway", "py4j.clientserver"])
def test_an_error_while_an_interrupt_closes_a_socket_is_not_logged(logger: str) -> None:
    """By none of py4j's loggers, in a process of the command line."""
    program = f"""
import logging, sys
sys.argv = ["spark-channel", "--version"]
from spark_channel.cli import main
try:
    main()
except SystemExit:
    pass
logger = logging.getLogger("{logger}")
try:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        raise BrokenPipeError
except BrokenPipeError:
    logger.exception("Exception occurred while shutting down connection")
logger.error("another record")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines() == ["another record"]


@pytest.mark.parametrize("error", [None, ValueError("ours")])
def test_other_records_are(error: BaseException | None) -> None:
    assert _shown(error)
