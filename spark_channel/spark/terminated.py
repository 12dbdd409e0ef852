"""SIGTERM to a Spark driver: its jobs are cancelled, what they staged is removed, and the program ends with 143."""

import logging
import queue
import signal
import sys
import threading
from types import FrameType
from typing import Any

from pyspark.sql import SparkSession

from spark_channel.main_thread import TERMINATED, wake_on_signals

__all__ = ["end_on_sigterm"]

_log = logging.getLogger(__name__)

_GRACE_SECONDS = 8.0
"""How long a call of Spark has to return after its jobs were cancelled; docker kills after 10 s."""


def end_on_sigterm(spark: SparkSession) -> None:
    """From now on SIGTERM ends this program in order. In the main thread of one that does not handle it."""
    here = threading.current_thread() is threading.main_thread()
    if here and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        wake_on_signals()
        signal.signal(signal.SIGTERM, _Termination(spark).handle)


class _Termination:
    """The handler makes no call of the JVM, which would break one that it interrupts, and takes no lock: a thread does.

    A call of Spark that the main thread waits for is not interrupted: it returns when the job is cancelled and its
    target is rolled back, and the program ends there.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._came = False
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._never = threading.Event()
        threading.Thread(target=self._cancel, name="spark-channel-sigterm", daemon=True).start()

    def handle(self, _number: int, frame: FrameType | None) -> None:
        if self._came:
            raise SystemExit(TERMINATED)  # the grace is over
        self._came = True
        caller = _caller_of_spark(frame)
        self._news.put(None)  # safe in a signal handler, as no lock of a condition is
        if caller is None:
            raise SystemExit(TERMINATED)
        caller.f_trace = self._leave
        sys.settrace(_trace_nothing)

    handle.gives_way = True  # type: ignore[attr-defined]  # to a tunnel that is consumed: see `Sigterm`

    def _leave(self, _frame: FrameType, _event: str, _arg: Any) -> Any:
        """The call has returned, or raises what the cancelled job raised."""
        sys.settrace(None)
        raise SystemExit(TERMINATED)

    def _cancel(self) -> None:
        self._news.get()
        _log.warning("SIGTERM was received: the jobs of this driver are cancelled")
        spark = self._spark
        try:
            for query in spark.streams.active:
                query.stop()
            _cancel_jobs(spark)
        except Exception as error:  # the JVM was sent the signal, too
            _log.warning("the jobs could not be cancelled: %s", error)
        self._never.wait(_GRACE_SECONDS)
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGTERM)


def _cancel_jobs(spark: SparkSession) -> None:
    from spark_channel.spark.session import context_of

    context = context_of(spark)
    if context is None:
        spark.interruptAll()
    else:
        context.cancelAllJobs()


def _caller_of_spark(frame: FrameType | None) -> FrameType | None:
    """Who made the call of Spark that this thread waits in; None when it is in none."""
    inside = False
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package in ("py4j", "pyspark", "grpc"):
            inside = True
        elif inside and package not in ("socket", "threading", "contextlib"):
            return frame
        frame = frame.f_back
    return None


def _trace_nothing(_frame: FrameType, _event: str, _arg: Any) -> None:
    return None
