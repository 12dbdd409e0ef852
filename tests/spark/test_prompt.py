"""A task has its rows without waiting for the acknowledgement of its code."""

import pickle
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from spark_channel.spark.prompt import Prompt

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no option acknowledges at once"),
]


class Reader(Prompt):
    """What a task unpickles."""

    def __init__(self) -> None:
        self.options = {"path": "x"}


class Plain:
    """The same without the promise."""


def worker_of_a_daemon() -> Callable[[socket.socket, bytes], object]:
    """A function that has its socket where the one of pyspark's daemon has it."""
    names: dict[str, Any] = {"loads": pickle.loads}
    exec(compile("def worker(sock, code): return loads(code)", "/x/pyspark/daemon.py", "exec"), names)
    worker: Callable[[socket.socket, bytes], object] = names["worker"]
    return worker


def seconds_to_the_rows(unpickled: object) -> float:
    """From a task's code, sent in one write, to its rows in the next; the shortest of some."""
    code, worker, took = pickle.dumps(unpickled), worker_of_a_daemon(), []
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        jvm = socket.create_connection(server.getsockname())
        task, _ = server.accept()
        with jvm, task:
            jvm.settimeout(10)
            task.settimeout(10)
            for _ in range(8):  # the first ones are acknowledged at once by any kernel

                def send() -> None:
                    jvm.sendall(code)
                    jvm.sendall(b"rows")

                sender = threading.Thread(target=send)
                sender.start()
                received = task.recv(len(code), socket.MSG_WAITALL)
                began = time.perf_counter()
                worker(task, received)
                assert task.recv(4, socket.MSG_WAITALL) == b"rows"
                took.append(time.perf_counter() - began)
                sender.join()
                task.sendall(b"answer")
                assert jvm.recv(6, socket.MSG_WAITALL) == b"answer"
    return min(took[3:])


def test_the_rows_follow_the_code() -> None:
    assert seconds_to_the_rows(Reader()) < seconds_to_the_rows(Plain()) / 4


def test_what_is_unpickled_is_what_was_pickled() -> None:
    assert pickle.loads(pickle.dumps(Reader())).options == {"path": "x"}
