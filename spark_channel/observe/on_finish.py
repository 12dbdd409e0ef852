"""`SPARK_CHANNEL_ON_FINISH`: a command, or a url, that gets the report of each job at its end."""

import base64
import http.client
import shlex
import subprocess
from urllib.parse import unquote_to_bytes, urlsplit

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.errors import OptionError
from spark_channel.observe.outbox import Outbox
from spark_channel.progress import JobProgress, Phase

__all__ = ["VARIABLE", "FinishNotice"]

VARIABLE = "SPARK_CHANNEL_ON_FINISH"

_URL_SECONDS = 10.0
_COMMAND_SECONDS = 60.0
_LONGEST_LINE = 64 << 10


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
        left = end - SYSTEM_CLOCK.now()
        if left <= 0:
            raise TimeoutError
        connection.sock.settimeout(left)
        part = connection.sock.recv(1024)
        if not part or len(line) > _LONGEST_LINE:
            raise http.client.BadStatusLine("")
        line += part
    return int(line.partition(b" ")[2][:3])
