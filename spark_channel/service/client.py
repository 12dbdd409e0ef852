"""`ServiceClient`: what a Spark task holds of the service."""

import logging
import os
import threading
import uuid
from typing import TYPE_CHECKING, Any, Self

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.errors import ServiceDeniedError, ServiceUnavailableError
from spark_channel.progress import Counters, JobSpec, Snapshot
from spark_channel.service.address import ServiceAddress

if TYPE_CHECKING:
    from spark_channel.service.connection import Connection

__all__ = ["ServiceClient"]

_log = logging.getLogger(__name__)

_FIRST_REPORT_AFTER = 0.2
_REPORT_TIMEOUT = 2.0
_HEARTBEAT = 3.0
_SLOWEST_RETRY = 5.0
_FLUSH_SECONDS = 2.0


class ServiceClient:
    """Reports the counters of one Spark task, in the background, to one service.

    Nothing connects before the first `counters()`. `close` (or the end of `with`) sends the final counters,
    waits at most 2 s for it, and ends thread and connection. Counters that are lost never fail a task:
    a warning is logged, and the next report carries the whole again. Pickles as its arguments; in a
    forked child it starts anew.
    """

    def __init__(self, address: ServiceAddress, job: str, spec: JobSpec) -> None:
        self.address = address
        self.job = job
        self.spec = spec
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._name = uuid.uuid4().hex
        self._wake = threading.Condition()
        self._counters: list[Counters] = []
        self._thread: threading.Thread | None = None
        self._connection: Connection | None = None
        self._closing_until: float | None = None
        self._introduced = False
        self._warned = False

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.address, self.job, self.spec)

    def __repr__(self) -> str:
        return f"ServiceClient({self.address}, job={self.job!r})"

    def counters(
        self,
        task: int,
        attempt: int,
        *,
        scan: int = 0,
        rows_expected: int | None = None,
        bytes_expected: int | None = None,
    ) -> Counters:
        """New counters, reported every half second from now on. See `progress.Snapshot` for the names."""
        self._check_process()
        counters = Counters(
            task, attempt, scan=scan, rows_expected=rows_expected, bytes_expected=bytes_expected
        )
        with self._wake:
            if self._closing_until is not None:
                raise ServiceUnavailableError("the client of the service is closed")
            self._counters.append(counters)
            self._start()
        return counters

    def close(self) -> None:
        """Send the final counters, within 2 s, and end. Again: harmless."""
        if os.getpid() != self._pid:
            return
        with self._wake:
            if self._closing_until is None:
                self._closing_until = SYSTEM_CLOCK.now() + _FLUSH_SECONDS
                self._wake.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_FLUSH_SECONDS + 1.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            if self._connection is not None:
                self._connection.abandon()
            self._begin()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="spark-channel-client", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        from spark_channel.service.connection import Connection

        self._connection = Connection(self.address)
        pause = _FIRST_REPORT_AFTER
        last_sent = SYSTEM_CLOCK.now()
        retry = 0.5
        try:
            while True:
                until = self._wait(pause)
                now = SYSTEM_CLOCK.now()
                changed = [(each, snapshot) for each in self._all() if (snapshot := each.changes())]
                if until is None and not changed and now - last_sent < _HEARTBEAT:
                    continue
                timeout = _REPORT_TIMEOUT if until is None else until - now
                if timeout <= 0:
                    return
                try:
                    pause = self._send([snapshot for _, snapshot in changed], until is not None, timeout)
                    last_sent, retry = now, 0.5
                except (ServiceUnavailableError, ServiceDeniedError) as error:
                    for each, _ in changed:
                        each.unsent()
                    self._warn(error)
                    if until is not None:
                        return
                    pause, retry = retry, min(2 * retry, _SLOWEST_RETRY)
                    continue
                if until is not None:
                    return
        except Exception:
            _log.exception("the reporting of counters failed; the task goes on without it")
        finally:
            self._connection.close()

    def _wait(self, seconds: float) -> float | None:
        """Sleep; returns the instant until which the last report may take once the client is closing."""
        with self._wake:
            if self._closing_until is None:
                self._wake.wait(seconds)
            return self._closing_until

    def _all(self) -> list[Counters]:
        with self._wake:
            return list(self._counters)

    def _send(self, snapshots: list[Snapshot], leaving: bool, timeout: float) -> float:
        """Report; returns seconds until the next one is due."""
        body: dict[str, Any] = {
            "job": self.job,
            "client": self._name,
            "snapshots": [each.to_json() for each in snapshots],
            "leaving": leaving,
        }
        if not self._introduced:
            body["spec"] = self.spec.to_json()
        assert self._connection is not None
        answer = self._connection.call("report", body, timeout=timeout)
        if answer.get("report_after") is None:
            body["spec"] = self.spec.to_json()
            answer = self._connection.call("report", body, timeout=timeout)
        self._introduced = True
        after = answer.get("report_after")
        return min(max(0.1, float(after)), 60.0) if isinstance(after, (int, float)) else _HEARTBEAT

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("progress of this task is not shown: %s", error)
