"""`ensure_service` finds or starts the driver's service; `ServiceControl` controls it."""

import atexit
import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.errors import ChannelError, LimitError, ServiceUnavailableError
from spark_channel.plain_text import log_of
from spark_channel.processes import driver_pid, started
from spark_channel.progress import JobSpec, Phase, TransferReport
from spark_channel.service.discovery import (
    ServiceDirectory,
    ServiceRecord,
    advert_name,
    bare_environment,
    keep_clean,
)
from spark_channel.service.protocol import ServiceAddress, TlsFiles

__all__ = [
    "JobReporter",
    "ServiceControl",
    "ServiceSettings",
    "advertise",
    "ensure_service",
    "find_service",
    "reason_of",
    "serve_here",
]


_log = log_of(__name__)
_HELLO_SECONDS = 2.0
_LARGEST_ANSWER = 4096
_PROGRAM = (
    "import os; os.fork() and os._exit(0); import runpy; "
    "runpy.run_module('spark_channel.service', run_name='__main__', alter_sys=True)"
)
"""`python -m spark_channel.service`, left to init before anything is imported that starts threads: so the
starter has no zombie, and nothing with threads is forked."""


class ServiceControl:
    """Opens and closes jobs, asks for their status. Connects lazily; close it, or use `with`.

    Every call raises `ServiceUnavailableError` after `timeout` seconds without an answer, and
    `ServiceDeniedError` when it was refused.
    """

    def __init__(self, address: ServiceAddress, *, timeout: float = 5.0) -> None:
        from spark_channel.service.connection import Connection

        self._connection = Connection(address)
        self._timeout = timeout

    def hello(self) -> dict[str, Any]:
        """`{"service": "spark-channel", "protocol": ..., "pid": ..., "scope": ...}`."""
        return self._call("hello", {})

    def open_job(self, spec: JobSpec, job: str | None = None) -> str:
        """Open a job that this side will close by `enter(job, DONE | FAILED)`; returns its id."""
        return str(self._call("open_job", {"spec": spec.to_json(), "job": job})["job"])

    def enter(
        self,
        job: str,
        phase: Phase,
        *,
        error: str = "",
        where: str = "",
        rows: int | None = None,
        limit: str = "",
        building: str = "",
    ) -> None:
        """See `progress.JobProgress.enter`; `limit`: how it was kept, where not by the service."""
        body = {
            "job": job,
            "phase": str(phase),
            "error": error[:4096],
            "where": where[:4096],
            "rows": rows,
        }
        optional = {"limit": limit[:4096], "building": building[:4096]}
        self._call("enter", {**body, **{name: text for name, text in optional.items() if text}})

    def status(self, job: str | None = None) -> list[dict[str, Any]]:
        """One job, or all that run: `job`, `phase`, `line` (the progress line) and its figures."""
        return list(self._call("status", {"job": job})["jobs"])

    def report(self, job: str) -> TransferReport:
        """The report of a job that runs, or was closed lately."""
        return TransferReport.from_json(self._call("job_report", {"job": job})["report"])

    def call(self, action: str, body: dict[str, Any]) -> dict[str, Any]:
        """Any other action."""
        return self._call(action, body)

    def close(self) -> None:
        """Close the connection. The service continues."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _call(self, action: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._connection.call(action, body, timeout=self._timeout)


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """The address that a service binds to, and the one that it gives its clients; see `ServiceServer`."""

    host: str = "127.0.0.1"
    port: int = 0
    advertise_host: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_root: str | None = None

    @property
    def tls(self) -> TlsFiles | None:
        if self.tls_certificate is None or self.tls_key is None:
            return None
        return TlsFiles(self.tls_certificate, self.tls_key, self.tls_root)


def find_service(watch_pid: int | None = None) -> ServiceAddress | None:
    """The service that ends with process `watch_pid` (the driver's JVM), if one answers."""
    standing = ServiceDirectory().read(
        advert_name(driver_pid() if watch_pid is None else watch_pid)
    )
    return standing.address if standing is not None and _answers(standing) else None


def ensure_service(
    settings: ServiceSettings | None = None, *, watch_pid: int | None = None, timeout: float = 10.0
) -> ServiceAddress:
    """The service that ends with process `watch_pid`; started, as a separate process, if none runs.

    `watch_pid` None: the driver's JVM, see `driver_pid`. Callers at the same time get the same service. It
    outlives its starter, and ends within a second of the watched process.

    Raises:
        ServiceUnavailableError: it did not start within `timeout` seconds; the message says why.
    """
    settings = settings or ServiceSettings()
    watch_pid = driver_pid() if watch_pid is None else watch_pid
    since = started(watch_pid)
    if since is None:
        raise ServiceUnavailableError(
            f"process {watch_pid} does not exist: no service can be started for it"
        )
    name = advert_name(watch_pid)
    rendezvous = ServiceDirectory()
    standing = rendezvous.read(name)
    if standing is not None and standing.watch_started == since and _answers(standing):
        return standing.address
    replace = None if standing is None else standing.nonce
    _start(
        {**asdict(settings), "watch_pid": watch_pid, "watch_started": since, "replace": replace},
        timeout,
    )
    standing = rendezvous.read(name)
    if standing is None or not _answers(standing):
        raise ServiceUnavailableError(
            "the service started and ended again: see the driver's log for the reason, then run the job again"
        )
    return standing.address


def advertise(
    address: ServiceAddress, watch_pid: int, name: str | None = None
) -> Callable[[], None]:
    """Let planner workers find a service of this process under the driver's pid; returns how to take it back.

    Under another `name`, only the page and `spark-channel limits` find it. It takes the place of any other: the last to
    advertise is found. A small separate process removes the file when the driver or this process was killed.

    Raises:
        ServiceUnavailableError: the process does not exist, or no private directory that can be written to.
    """
    since = started(watch_pid)
    if since is None:
        raise ServiceUnavailableError(
            f"process {watch_pid} does not exist: no service can be found under it"
        )
    name, rendezvous = name or advert_name(watch_pid), ServiceDirectory()
    advert = ServiceRecord.of_this_process(address, watch_pid, since)
    standing = rendezvous.read(name)
    rendezvous.publish(name, advert, replace=standing.nonce if standing else None)
    keep_clean(rendezvous.directory, name, advert)
    return lambda: rendezvous.withdraw(name, advert.nonce)


def serve_here() -> None:
    """Start a service of this process, which the page finds, and which ends with the process.

    Raises:
        ServiceUnavailableError: it cannot listen. OptionError: a variable that it reads makes no sense.
    """
    from spark_channel.service.server import ServiceServer

    address = ServiceServer().start()
    pid = os.getpid()
    try:
        take_back = advertise(address, pid, f"process-{advert_name(pid)}")
    except ChannelError as error:  # metrics and lineage are sent all the same
        _log.warning("`spark-channel ui` does not find the jobs of this process: %s", error)
        return

    def withdraw() -> None:
        with contextlib.suppress(OSError):  # the runtime directory went before this process
            take_back()

    atexit.register(withdraw)


def _answers(advert: ServiceRecord) -> bool:
    if not advert.live:
        return False
    with ServiceControl(advert.address, timeout=_HELLO_SECONDS) as control:
        try:
            return control.hello().get("service") == "spark-channel"
        except ChannelError:
            return False


def _start(request: dict[str, Any], timeout: float) -> None:
    """Run the service's program; what it needs goes through its stdin, nothing through argv."""
    for field in ("tls_certificate", "tls_key", "tls_root"):
        if request[field] is not None:
            request[field] = str(Path(request[field]).absolute())
    path = os.pathsep.join(str(Path(path_entry).absolute()) for path_entry in sys.path)
    process = subprocess.Popen(  # noqa: S603 - this package's module, by the interpreter that runs this
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**bare_environment(), "PYTHONPATH": path},
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with process.stdin as stdin:
            stdin.write(json.dumps(request).encode())
        answer = _read_line(process.stdout.fileno(), timeout)
    except BrokenPipeError:
        answer = b""
    finally:
        process.stdout.close()
        try:
            process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    try:
        outcome = json.loads(answer)
    except ValueError:
        raise ServiceUnavailableError(
            f"the service did not start within {timeout:g} s; see the driver's log, and try "
            f"`{sys.executable} -c 'import spark_channel.service.server'` on its host"
        ) from None
    if "error" in outcome:
        raise ServiceUnavailableError(str(outcome["error"]))


def _read_line(descriptor: int, timeout: float) -> bytes:
    """All output up to the end of the pipe or the end of the time."""
    end = SYSTEM_CLOCK.now() + timeout
    text = b""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while (remaining := end - SYSTEM_CLOCK.now()) > 0 and len(text) < _LARGEST_ANSWER:
        if not poll.poll(remaining * 1000):
            break
        part = os.read(descriptor, _LARGEST_ANSWER)
        text += part
        if not part or text.endswith(b"\n"):
            break
    return text


def reason_of(error: BaseException) -> str:
    """Why a job failed, for its summary."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return str(error) or type(error).__name__


class JobReporter:
    """Reports a job that this process owns to the service. A failed report never fails the job: errors are logged."""

    def __init__(self, address: ServiceAddress | None, job: str) -> None:
        self._address = address
        self._job = job

    def open(self, spec: JobSpec) -> None:
        with self._control() as control:
            if control is not None:
                control.open_job(spec, self._job)

    def enter(
        self,
        phase: Phase,
        *,
        error: str = "",
        where: str = "",
        rows: int | None = None,
        limit: str = "",
        building: str = "",
    ) -> None:
        with self._control() as control:
            if control is not None:
                control.enter(
                    self._job,
                    phase,
                    error=error,
                    where=where,
                    rows=rows,
                    limit=limit,
                    building=building,
                )

    @contextlib.contextmanager
    def _control(self) -> Iterator[ServiceControl | None]:
        if self._address is None:
            yield None
            return
        try:
            with ServiceControl(self._address) as control:
                yield control
        except LimitError as error:
            _log.warning("job %s: its progress is not shown: %s", self._job, error)
