"""A standalone Spark cluster whose driver and workers are hosts of a `Network`."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import pyspark

from tests.behaviour.hosts.network import Network
from tests.spark.recorded import PROMPT
from tests.spark.remote_driver import RECORDER, ROOT, RemoteDriver

__all__ = ["SERVICE_PORT", "Cluster"]

SERVICE_PORT = 38_100
MASTER_PORT = 7077
_START_SECONDS = 60.0


class Cluster:
    """A master on host `driver`, a worker with two cores on each of `workers`."""

    def __init__(self, network: Network, folder: Path, *workers: str) -> None:
        self.network, self._folder, self._workers = network, folder, workers
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            self._start("driver", "master.Master", "--port", str(MASTER_PORT), "--webui-port", "0")
            for worker in self._workers:
                self._start(
                    worker,
                    "worker.Worker",
                    "--cores",
                    "2",
                    "--memory",
                    "1g",
                    "--webui-port",
                    "0",
                    "--work-dir",
                    str(self._folder / worker),
                    self.url,
                )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @property
    def url(self) -> str:
        return f"spark://{self.network['driver'].address}:{MASTER_PORT}"

    def driver(self, conf: dict[str, str] | None = None, **environment: str) -> RemoteDriver:
        """An application with two cores of each worker, on the host `driver`."""
        host = self.network["driver"]
        return RemoteDriver(
            self.url,
            {
                "spark.executor.memory": "512m",
                "spark.executorEnv.PYTHONPATH": os.pathsep.join([str(ROOT), str(RECORDER)]),
                "spark.scheduler.minRegisteredResourcesRatio": "1.0",
                **PROMPT,
                **(conf or {}),
            },
            {
                "SPARK_LOCAL_IP": host.address,
                "SPARK_CHANNEL_PORT": str(SERVICE_PORT),
                "SPARK_CHANNEL_TEST_NETNS": host.path,
                **environment,
            },
        )

    def _start(self, name: str, program: str, *arguments: str) -> None:
        host = self.network[name]
        home = Path(pyspark.__file__).parent
        log = self._folder / f"{name}-{program}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                host.command(
                    str(home / "bin/spark-class"),
                    f"org.apache.spark.deploy.{program}",
                    "--host",
                    host.address,
                    *arguments,
                ),
                stdout=file,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "SPARK_HOME": str(home),
                    "SPARK_LOCAL_IP": host.address,
                    "SPARK_DAEMON_MEMORY": "256m",
                    "PYSPARK_PYTHON": sys.executable,
                },
            )
        self._processes.append(process)
        # They report in their logs that they are ready.
        ready = (
            b"I have been elected leader"
            if "Master" in program
            else b"Successfully registered with master"
        )
        end = time.monotonic() + _START_SECONDS
        while ready not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"{program} did not start:\n{log.read_text()[-4000:]}")
            time.sleep(0.1)
