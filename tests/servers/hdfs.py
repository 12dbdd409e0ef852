"""HDFS of the tests' own: a NameNode and a DataNode of Hadoop 3.4 in one JVM, on free ports of 127.0.0.1.

py4j, which Spark uses for the same, starts the servers and returns their ports.
"""

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers.hadoop import start_jvm
from tests.servers.kerberos import REALM, Kerberos, start_kerberos

__all__ = ["KerberosHdfs", "start_hdfs", "start_kerberos_hdfs"]

_SECONDS = 120
_SETTINGS = {
    "dfs.replication": "1",
    "dfs.namenode.http-address": "127.0.0.1:0",
    "dfs.datanode.address": "127.0.0.1:0",
    "dfs.datanode.http.address": "127.0.0.1:0",
    "dfs.datanode.ipc.address": "127.0.0.1:0",
    "dfs.namenode.safemode.extension": "0",
    "dfs.namenode.datanode.registration.ip-hostname-check": "false",
    "dfs.namenode.edits.noeditlogchannelflush": "true",
}
_SERVICE = f"hdfs/localhost@{REALM}"


@dataclass(frozen=True)
class KerberosHdfs:
    """A NameNode at `port` that asks for a ticket. `settings`: those of a client, beside the name of the NameNode."""

    port: int
    kerberos: Kerberos
    settings: Mapping[str, str]


@contextmanager
def start_hdfs(settings: Mapping[str, str] | None = None) -> Iterator[int]:
    """The port of the NameNode."""
    with (
        tempfile.TemporaryDirectory(prefix="spark-channel-hdfs-") as folder,
        _servers(Path(folder), settings or {}) as port,
    ):
        yield port


@contextmanager
def start_kerberos_hdfs(protection: str = "authentication") -> Iterator[KerberosHdfs]:
    """HDFS for who has a ticket: `ann` may get one. `protection` is what the servers ask of connections.

    DataNodes of a real cluster listen on ports of root; a setting of Hadoop's own tests takes others.
    """
    with (
        tempfile.TemporaryDirectory(prefix="spark-channel-hdfs-") as name,
        start_kerberos(Path(name)) as kerberos,
    ):
        for principal in (_SERVICE, f"HTTP/localhost@{REALM}", f"ann@{REALM}"):
            kerberos.add(principal)
        client = {
            "hadoop.security.authentication": "kerberos",
            "hadoop.rpc.protection": protection,
            "dfs.namenode.kerberos.principal": _SERVICE,
            "dfs.data.transfer.protection": protection,
        }
        of_servers = {
            "hadoop.security.authorization": "true",
            "dfs.block.access.token.enable": "true",
            "dfs.namenode.keytab.file": str(kerberos.keytab),
            "dfs.datanode.kerberos.principal": _SERVICE,
            "dfs.datanode.keytab.file": str(kerberos.keytab),
            "dfs.web.authentication.kerberos.principal": f"HTTP/localhost@{REALM}",
            "dfs.web.authentication.kerberos.keytab": str(kerberos.keytab),
            "ignore.secure.ports.for.testing": "true",
        }
        option = f"-Djava.security.krb5.conf={kerberos.config}"
        with _servers(Path(name), {**client, **of_servers}, option) as port:
            yield KerberosHdfs(port, kerberos, client)


@contextmanager
def _servers(folder: Path, settings: Mapping[str, str], *options: str) -> Iterator[int]:
    with start_jvm(folder, "hdfs", "hadoop-hdfs", *options) as jvm:
        hadoop = jvm.org.apache.hadoop
        conf = hadoop.conf.Configuration()
        folders = {
            "dfs.namenode.name.dir": f"file://{folder}/names",
            "dfs.datanode.data.dir": f"file://{folder}/blocks",
        }
        address = {"fs.defaultFS": "hdfs://localhost:0"}
        for name, value in {**_SETTINGS, **folders, **address, **settings}.items():
            conf.set(name, value)
        hadoop.security.UserGroupInformation.setConfiguration(conf)
        hadoop.metrics2.lib.DefaultMetricsSystem.setMiniClusterMode(True)  # both in one JVM
        nodes = hadoop.hdfs.server
        nodes.namenode.NameNode.format(conf)
        names = nodes.namenode.NameNode(conf)
        port = names.getNameNodeAddress().getPort()
        conf.set("fs.defaultFS", f"hdfs://localhost:{port}")
        blocks = nodes.datanode.DataNode.createDataNode(None, conf)
        end = time.monotonic() + _SECONDS
        while names.getNamesystem().getNumLiveDataNodes() < 1:  # it registers by itself
            assert time.monotonic() < end, "the DataNode does not register"
            time.sleep(0.05)
        assert blocks is not None  # py4j lets Java collect what has no name here
        top, everyone = hadoop.fs.Path("/"), hadoop.fs.permission.FsPermission("777")
        hadoop.fs.FileSystem.get(conf).setPermission(top, everyone)
        yield int(port)
