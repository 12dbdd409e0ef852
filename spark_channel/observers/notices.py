"""Notices to other systems: the outbox that sends them, and `SPARK_CHANNEL_ON_FINISH`, which gets reports of jobs."""

import base64
import http.client
import queue
import shlex
import subprocess
import threading
from collections.abc import Callable
from urllib.parse import unquote_to_bytes, urlsplit

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.errors import OptionError
from spark_channel.observers.metrics import Family
from spark_channel.plain_text import log_of
from spark_channel.progress import JobProgress, Phase

__all__ = ["VARIABLE", "FinishNotice", "Outbox"]

_log = log_of(__name__)

_MOST = 1_000
_END_SECONDS = 5.0
_END = object()
_TICK = object()

VARIABLE = "SPARK_CHANNEL_ON_FINISH"
_URL_SECONDS = 10.0
_COMMAND_SECONDS = 60.0
_LONGEST_LINE = 64 << 10


class Outbox:
    """A bounded queue before `send`, which takes one item at a time and may raise.

    `tick` is called each `every` seconds, however many items there are.

    An item is dropped and counted if the queue is full, as are those that are left when `close` has waited for
    its deadline. The first failure of each kind is logged.
    """

    def __init__(
        self,
        receiver: str,
        send: Callable[[object], None],
        *,
        most: int = _MOST,
        tick: Callable[[], None] = lambda: None,
        every: float | None = None,
    ) -> None:
        self.receiver = receiver
        self._send, self._tick, self._every = send, tick, every
        self._items: queue.Queue[object] = queue.Queue(most)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._counts = {"sent": 0, "failed": 0, "dropped": 0}
        self._warned: set[str] = set()
        self._closing = self._abandoned = False

    def open(self) -> None:
        """Start the thread, which can no longer start when the interpreter ends."""
        with self._lock:
            if self._closing or self._thread is not None:
                return
            thread = threading.Thread(
                target=self._run, name=f"spark-channel-{self.receiver}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                return
            self._thread = thread

    def put(self, item: object) -> None:
        """Have `item` sent soon; never waits."""
        self.open()
        with self._lock:
            if self._closing:
                return
            if self._thread is None:
                self._count("dropped", "the program was ending")
                return
            try:
                self._items.put_nowait(item)
            except queue.Full:
                self._count("dropped", "the receiver is too slow")

    def close(self, seconds: float | None = None) -> None:
        """Send what is left, for 5 s or `seconds` at most. Calling it again has no effect."""
        seconds = _END_SECONDS if seconds is None else seconds
        with self._lock:
            thread, self._closing = self._thread, True
        if thread is None or self._abandoned:
            return
        until = SYSTEM_CLOCK.now() + seconds
        try:
            self._items.put(_END, timeout=seconds)
        except queue.Full:
            pass
        thread.join(max(0.0, until - SYSTEM_CLOCK.now()))
        with self._lock:
            unsent, self._abandoned = self._items.qsize(), True
            if thread.is_alive():
                self._count(
                    "dropped",
                    f"{seconds:g} s after the program's end it was not sent",
                    max(1, unsent),
                )

    def counts(self) -> dict[str, int]:
        """How many items were sent, failed and dropped."""
        with self._lock:
            return dict(self._counts)

    def family(self) -> Family:
        """The counts as a metric."""
        family = Family("spark_channel_notices_total", "counter", "Notices to other systems.")
        for outcome, count in self.counts().items():
            family.samples.append(((("to", self.receiver), ("outcome", outcome)), count))
        return family

    def _run(self) -> None:
        due = None if self._every is None else SYSTEM_CLOCK.now() + self._every
        while not self._abandoned:
            wait = None if due is None else max(0.0, due - SYSTEM_CLOCK.now())
            try:
                item = self._items.get(timeout=wait)
            except queue.Empty:
                item = _TICK
            if self._every is not None and due is not None and SYSTEM_CLOCK.now() >= due:
                due = SYSTEM_CLOCK.now() + self._every
                self._try(self._tick)
            if item is _TICK:
                continue
            if item is _END:
                return
            if self._try(lambda item=item: self._send(item)):  # type: ignore[misc] # mypy infers no lambda with a default
                with self._lock:
                    self._counts["sent"] += 1

    def _try(self, call: Callable[[], None]) -> bool:
        try:
            call()
        except Exception as error:
            _log.debug("a notice to %s failed", self.receiver, exc_info=True)
            with self._lock:
                self._count("failed", str(error) or type(error).__name__)
            return False
        return True

    def _count(self, outcome: str, reason: str, count: int = 1) -> None:
        self._counts[outcome] += count
        if outcome not in self._warned:
            self._warned.add(outcome)
            _log.warning(
                "a notice to %s was %s: %s. The job is not affected; further ones are counted in /metrics",
                self.receiver,
                "dropped" if outcome == "dropped" else "not accepted",
                reason,
            )


class FinishNotice:
    """Sends a report as JSON: to the command's standard input, or by POST. A `JobListener`.

    It sends only those micro-batches of a stream that failed. No message shows the url, whose path may be a secret.

    Raises:
        OptionError: `target` is neither a url of http or https nor a command.
    """

    def __init__(self, target: str) -> None:
        self._url = urlsplit(target) if "://" in target.split(" ", maxsplit=1)[0] else None
        try:
            if self._url is None:
                self._command = shlex.split(target)
                valid = bool(self._command)
            else:
                is_plain = target.isascii() and target.isprintable() and " " not in target
                is_http = self._url.scheme in ("http", "https") and bool(self._url.hostname)
                valid = is_plain and is_http and self._url.port != 0
        except ValueError:  # an open quote, a port that is not a number
            valid = False
        if not valid:
            raise OptionError(
                f"{VARIABLE} is neither a url that begins with http:// or https://, nor a command with its arguments",
                option=VARIABLE,
            )
        self.outbox = Outbox("onFinish", self._send)

    def job_opened(self, progress: JobProgress) -> None:
        self.outbox.open()

    def job_closed(self, progress: JobProgress) -> None:
        if progress.spec.batch is None or progress.phase is Phase.FAILED:
            self.outbox.put(progress.report().to_json().encode("utf-8", "replace"))

    def _send(self, report: object) -> None:
        assert isinstance(report, bytes)
        if self._url is None:
            self._call(report)
        else:
            self._post(report)

    def _call(self, report: bytes) -> None:
        name = self._command[0]
        try:
            ended = subprocess.run(  # noqa: S603 - the command of the user's environment
                self._command,
                input=report,
                stdout=subprocess.DEVNULL,
                timeout=_COMMAND_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ValueError(f"{name} did not end in {_COMMAND_SECONDS:g} s") from None
        except OSError as error:
            raise ValueError(f"{name} cannot be run: {error.strerror}") from None
        if ended.returncode:
            raise ValueError(f"{name} ended with {ended.returncode}")

    def _post(self, report: bytes) -> None:
        url = self._url
        assert url is not None
        assert url.hostname is not None
        secure = url.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(url.hostname, url.port, timeout=_URL_SECONDS)
        headers = {"Content-Type": "application/json"}
        if url.username is not None:
            login = unquote_to_bytes(f"{url.username}:{url.password or ''}")
            headers["Authorization"] = f"Basic {base64.b64encode(login).decode()}"
        try:
            path = f"{url.path or '/'}?{url.query}" if url.query else url.path or "/"
            connection.request("POST", path, report, headers)
            status = _status(connection)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise ValueError(f"{url.hostname} did not answer: {type(error).__name__}") from None
        finally:
            connection.close()
        if status >= 300:
            raise ValueError(f"{url.hostname} answered {status}")


def _status(connection: http.client.HTTPConnection) -> int:
    """The number in the first line of the answer. A receiver that sends it bit by bit has no more time than others."""
    end, line = SYSTEM_CLOCK.now() + _URL_SECONDS, b""
    while b"\n" not in line:
        remaining = end - SYSTEM_CLOCK.now()
        if remaining <= 0:
            raise TimeoutError
        connection.sock.settimeout(remaining)
        part = connection.sock.recv(1024)
        if not part or len(line) > _LONGEST_LINE:
            raise http.client.BadStatusLine("")
        line += part
    return int(line.partition(b" ")[2][:3])
