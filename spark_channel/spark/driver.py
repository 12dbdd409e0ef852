"""What a planner worker, a descendant of the driver's JVM on its host, can learn of its driver."""

import contextlib
import logging
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

from spark_channel.errors import LimitError
from spark_channel.options import CommonOptions
from spark_channel.progress import JobSpec, Phase
from spark_channel.service import (
    ServiceAddress,
    ServiceControl,
    ServiceSettings,
    SharedLimitAddress,
    driver_pid,
    ensure_service,
    find_service,
    find_shared_limit,
)

__all__ = [
    "JobReporter",
    "command_of",
    "default_parallelism",
    "is_limited",
    "limit_scope_of",
    "reach_service",
    "service_settings",
    "shared_limit_of",
]

_log = logging.getLogger(__name__)

_LOCAL_MASTER = re.compile(r"(?:spark\.master=|--master[= ])local(?:\[(\d+|\*)|-cluster|\b)")
_DRIVER_HOST = re.compile(r"spark\.driver\.host=(\S+)")


def command_of(jvm: int | None = None) -> str:
    """The command line of the driver's JVM, by default an ancestor; empty where there is no /proc."""
    try:
        raw = Path(f"/proc/{driver_pid() if jvm is None else jvm}/cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode(errors="replace")


def default_parallelism(command: str) -> int:
    """The cores of a local master, else of the driver's host."""
    match = _LOCAL_MASTER.search(command)
    if match and match.group(1) and match.group(1) != "*":
        return max(1, int(match.group(1)))
    return os.cpu_count() or 1


def service_settings(command: str) -> ServiceSettings:
    """Where a service that executors must reach binds: the loopback for a local master.

    `SPARK_CHANNEL_HOST` and `SPARK_CHANNEL_PORT` in the driver's environment win.
    """
    port = int(os.environ.get("SPARK_CHANNEL_PORT", "0"))
    if host := os.environ.get("SPARK_CHANNEL_HOST"):
        return ServiceSettings(host=host, port=port)
    if _LOCAL_MASTER.search(command):
        return ServiceSettings(port=port)
    match = _DRIVER_HOST.search(command)
    name = match.group(1) if match else os.environ.get("SPARK_LOCAL_IP") or socket.gethostname()
    return ServiceSettings(host=socket.gethostbyname(name), port=port)


def is_limited(options: CommonOptions) -> bool:
    """Whether a speed must hold over the whole job."""
    return bool(options.rows_per_second or options.bytes_per_second or options.shared_limit)


def reach_service(options: CommonOptions) -> ServiceAddress | None:
    """The driver's service: started if the job needs one, else only found; None when there is none.

    Raises:
        ServiceUnavailableError: a limit asks for it and it cannot be started.
    """
    if is_limited(options) or getattr(options, "max_connections", None):
        return ensure_service(service_settings(command_of()))
    try:
        return find_service()
    except LimitError as error:
        _log.warning("progress is not shown: %s", error)
        return None


def shared_limit_of(options: CommonOptions) -> SharedLimitAddress | None:
    """Where the limit of option `sharedLimit` is kept; found on the driver's host, before any task runs.

    Raises:
        OptionError: it is not served, or its token is missing.
    """
    if options.shared_limit is None:
        return None
    token = options.shared_limit_token
    return find_shared_limit(options.shared_limit, None if token is None else token.get_secret_value())


def limit_scope_of(options: CommonOptions) -> str:
    """What the limit holds for, as people read it."""
    if options.shared_limit is not None:
        return f"shared limit {options.shared_limit}"
    per_task = options.rows_per_second_per_task or options.bytes_per_second_per_task
    return "each Spark task" if per_task else "the whole job"


class JobReporter:
    """Tells the service about a job that this side owns. Progress never fails a job: errors are logged."""

    def __init__(self, address: ServiceAddress | None, job: str) -> None:
        self._address = address
        self._job = job

    def open(self, spec: JobSpec) -> None:
        with self._control() as control:
            if control is not None:
                control.open_job(spec, self._job)

    def enter(self, phase: Phase, *, error: str = "", where: str = "", rows: int | None = None) -> None:
        with self._control() as control:
            if control is not None:
                control.enter(self._job, phase, error=error, where=where, rows=rows)

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
