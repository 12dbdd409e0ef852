"""Servers of Hadoop 3.4 in a JVM of the tests' own.

py4j, which Spark uses for the same, starts them and returns their ports.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers.installed import EVERY, installed

__all__ = ["java", "start_jvm"]

_LOG = """rootLogger=WARN, all
appender.all=org.apache.log4j.ConsoleAppender
appender.all.layout=org.apache.log4j.SimpleLayout
appender.all.target=System.err
"""


def java() -> str:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else shutil.which("java") or "java"


def _py4j() -> Path:
    import pyspark

    (found,) = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    return found


def _beside(folder: Path) -> Path:
    """What the servers look for beside their jars: how to log, and pages, of which there are none."""
    more = folder / "more"
    for name in ("hdfs", "datanode"):
        (more / "webapps" / name).mkdir(parents=True)
    text = "".join(f"log4j.{line}\n" for line in _LOG.splitlines())
    (more / "log4j.properties").write_text(text)
    return more


@contextmanager
def start_jvm(
    folder: Path,
    jars: str,
    package: str,
    *options: str,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Any]:
    """A JVM with the jars of artifacts/`jars`, of `package`, as py4j shows it. Its log is in `folder`."""
    from py4j.java_gateway import GatewayParameters, JavaGateway
    from py4j.protocol import Py4JJavaError

    opens = [
        f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("lang", "util", "net", "nio")
    ]
    command = [
        java(),
        "-Xmx256m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        *opens,
        "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
        f"-Dhadoop.log.dir={folder}",
        f"-Duser.home={folder}",
        *options,
        "-cp",
        f"{_py4j()}:{_beside(folder)}:{installed(jars, f'{package} of Maven', by=EVERY)}/*",
        "py4j.GatewayServer",
        "--die-on-broken-pipe",
        "--enable-auth",
        "0",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
        try:
            assert process.stdout is not None
            port, token = int(process.stdout.readline()), process.stdout.readline().strip()
            gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
            try:
                yield gateway.jvm
            except Py4JJavaError as error:
                raise RuntimeError(f"Hadoop does not start: {error}") from None
            finally:
                gateway.close()
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
