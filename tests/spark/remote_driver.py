"""A Spark driver in its own process, whose session, service and environment a test may break."""

import ctypes
import multiprocessing
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]
RECORDER = ROOT / "tests" / "spark" / "recorder"

START_SECONDS = 120.0


class DriverError(Exception):
    """What a call in the driver raised, as text: its traceback."""


class RemoteDriver:
    """Starts with `with`; `submit` calls `function(session, *arguments)` there, several at a time.

    `master` is Spark's; "connect" is a Spark Connect server with two cores and its client. Functions and what
    they return are pickled.
    """

    def __init__(
        self,
        master: str,
        conf: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._master, self._conf = master, dict(conf or {})
        # With SPARK_TESTING a Connect server takes a free port.
        free_port = {"SPARK_TESTING": "1"} if master == "connect" else {}
        self._environment = {**free_port, **(environment or {})}
        self._calls: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(
            target=_main, args=(other, self._master, self._conf, self._environment), daemon=True
        )
        self._process.start()
        other.close()
        if not self._pipe.poll(START_SECONDS):
            self._process.kill()
            raise TimeoutError("the driver did not start")
        number, failure, _ = self._pipe.recv()
        if failure:
            raise DriverError(failure)
        assert number == 0
        self._reader = threading.Thread(target=self._receive)
        self._reader.start()
        return self

    def __exit__(self, *_error: object) -> None:
        try:
            with self._lock:
                self._pipe.send(None)
        except OSError:
            pass  # it was killed
        self._process.join(20)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._reader.join()
        self._pipe.close()
        self._process.close()

    def submit(self, function: Callable[..., Any], *arguments: object) -> "Future[Any]":
        future: Future[Any] = Future()
        with self._lock:
            number = len(self._calls) + 1
            self._calls[number] = future
            self._pipe.send((number, function, arguments))
        return future

    def run(self, function: Callable[..., Any], *arguments: object, timeout: float = 60.0) -> Any:
        return self.submit(function, *arguments).result(timeout)

    def kill(self) -> None:
        """End it at once, as a machine does that fails; its calls fail."""
        self._process.kill()

    def _receive(self) -> None:
        try:
            while True:
                number, failure, value = self._pipe.recv()
                if failure:
                    self._calls[number].set_exception(DriverError(failure))
                else:
                    self._calls[number].set_result(value)
        except (EOFError, OSError):
            for future in self._calls.values():
                if not future.done():
                    future.set_exception(DriverError("the driver ended"))


def _enter(namespace: str) -> None:
    """Be on another host, see `tests.behaviour.hosts`; before this process has threads."""
    with open(namespace) as file:  # noqa: PTH123 - a handle of the kernel's
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")


def _main(
    pipe: Connection, master: str, conf: Mapping[str, str], environment: Mapping[str, str]
) -> None:
    os.environ.update(environment)
    if namespace := os.environ.get("SPARK_CHANNEL_TEST_NETNS"):
        _enter(namespace)
    path = [str(ROOT), str(RECORDER), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)
    sys.path.append(str(RECORDER))  # a transfer is planned in this process
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("spark-channel tests")
    builder = builder.remote("local[2]") if master == "connect" else builder.master(master)
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "2",
        "spark.python.daemon.module": "tests.spark.preloaded",
        **conf,
    }.items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
    except BaseException:
        pipe.send((0, traceback.format_exc(), None))
        return
    pipe.send((0, "", None))
    sending = threading.Lock()

    def call(number: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        try:
            if type(spark).__module__ == "pyspark.sql.session":
                # A new thread has no session, and a write looks for its format there.
                jvm: Any = spark._jvm
                jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
            answer = (number, "", function(spark, *arguments))
        except BaseException:
            answer = (number, traceback.format_exc(), None)
        with sending:
            pipe.send(answer)

    while (request := pipe.recv()) is not None:
        threading.Thread(target=call, args=request, daemon=True).start()
    spark.stop()
