"""What a planner worker, a descendant of the driver's JVM on its host, can learn of its driver."""

import logging
import os
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from spark_channel.errors import LimitError, OptionError
from spark_channel.options import CommonOptions, WriteOptions
from spark_channel.service import (
    ServiceAddress,
    ServiceControl,
    ServiceSettings,
    driver_pid,
    ensure_service,
    find_service,
)
from spark_channel.spark.driver_host import bind_to, driver_host
from spark_channel.transfers.job_limits import is_limited
from spark_channel.transfers.reporter import JobReporter
from spark_channel.working_directory import WorkingDirectory, absolute_path

__all__ = [
    "JobReporter",
    "command_of",
    "default_parallelism",
    "found_service",
    "on_one_host",
    "reach_service",
    "service_settings",
    "slots_now",
    "takes_times",
    "working_directory",
]

_log = logging.getLogger(__name__)

_LOCAL_MASTER = re.compile(r"(?:spark\.master=|--master[= ])local(?:\[(\d+|\*)|-cluster|\b)")
_DEFAULT_FS = re.compile(r"spark\.hadoop\.fs\.(?:defaultFS|default\.name)=(\S+)")


def command_of(jvm: int | None = None) -> str:
    """The command line of the driver's JVM, by default an ancestor; empty without /proc."""
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


def service_settings(command: str, host: str | None = None, jvm: int | None = None) -> ServiceSettings:
    """Where a service that executors must reach binds: the loopback for a local master, else the host that Spark
    knows: `host`, or what can be seen of the driver with this `command` line and pid.

    `SPARK_CHANNEL_HOST` and `SPARK_CHANNEL_PORT` in the driver's environment win. It speaks TLS where
    `SPARK_CHANNEL_TLS_CERTIFICATE` and `SPARK_CHANNEL_TLS_KEY` name PEM files there; tasks trust the
    certificate, or `SPARK_CHANNEL_TLS_ROOT`.

    Raises:
        OptionError: a certificate without its key, a key without its certificate, or a port that is none.
    """
    settings = ServiceSettings(
        port=_port(os.environ.get("SPARK_CHANNEL_PORT", "")),
        tls_certificate=_file_in("SPARK_CHANNEL_TLS_CERTIFICATE"),
        tls_key=_file_in("SPARK_CHANNEL_TLS_KEY"),
        tls_root=_file_in("SPARK_CHANNEL_TLS_ROOT"),
    )
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise OptionError(
            "SPARK_CHANNEL_TLS_CERTIFICATE and SPARK_CHANNEL_TLS_KEY go together",
            option="SPARK_CHANNEL_TLS_KEY",
        )
    if own := os.environ.get("SPARK_CHANNEL_HOST"):
        name = own
    elif _LOCAL_MASTER.search(command):
        return settings
    else:
        name = host or driver_host(command, driver_pid() if jvm is None else jvm)
    return replace(settings, host=bind_to(name), advertise_host=name.strip("[]"))


def _file_in(variable: str) -> str | None:
    """
    Raises:
        OptionError: it is relative, and the working directory of the driver cannot be told.
    """
    given = os.environ.get(variable)
    if not given:
        return None
    try:
        return absolute_path(given, uri=False)
    except ValueError as error:
        raise OptionError(f"{variable} takes {error}", option=variable, got=given) from None


def _port(text: str) -> int:
    if text.strip() in ("", "0"):
        return 0
    if text.strip().isdigit() and 0 < int(text) < 65536:
        return int(text)
    raise OptionError(
        f"SPARK_CHANNEL_PORT is {text!r} in the driver's environment; "
        "it takes a port from 1 to 65535, or 0 for a free one",
        option="SPARK_CHANNEL_PORT",
        got=text,
        takes="0 to 65535",
    )


def reach_service(
    options: CommonOptions,
    *,
    host: str | None = None,
    can_do_without: bool = False,
    counts: bool | None = None,
) -> ServiceAddress | None:
    """The driver's service: started if the job needs one, else only found; None when there is none.

    `can_do_without`: each task has a static share of the limit, so that a service that cannot be started is told of,
    and not the end of the job. `counts`: connections have to be counted. `host` is what Spark calls the driver's, where
    a session could tell.

    Raises:
        ServiceUnavailableError: a limit asks for it and it cannot be started.
    """
    if counts is None:
        counts = getattr(options, "max_connections", None) is not None
    needed = bool(options.shared_limit) or counts or (is_limited(options) and not can_do_without)
    if needed:
        return ensure_service(service_settings(command_of(), host))
    try:
        if is_limited(options) or _counts_dirty_rows(options):
            return ensure_service(service_settings(command_of(), host))
        return find_service()
    except (LimitError, OSError) as error:
        how = ", and each task keeps its fixed share of the limit" if is_limited(options) else ""
        _log.warning("progress is not shown%s: %s", how, error)
        return None


def found_service() -> ServiceAddress | None:
    """The driver's service, if one runs."""
    try:
        return find_service()
    except (LimitError, OSError):
        return None


def slots_now(service: ServiceAddress | None, registered: int | None) -> int | None:
    """How many Spark tasks run at a time; None when it is not known.

    A service in the driver's own Python knows what executors there are now, `registered` is what there was then.
    """
    local = _LOCAL_MASTER.search(command_of())
    if local:
        return default_parallelism(command_of())
    if service is not None:
        try:
            with ServiceControl(service) as control:
                slots = control.call("slots", {}).get("slots")
                return slots if isinstance(slots, int) and slots > 0 else registered
        except LimitError:
            pass  # one that was started by a planner knows nothing of the session
    return registered


def on_one_host() -> bool:
    """Whether the master is local: its tasks reach whatever the driver reaches."""
    return _LOCAL_MASTER.search(command_of()) is not None


def _counts_dirty_rows(options: CommonOptions) -> bool:
    """Whether tasks must know of each other's refused rows."""
    if not isinstance(options, WriteOptions) or not options.tolerates_dirty_rows:
        return False
    return options.most_dirty_rows is not None or options.max_dirty_fraction is not None
