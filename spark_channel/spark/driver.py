"""What a planner worker, a descendant of the driver's JVM on its host, can learn of its driver."""

import contextlib
import logging
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from spark_channel.errors import LimitError, OptionError
from spark_channel.options import CommonOptions, WriteOptions
from spark_channel.progress import JobSpec, Phase
from spark_channel.service import (
    ServiceAddress,
    ServiceControl,
    ServiceSettings,
    driver_pid,
    ensure_service,
    find_service,
)
from spark_channel.spark.job_limits import is_limited
from spark_channel.working_directory import WorkingDirectory

__all__ = [
    "JobReporter",
    "command_of",
    "default_parallelism",
    "reach_service",
    "service_settings",
    "takes_times",
    "working_directory",
]

_log = logging.getLogger(__name__)

_LOCAL_MASTER = re.compile(r"(?:spark\.master=|--master[= ])local(?:\[(\d+|\*)|-cluster|\b)")
_DEFAULT_FS = re.compile(r"spark\.hadoop\.fs\.(?:defaultFS|default\.name)=(\S+)")
_DRIVER_HOST = re.compile(r"spark\.driver\.host=(\S+)")


def command_of(jvm: int | None = None) -> str:
    """The command line of the driver's JVM, by default an ancestor; empty where there is no /proc."""
    try:
        raw = Path(f"/proc/{driver_pid() if jvm is None else jvm}/cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode(errors="replace")


def working_directory() -> WorkingDirectory:
    """Where the driver's JVM runs, and what `fs.defaultFS` is, as far as its process tells.

    This process's own folder says nothing: Spark starts some Python workers in one that it deletes at the end.
    """
    jvm = driver_pid()
    command = command_of(jvm)
    match = _DEFAULT_FS.search(command)
    default_fs = match.group(1) if match else _default_fs_of_site()
    if not command:
        return WorkingDirectory(None, default_fs)  # no /proc
    if not command.split(" ", 1)[0].endswith("java"):
        return WorkingDirectory(str(Path.cwd()), default_fs)  # not below a JVM: this is the driver
    try:
        return WorkingDirectory(str(Path(f"/proc/{jvm}/cwd").readlink()), default_fs)
    except OSError:
        return WorkingDirectory(None, default_fs)


def _default_fs_of_site() -> str:
    """`fs.defaultFS` of the driver's Hadoop configuration, which Spark finds by the environment."""
    for folder in (os.environ.get("HADOOP_CONF_DIR"), os.environ.get("YARN_CONF_DIR")):
        if not folder:
            continue
        try:
            site = ElementTree.parse(Path(folder, "core-site.xml"))  # noqa: S314 - the cluster's own configuration
        except (OSError, ElementTree.ParseError):
            continue
        for entry in site.iter("property"):
            if entry.findtext("name", "").strip() in ("fs.defaultFS", "fs.default.name"):
                return entry.findtext("value", "").strip()
    return ""


def default_parallelism(command: str) -> int:
    """The cores of a local master, else of the driver's host."""
    match = _LOCAL_MASTER.search(command)
    if match and match.group(1) and match.group(1) != "*":
        return max(1, int(match.group(1)))
    return os.cpu_count() or 1


def takes_times(command: str) -> bool:
    """Whether `spark.sql.timeType.enabled` is set for the whole application; Spark's default is false."""
    return re.search(r"spark\.sql\.timeType\.enabled=true\b", command, re.IGNORECASE) is not None


def service_settings(command: str) -> ServiceSettings:
    """Where a service that executors must reach binds: the loopback for a local master.

    `SPARK_CHANNEL_HOST` and `SPARK_CHANNEL_PORT` in the driver's environment win. It speaks TLS where
    `SPARK_CHANNEL_TLS_CERTIFICATE` and `SPARK_CHANNEL_TLS_KEY` name PEM files there; tasks trust the
    certificate, or `SPARK_CHANNEL_TLS_ROOT`.

    Raises:
        OptionError: a certificate without its key, or a key without its certificate.
    """
    settings = ServiceSettings(
        port=int(os.environ.get("SPARK_CHANNEL_PORT", "0")),
        tls_certificate=os.environ.get("SPARK_CHANNEL_TLS_CERTIFICATE") or None,
        tls_key=os.environ.get("SPARK_CHANNEL_TLS_KEY") or None,
        tls_root=os.environ.get("SPARK_CHANNEL_TLS_ROOT") or None,
    )
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise OptionError(
            "SPARK_CHANNEL_TLS_CERTIFICATE and SPARK_CHANNEL_TLS_KEY go together",
            option="SPARK_CHANNEL_TLS_KEY",
        )
    if host := os.environ.get("SPARK_CHANNEL_HOST"):
        return replace(settings, host=host)
    if _LOCAL_MASTER.search(command):
        return settings
    match = _DRIVER_HOST.search(command)
    name = match.group(1) if match else os.environ.get("SPARK_LOCAL_IP") or socket.gethostname()
    return replace(settings, host=socket.gethostbyname(name))


def reach_service(options: CommonOptions) -> ServiceAddress | None:
    """The driver's service: started if the job needs one, else only found; None when there is none.

    Raises:
        ServiceUnavailableError: a limit asks for it and it cannot be started.
    """
    if is_limited(options) or getattr(options, "max_connections", None) or _counts_dirty_rows(options):
        return ensure_service(service_settings(command_of()))
    try:
        return find_service()
    except LimitError as error:
        _log.warning("progress is not shown: %s", error)
        return None


def _counts_dirty_rows(options: CommonOptions) -> bool:
    """Whether tasks must know of each other's refused rows."""
    if not isinstance(options, WriteOptions) or not options.tolerates_dirty_rows:
        return False
    return options.most_dirty_rows is not None or options.max_dirty_fraction is not None


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
