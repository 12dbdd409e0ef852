"""The watch on Spark's socket."""

import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from spark_channel.spark.hangup import HangupWatch

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/fd"),
]


def test_it_hears_that_the_other_side_closed() -> None:
    ours, theirs = socket.socketpair()
    other = subprocess.Popen(["cat"], stdin=theirs.fileno())
    theirs.close()
    heard = threading.Event()
    with ours, HangupWatch().calling(heard.set):
        assert not heard.wait(0.05)
        other.kill()
        assert heard.wait(30)
    other.wait()


def test_a_half_closed_socket_is_not_a_hangup() -> None:
    """Spark half-closes the socket as soon as it has sent the input."""
    ours, theirs = socket.socketpair()
    heard = threading.Event()
    with ours, theirs, HangupWatch().calling(heard.set):
        theirs.shutdown(socket.SHUT_WR)
        assert not heard.wait(0.1)


def test_sockets_opened_later_are_not_watched() -> None:
    heard = threading.Event()
    watch = HangupWatch()
    ours, theirs = socket.socketpair()
    with ours, watch.calling(heard.set):
        theirs.close()
        assert not heard.wait(0.1)


def test_a_worker_is_silent_once_the_jvm_has_hung_up(capsys: pytest.CaptureFixture[str]) -> None:
    """pyspark prints a traceback when it cannot flush to a JVM that wants no more rows."""
    ours, theirs = socket.socketpair()
    with pytest.MonkeyPatch.context() as patch, ours:
        patch.setattr(sys, "stderr", sys.stderr)
        with HangupWatch().calling(lambda: None):
            print("before", file=sys.stderr)
            theirs.close()
        print("Traceback: BrokenPipeError", file=sys.stderr)
    assert capsys.readouterr().err == "before\n"


def test_nothing_is_left_behind() -> None:
    before = set(Path("/proc/self/fd").iterdir()), threading.active_count()
    ours, theirs = socket.socketpair()
    with ours, theirs, HangupWatch().calling(lambda: None):
        pass
    assert (set(Path("/proc/self/fd").iterdir()), threading.active_count()) == before
