"""HDFS of the tests' own: a NameNode and a DataNode of Hadoop 2.7 in one JVM, on free ports of 127.0.0.1.

Its jars are those of a source distribution of pyspark 3.0.1, the last one that contains Hadoop's servers; `.ci/servers`
unpacks them. py4j, which Spark uses for the same, starts the servers and returns their ports.
"""

import os
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["start_hdfs"]

JARS = Path(__file__).resolve().parents[2] / "artifacts" / "hadoop"
_SECONDS = 60


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else shutil.which("java") or "java"


def _py4j() -> Path:
    import pyspark

    (found,) = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    return found


def _subclass(name: str, of: str) -> bytes:
    """The class file of a class that adds nothing to `of`."""

    def text(value: str) -> bytes:
        return struct.pack(">BH", 1, len(value)) + value.encode()

    pool = [
        text(name),
        struct.pack(">BH", 7, 1),
        text(of),
        struct.pack(">BH", 7, 3),
        text("<init>"),
        text("()V"),
        struct.pack(">BHH", 12, 5, 6),
        struct.pack(">BHH", 10, 4, 7),
        text("Code"),
    ]
    code = b"\x2a\xb7\x00\x08\xb1"  # super(); return
    constructor = (
        struct.pack(">HHHHHIHHI", 1, 5, 6, 1, 9, 12 + len(code), 1, 1, len(code)) + code + bytes(4)
    )
    head = struct.pack(">IHHH", 0xCAFEBABE, 0, 49, len(pool) + 1) + b"".join(pool)
    return head + struct.pack(">HHHHHH", 0x21, 2, 4, 0, 0, 1) + constructor + bytes(2)


def _missing(folder: Path) -> Path:
    """What Hadoop's servers need and pyspark leaves out: pages, and a part of Jetty for TLS, which is not used.

    With audit on, the NameNode would look for jersey 1, too.
    """
    (folder / "more").mkdir()
    settings = (
        "rootLogger=WARN, all",
        "appender.all=org.apache.log4j.ConsoleAppender",
        "appender.all.layout=org.apache.log4j.SimpleLayout",
        "appender.all.target=System.err",
    )
    (folder / "more" / "log4j.properties").write_text(
        "".join(f"log4j.{each}\n" for each in settings)
    )
    for name in ("hdfs", "datanode"):
        (folder / "more" / "webapps" / name).mkdir(parents=True)
    tls = folder / "more" / "org/mortbay/jetty/security"
    tls.mkdir(parents=True)
    (tls / "SslSelectChannelConnector.class").write_bytes(
        _subclass(
            "org/mortbay/jetty/security/SslSelectChannelConnector",
            "org/mortbay/jetty/nio/SelectChannelConnector",
        )
    )
    return folder / "more"


@contextmanager
def _jvm(folder: str) -> Iterator[Any]:
    from py4j.java_gateway import GatewayParameters, JavaGateway
    from py4j.protocol import Py4JJavaError

    if not any(JARS.glob("hadoop-hdfs-2*.jar")):
        raise RuntimeError(f"no Hadoop in {JARS}; run .ci/servers")
    opens = [
        f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("lang", "util", "net", "nio")
    ]
    command = [
        _java(),
        "-Xmx256m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        *opens,
        "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
        f"-Dhadoop.log.dir={folder}",
        "-cp",
        f"{_py4j()}:{_missing(Path(folder))}:{JARS}/*",
        "py4j.GatewayServer",
        "--die-on-broken-pipe",
        "--enable-auth",
        "0",
    ]
    with (Path(folder) / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
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


@contextmanager
def start_hdfs() -> Iterator[int]:
    """The port of the NameNode."""
    with tempfile.TemporaryDirectory(prefix="spark-channel-hdfs-") as folder, _jvm(folder) as jvm:
        hadoop = jvm.org.apache.hadoop
        conf = hadoop.conf.Configuration()
        for name, value in {
            "fs.defaultFS": "hdfs://127.0.0.1:0",
            "dfs.replication": "1",
            "dfs.namenode.name.dir": f"file://{folder}/names",
            "dfs.datanode.data.dir": f"file://{folder}/blocks",
            "dfs.namenode.http-address": "127.0.0.1:0",
            "dfs.datanode.address": "127.0.0.1:0",
            "dfs.datanode.http.address": "127.0.0.1:0",
            "dfs.datanode.ipc.address": "127.0.0.1:0",
            "dfs.webhdfs.enabled": "false",  # needs jersey 1
            "dfs.namenode.safemode.extension": "0",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.namenode.edits.noeditlogchannelflush": "true",
            "dfs.namenode.delegation.token.always-use": "false",
        }.items():
            conf.set(name, value)
        hadoop.metrics2.lib.DefaultMetricsSystem.setMiniClusterMode(True)  # both in one JVM
        nodes = hadoop.hdfs.server
        nodes.namenode.NameNode.format(conf)
        names = nodes.namenode.NameNode(conf)
        port = names.getNameNodeAddress().getPort()
        conf.set("fs.defaultFS", f"hdfs://127.0.0.1:{port}")
        blocks = nodes.datanode.DataNode.createDataNode(None, conf)
        end = time.monotonic() + _SECONDS
        while names.getNamesystem().getNumLiveDataNodes() < 1:  # it registers by itself
            assert time.monotonic() < end, "the DataNode does not register"
            time.sleep(0.05)
        assert blocks is not None  # py4j lets Java collect what has no name here
        yield port
