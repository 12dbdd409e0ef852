"""Finds the driver, its service and its settings from a planner worker."""

import ipaddress
import json
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_channel.errors import LimitError, OptionError, ServiceUnavailableError
from spark_channel.options import CommonOptions, ReadOptions, WriteOptions
from spark_channel.plain_text import log_of
from spark_channel.processes import driver_pid
from spark_channel.service import (
    ServiceAddress,
    ServiceControl,
    ServiceSettings,
    ensure_service,
    find_service,
    new_job_id,
)
from spark_channel.service.launch import JobReporter
from spark_channel.spark.worker import SessionFacts
from spark_channel.transfers.channels import ChannelBound, task_bound
from spark_channel.transfers.limits import JobLimits, is_limited
from spark_channel.working_directory import WorkingDirectory, absolute_path

if TYPE_CHECKING:
    from spark_channel.connectors import Reader, Writer
    from spark_channel.limits import StaticShare

__all__ = [
    "JobReporter",
    "ask_planner",
    "bind_to",
    "channels_at_once",
    "command_of",
    "default_parallelism",
    "driver_host",
    "found_service",
    "on_one_host",
    "reach_for_write",
    "reach_service",
    "service_settings",
    "slots_now",
    "takes_times",
    "working_directory",
]

_log = log_of(__name__)

_LOCAL_MASTER = re.compile(r"(?:spark\.master=|--master[= ])local(?:\[(\d+|\*)|-cluster|\b)")
_DEFAULT_FS = re.compile(r"spark\.hadoop\.fs\.(?:defaultFS|default\.name)=(\S+)")
_SETTING = re.compile(r"spark\.driver\.host=(\S+)")
_EVERYWHERE = "0.0.0.0"  # noqa: S104 - for a name that only executors can resolve; each call needs the token
_LISTEN, _ESTABLISHED = "0A", "01"
_NOWHERE = ("192.0.2.1", 9)
"""A documentation address: the system's route to it has this host's outgoing address. No packet is sent."""


def driver_host(command: str, jvm: int | None) -> str:
    """The host's name or address, from what a process on it sees of the driver: its `command` line and pid.

    The setting `spark.driver.host` comes first, then the address at which executors are connected to the JVM now,
    then Spark's own defaults: its environment variables, the host's address, an interface that is not the loopback
    (Debian's hosts resolve their own name to 127.0.1.1).
    """
    match = _SETTING.search(command)
    if match:
        return match.group(1)
    return (
        os.environ.get("SPARK_LOCAL_HOSTNAME")
        or (_connected(jvm) if jvm is not None else None)
        or os.environ.get("SPARK_LOCAL_IP")
        or _own_address()
    )


def bind_to(host: str) -> str:
    """Return the address to bind a service to when its clients connect to `host`.

    A name may be known to executors only (a Kubernetes service, the outer name of a container), or mean the loopback
    here and this machine elsewhere: then every address is bound.
    """
    bare = host.strip("[]")
    try:
        addresses = {
            str(entry[4][0]) for entry in socket.getaddrinfo(bare, None, type=socket.SOCK_STREAM)
        }
    except OSError:
        return _EVERYWHERE
    literal = bare in addresses or bare == "localhost"
    for address in sorted(addresses, key=lambda text: ":" in text):
        if (
            literal or not ipaddress.ip_address(address.partition("%")[0]).is_loopback
        ) and _is_ours(address):
            return address
    return _EVERYWHERE


def _is_ours(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.bind((address, 0))
    except OSError:
        return False
    return True


def _own_address() -> str:
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        address = ""
    if address and not ipaddress.ip_address(address).is_loopback:
        return address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
        try:
            trial.connect(_NOWHERE)
            return str(trial.getsockname()[0])
        except OSError:  # no network at all: whoever asks is on this machine
            return address or "127.0.0.1"


def _connected(jvm: int) -> str | None:
    """The address at which most connections from other hosts reach a port of the JVM; None without any."""
    inodes = set()
    try:
        for entry in Path(f"/proc/{jvm}/fd").iterdir():
            try:
                target = str(entry.readlink())
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
        tables = [Path(f"/proc/{jvm}/net/{name}").read_text("ascii") for name in ("tcp", "tcp6")]
    except OSError:
        return None
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    jvm_rows = [row for row in rows if len(row) > 9 and row[9] in inodes]
    ports = {row[1].rpartition(":")[2] for row in jvm_rows if row[3] == _LISTEN}
    counts: dict[str, int] = {}
    for row in jvm_rows:
        local, _, port = row[1].rpartition(":")
        remote = row[2].rpartition(":")[0]
        if row[3] == _ESTABLISHED and port in ports and remote != local:
            address = _address(local)
            if not ipaddress.ip_address(address).is_loopback:
                counts[address] = counts.get(address, 0) + 1
    return max(counts, key=lambda address: counts[address], default=None)


def _address(text: str) -> str:
    """An address as /proc writes it: words of 32 bits in the machine's order."""
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    address = ipaddress.ip_address(b"".join(words))
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def command_of(jvm: int | None = None) -> str:
    """The command line of the driver's JVM, by default an ancestor; empty without /proc."""
    try:
        raw = Path(f"/proc/{driver_pid() if jvm is None else jvm}/cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode(errors="replace")


def working_directory() -> WorkingDirectory:
    """Return the working directory and `fs.defaultFS` of the driver's JVM, as far as its process shows them.

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


def service_settings(
    command: str, host: str | None = None, jvm: int | None = None
) -> ServiceSettings:
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
    if host_set := os.environ.get("SPARK_CHANNEL_HOST"):
        name = host_set
    elif _LOCAL_MASTER.search(command):
        return settings
    else:
        name = host or driver_host(command, driver_pid() if jvm is None else jvm)
    return replace(settings, host=bind_to(name), advertise_host=name.strip("[]"))


def _file_in(variable: str) -> str | None:
    """
    Raises:
        OptionError: the path is relative, and the working directory of the driver is not known.
    """
    path_set = os.environ.get(variable)
    if not path_set:
        return None
    try:
        return absolute_path(path_set, uri=False)
    except ValueError as error:
        raise OptionError(f"{variable} takes {error}", option=variable, got=path_set) from None


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
    bounds: bool = False,
) -> ServiceAddress | None:
    """The driver's service: started if the job needs one, else only found; None when there is none.

    `can_do_without`: each task has a static share of the limit, so a service that cannot be started is logged and does
    not fail the job. `counts`: connections have to be counted. `bounds`: they should be, as the server has few left.
    `host` is Spark's name for the driver's host, where a session could report it.

    Raises:
        ServiceUnavailableError: a limit needs the service, and it cannot be started.
    """
    if counts is None:
        counts = getattr(options, "max_connections", None) is not None
    needed = bool(options.shared_limit) or counts or (is_limited(options) and not can_do_without)
    if needed:
        return ensure_service(service_settings(command_of(), host))
    try:
        if bounds or is_limited(options) or _counts_dirty_rows(options):
            return ensure_service(service_settings(command_of(), host))
        return find_service()
    except (LimitError, OSError) as error:
        how = ", and each task keeps its fixed share of the limit" if is_limited(options) else ""
        how += ", and connections are not counted" if bounds else ""
        _log.warning("progress is not shown%s: %s", how, error)
        return None


def reach_for_write(
    writer: "Writer", limits: JobLimits, facts: SessionFacts, *, shared: bool
) -> "tuple[ServiceAddress | None, StaticShare | None, int | None, str]":
    """The service of a write, each task's share of its limit without it, `maxConnections` if it has to be counted, and
    a remark to log.

    Without that option the server bounds the tasks that are connected at the same time: see `task_bound`, also for
    `shared`.

    Raises:
        ServiceUnavailableError: as `reach_service`. TargetError: the server is not reached.
    """
    options: WriteOptions = writer.options
    most = options.max_connections
    slots = slots_now(found_service(), facts.slots)
    bound = task_bound(writer, tasks=slots, shared=shared) if most is None else None
    if bound is not None:
        most = bound.channels
    remark = ""
    if most is not None and slots is not None and slots <= most:
        most = None  # so many never run at a time: they need no counting
    elif bound is not None:
        remark = (
            f"{'many' if slots is None else slots} Spark tasks write at the same time, and {bound.channels} are "
            f"connected to the target ({bound.reason}); the others wait for them. Option 'maxConnections' sets another "
            "number"
        )
    static = limits.static(slots)
    service = reach_service(
        options,
        host=facts.driver_host,
        can_do_without=static is not None,
        counts=bound is None and most is not None,
        bounds=bound is not None and most is not None,
    )
    return service, static, most, remark


def channels_at_once(
    reader: "Reader", options: ReadOptions, wanted: int, facts: SessionFacts
) -> tuple[int, str]:
    """How many of the `wanted` channels of a read have a task at the same time, and why where they are fewer.

    Raises:
        SourceError: the server is not reached.
    """
    bound: ChannelBound | None
    if options.max_channels is not None:
        bound = ChannelBound(options.max_channels, "option 'maxChannels'")
    else:
        slots = slots_now(found_service(), facts.slots)
        tasks = -(-wanted // options.channels_per_task)
        tasks = tasks if slots is None else min(tasks, slots)
        bound = task_bound(reader, tasks=tasks, of_a_task=options.channels_per_task)
    if bound is None:
        return wanted, ""
    return min(wanted, bound.channels), bound.remark(wanted)


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
    if local and not local.group().endswith("-cluster"):  # whose executors are processes
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


class ServiceDataSource(DataSource):
    """One row: the address of the driver's service as JSON.

    Only planner workers run on the driver's host. For a client elsewhere (Spark Connect), `partitions` starts the
    service on that host, and the one row returns to the client as the result of its query, with a token for the jobs
    that this client opens.
    """

    @classmethod
    def name(cls) -> str:
        return "spark_channel_service"

    def schema(self) -> str:
        return "address string"

    def reader(self, schema: StructType) -> "_ServiceReader":
        return _ServiceReader()


class _ServiceReader(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        address = ensure_service(service_settings(command_of())).for_jobs_of(new_job_id())
        return [InputPartition(json.dumps(address.to_json()))]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        yield (partition.value,)


def ask_planner(spark: SparkSession) -> ServiceAddress:
    """The service on the host of `spark`'s driver.

    Raises:
        ServiceUnavailableError: the answer is not an address.
    """
    spark.dataSource.register(ServiceDataSource)
    row = spark.read.format(ServiceDataSource.name()).load().first()
    try:
        return (
            ServiceAddress.from_json(json.loads(row.address))
            if row
            else ServiceAddress.from_json(None)
        )
    except ValueError as error:
        raise ServiceUnavailableError(
            f"the driver's host gave no address of its service: {error}"
        ) from None
