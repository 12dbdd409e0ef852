"""The watch on Spark's socket."""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from spark_channel.spark.worker import HangupWatch
from tests.spark.daemon import in_a_worker_of_the_daemon

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


def test_a_connection_that_was_lost_before_is_not_sparks() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    heard = threading.Event()
    with ours, socket.socket() as unconnected, HangupWatch().calling(heard.set):
        assert unconnected.fileno() >= 0
        assert not heard.wait(0.1)


def test_sockets_opened_later_are_not_watched() -> None:
    heard = threading.Event()
    watch = HangupWatch()
    ours, theirs = socket.socketpair()
    with ours, watch.calling(heard.set):
        theirs.close()
        assert not heard.wait(0.1)


@pytest.mark.timeout(60)
def test_the_number_of_a_socket_that_was_closed_may_be_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The watch wakes its thread by a pipe, whose writing end had that number: the thread never ended."""
    earlier = socket.socket(type=socket.SOCK_DGRAM)
    watch = HangupWatch()
    number, pipe = earlier.detach(), os.pipe

    def pipe_at_that_number() -> tuple[int, int]:
        read, write = pipe()
        os.dup2(write, number)
        os.close(write)
        return read, number

    monkeypatch.setattr(os, "pipe", pipe_at_that_number)
    ended = threading.Event()

    def read() -> None:
        with watch.calling(lambda: None):
            threading.Event().wait(0.2)  # its thread waits by then
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    assert ended.wait(20)


def test_the_number_of_a_socket_that_was_closed_may_be_anothers() -> None:
    """That of a database's connection, say, whose end is not Spark's."""
    earlier = socket.socket(type=socket.SOCK_DGRAM)
    watch = HangupWatch()
    connection, server = socket.socketpair()
    os.dup2(connection.fileno(), earlier.fileno())
    heard = threading.Event()
    with earlier, connection, watch.calling(heard.set):
        server.close()
        assert not heard.wait(0.1)


def test_a_socket_that_other_code_of_a_worker_keeps_is_not_sparks() -> None:
    """A reused worker may have any. One that its server ended cancelled the read."""
    kept, its = socket.socketpair()
    server = subprocess.Popen(["cat"], stdin=its.fileno())
    its.close()
    ours, jvm = socket.socketpair()
    heard = threading.Event()

    def task() -> None:
        with HangupWatch().calling(heard.set):
            server.kill()
            server.wait()
            assert not heard.wait(0.1)
            jvm.close()
            assert heard.wait(30)

    with kept, ours:
        in_a_worker_of_the_daemon(task, sock=ours)


def test_nothing_is_left_behind() -> None:
    before = set(Path("/proc/self/fd").iterdir()), threading.active_count()
    ours, theirs = socket.socketpair()
    with ours, theirs, HangupWatch().calling(lambda: None):
        pass
    assert (set(Path("/proc/self/fd").iterdir()), threading.active_count()) == before
