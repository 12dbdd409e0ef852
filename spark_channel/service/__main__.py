"""The service as its own process: it ends with the process that it watches."""

import json
import logging
import os
import signal
import sys
from typing import Any, NoReturn

from spark_channel.errors import ChannelError
from spark_channel.plain_text import log_in_lines, log_of
from spark_channel.processes import wait_until_gone
from spark_channel.progress import JobProgress, summary_lines
from spark_channel.service.discovery import ServiceDirectory, ServiceRecord, advert_name
from spark_channel.service.launch import ServiceSettings
from spark_channel.service.server import ServiceServer

__all__ = ["main"]

_log = log_of("spark_channel.service")

_LARGEST_REQUEST = 64 << 10


class _SummaryLogger:
    """Logs what each job did."""

    def job_opened(self, progress: JobProgress) -> None:
        _log.debug("job %s opened", progress.job)

    def job_closed(self, progress: JobProgress) -> None:
        for line in summary_lines(progress.report()):
            _log.info("%s: %s", progress.job, line)


def main() -> NoReturn:
    """Read settings from stdin, say `{"ready": true}` or `{"error": ...}` on stdout, serve until the end."""
    request = json.loads(sys.stdin.buffer.read(_LARGEST_REQUEST))
    os.umask(0o077)
    os.chdir("/")
    log_in_lines(logging.INFO)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _serve(request, _end_of_process())
    except ChannelError as error:
        _answer({"error": str(error)})
    logging.shutdown()
    # Not through the interpreter's end, where a call that gRPC still waits for could hold the process.
    os._exit(0)


def _serve(request: dict[str, Any], end: int) -> None:
    watch_pid, since = int(request.pop("watch_pid")), str(request.pop("watch_started"))
    replace = request.pop("replace")
    settings = ServiceSettings(**request)
    name = advert_name(watch_pid)
    rendezvous = ServiceDirectory()
    server = ServiceServer(
        settings.host, settings.port, advertise_host=settings.advertise_host, tls=settings.tls
    )
    with server:
        server.jobs.subscribe(_SummaryLogger())
        advert = ServiceRecord.of_this_process(server.address, watch_pid, since)
        if rendezvous.publish(name, advert, replace=replace) is not advert:
            _answer({"ready": True})
            return
        try:
            _answer({"ready": True})
            wait_until_gone(watch_pid, since, end)
        finally:
            rendezvous.withdraw(name, advert.nonce)


def _answer(outcome: dict[str, Any]) -> None:
    """Send `outcome` to the starter, once, and keep none of the starter's pipes open."""
    starter = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nothing, descriptor)
    os.close(nothing)
    try:
        os.write(starter, json.dumps(outcome).encode() + b"\n")
    except OSError:
        pass  # it has ended
    os.close(starter)


def _end_of_process() -> int:
    """A descriptor that can be read once SIGTERM was received, whichever thread the system gave it to."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda _signal, _frame: None)
    return readable


if __name__ == "__main__":
    main()
