"""YARN of the tests' own: a ResourceManager and a NodeManager of Hadoop 3.4 in one JVM.

The manager is at 127.0.0.1 and the node at 127.0.0.2: executors, and the driver in cluster mode, have another address
than who submits.
"""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.servers.hadoop import java, start_jvm
from tests.servers.installed import EVERY, installed
from tests.servers.ports import free_port

__all__ = ["NODE", "Yarn", "start_yarn"]

NODE = "127.0.0.2"
_SECONDS = 120
_MEGABYTES = 5_120


@dataclass(frozen=True)
class Yarn:
    """`settings` is the folder of a client's settings, for HADOOP_CONF_DIR. `folder` has the nodes' files."""

    folder: Path
    settings: Path

    def application(self, *arguments: str) -> str:
        """What `yarn application ARGUMENT...` prints."""
        jars = f"{self.settings}:{installed('yarn', 'hadoop-yarn-client of Maven', by=EVERY)}/*"
        program = "org.apache.hadoop.yarn.client.cli.ApplicationCLI"
        command = [java(), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", jars, program]
        done = subprocess.run(
            [*command, "application", *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=_SECONDS,
        )
        return done.stdout

    def logs(self, application: str) -> str:
        """What the containers of an application have printed, and the servers."""
        files = [*sorted((self.folder / "logs" / application).glob("*/std*")), self.folder / "log"]
        return "".join(f"== {file}\n{file.read_text(errors='replace')}" for file in files)


def _write(file: Path, settings: Mapping[str, str]) -> None:
    properties = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>"
        for name, value in settings.items()
    )
    file.write_text(f"<configuration>{properties}</configuration>")


@contextmanager
def start_yarn() -> Iterator[Yarn]:
    """YARN with 5 GB and 8 cores to give; the files of applications are below its folder."""
    with tempfile.TemporaryDirectory(prefix="spark-channel-yarn-") as name:
        folder = Path(name)
        yarn = Yarn(folder, folder / "settings")
        yarn.settings.mkdir()
        _write(yarn.settings / "core-site.xml", {"fs.defaultFS": f"file://{folder}/files"})
        addresses = ("address", "scheduler.address", "resource-tracker.address", "admin.address")
        manager = {
            f"yarn.resourcemanager.{address}": f"127.0.0.1:{free_port()}"
            for address in (*addresses, "webapp.address")
        }
        node = {
            f"yarn.nodemanager.{address}": f"{NODE}:0"
            for address in ("address", "localizer.address", "webapp.address")
        }
        _write(
            yarn.settings / "yarn-site.xml",
            {
                **manager,
                **node,
                "yarn.nodemanager.resource.memory-mb": str(_MEGABYTES),
                "yarn.scheduler.minimum-allocation-mb": "128",
                "yarn.nodemanager.vmem-check-enabled": "false",
                "yarn.nodemanager.pmem-check-enabled": "false",
                # A disk that is over 90 % full is no fault of the tests.
                "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
                "yarn.nodemanager.local-dirs": f"{folder}/local",
                "yarn.nodemanager.log-dirs": f"{folder}/logs",
                "yarn.nodemanager.delete.debug-delay-sec": "600",
                "yarn.resourcemanager.am.max-attempts": "1",
            },
        )
        _write(
            yarn.settings / "capacity-scheduler.xml",
            {
                "yarn.scheduler.capacity.root.queues": "default",
                "yarn.scheduler.capacity.root.default.capacity": "100",
                "yarn.scheduler.capacity.maximum-am-resource-percent": "1",
            },
        )
        try:
            with _servers(yarn):
                yield yarn
        finally:
            _end_containers(folder)


@contextmanager
def _servers(yarn: Yarn) -> Iterator[None]:
    home = str(Path(java()).resolve().parents[1])  # containers begin with it
    with start_jvm(
        yarn.folder,
        "yarn",
        "hadoop-yarn-server-nodemanager",
        f"-Dyarn.log.dir={yarn.folder}",
        environment={"JAVA_HOME": home},
    ) as jvm:
        hadoop = jvm.org.apache.hadoop
        conf = hadoop.yarn.conf.YarnConfiguration()
        for file in yarn.settings.iterdir():
            conf.addResource(hadoop.fs.Path(str(file)))
        hadoop.metrics2.lib.DefaultMetricsSystem.setMiniClusterMode(True)  # both in one JVM
        servers = hadoop.yarn.server
        manager = servers.resourcemanager.ResourceManager()
        node = servers.nodemanager.NodeManager()
        for server in (manager, node):
            server.init(conf)
            server.start()
        end = time.monotonic() + _SECONDS
        while manager.getRMContext().getRMNodes().size() < 1:  # it registers by itself
            assert time.monotonic() < end, "the NodeManager does not register"
            time.sleep(0.05)
        yield


def _end_containers(folder: Path) -> None:
    """A NodeManager that is killed leaves what it started."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cwd").readlink().is_relative_to(folder):
                os.kill(int(process.name), signal.SIGKILL)
