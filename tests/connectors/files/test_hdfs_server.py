"""HDFS of Hadoop 3.4: with Kerberos, and NameNodes that do not answer, or ask for what the client lacks."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

pytest.importorskip("hdfs_native")

from spark_channel.connectors import hdfs, name_node
from spark_channel.connectors.files.filesystem import LOG, locate
from spark_channel.connectors.files.store import store_of
from spark_channel.errors import SourceError, TargetError
from tests.connectors.files.helpers import FORMATS, numbers, read, write
from tests.servers.hdfs import KerberosHdfs, start_hdfs, start_kerberos_hdfs
from tests.servers.ports import free_port
from tests.spark.relay import Relay

every_server = pytest.mark.every_server
PROTECTIONS = ("authentication", "integrity", "privacy")
Configure = Callable[..., None]


@pytest.fixture(scope="module", params=PROTECTIONS)
def secured(request: pytest.FixtureRequest) -> Iterator[KerberosHdfs]:
    with start_kerberos_hdfs(request.param) as server:
        yield server


@pytest.fixture
def configure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Configure]:
    """Set the client's settings, and variables of its environment. Clients of other settings are forgotten."""

    def to(settings: Mapping[str, str], **environment: str) -> None:
        properties = "".join(
            f"<property><name>{name}</name><value>{value}</value></property>"
            for name, value in settings.items()
        )
        for name in ("core-site.xml", "hdfs-site.xml"):
            (tmp_path / name).write_text(f"<configuration>{properties}</configuration>")
        monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        hdfs._opened.cache_clear()

    yield to
    hdfs._opened.cache_clear()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdfs, "_ASK_SECONDS", 0.5)
    monkeypatch.setattr(hdfs, "_SECONDS", 1.0)
    monkeypatch.setattr(name_node, "_SECONDS", 0.3)


@every_server
@pytest.mark.real_server("Hadoop 3.4", "parquet", "csv", "json", "arrow", "orc")
def test_who_has_a_ticket_writes_and_reads(secured: KerberosHdfs, configure: Configure) -> None:
    """With each protection that the servers may ask of connections."""
    kerberos = secured.kerberos
    configure(
        secured.settings, **kerberos.environment | {"KRB5CCNAME": str(kerberos.ticket("ann"))}
    )
    target = f"hdfs://localhost:{secured.port}/with-ticket/out"
    write("parquet", target, numbers(1, 2), numbers(3), job="a")
    write("parquet", target, numbers(4), job="b")
    assert sorted(read("parquet", target)["n"].to_pylist()) == [1, 2, 3, 4]
    write("parquet", target, numbers(5), job="c", context={"overwrite": True})
    assert read("parquet", target)["n"].to_pylist() == [5]
    for form in FORMATS:
        write(form, f"{target}-{form}", numbers(6))
        assert read(form, f"{target}-{form}")["n"].to_pylist() == [6]
    store = store_of(locate(target))
    assert store.put_new(f"{store.place.path}/{LOG}/x", b"mine")
    assert not store.put_new(f"{store.place.path}/{LOG}/x", b"another's")


@every_server
@pytest.mark.parametrize("secured", PROTECTIONS[:1], indirect=True)
def test_who_has_no_ticket_is_told_so(secured: KerberosHdfs, configure: Configure) -> None:
    configure(secured.settings, **secured.kerberos.environment)
    with pytest.raises(
        TargetError, match=r"asks for Kerberos, and the login failed: .*no-ticket.*kinit"
    ):
        write("parquet", f"hdfs://localhost:{secured.port}/none", numbers(1))
    with pytest.raises(SourceError, match=r"asks for Kerberos.*KRB5CCNAME"):
        read("parquet", f"hdfs://localhost:{secured.port}/none")


@every_server
@pytest.mark.timeout(120)
@pytest.mark.parametrize("secured", PROTECTIONS[:1], indirect=True)
def test_a_ticket_that_expires_while_a_job_writes(
    secured: KerberosHdfs, configure: Configure
) -> None:
    """The open connection goes on; a new one, as of a task that begins, is refused by name; a new ticket mends it."""
    kerberos = secured.kerberos
    configure(
        secured.settings, **kerberos.environment | {"KRB5CCNAME": str(kerberos.ticket("ann"))}
    )
    network = Relay(("127.0.0.1", secured.port))
    try:
        target = f"hdfs://localhost:{network.port}/expires"
        write("csv", target, numbers(1), job="a")
        kerberos.ticket("ann", life="1s")
        time.sleep(1.1)  # its life
        write("csv", target, numbers(2), job="b")
        network.cut()
        network.mend()
        expired = r"asks for Kerberos, and the login failed: .*expired.*kinit"
        for _ in range(2):
            with pytest.raises(TargetError, match=expired):
                write("csv", target, numbers(3), job="c")
            with pytest.raises(SourceError, match=expired):
                read("csv", target)
            hdfs._opened.cache_clear()  # a task of another process has a client of its own
        kerberos.ticket("ann")
        hdfs._opened.cache_clear()
        assert sorted(read("csv", target)["n"].to_pylist()) == [1, 2]
    finally:
        network.end()


@every_server
@pytest.mark.parametrize("secured", PROTECTIONS[:1], indirect=True)
@pytest.mark.parametrize("by_service", [False, True])
def test_who_has_no_settings_for_kerberos_is_told_so(
    secured: KerberosHdfs,
    configure: Configure,
    monkeypatch: pytest.MonkeyPatch,
    by_service: bool,
) -> None:
    """hdfs-native waits for ever for a NameNode that takes none of its logins."""
    monkeypatch.setattr(hdfs, "_ASK_SECONDS", 0.5)
    service = {
        "dfs.nameservices": "shop",
        "dfs.ha.namenodes.shop": "nn1",
        "dfs.namenode.rpc-address.shop.nn1": f"localhost:{secured.port}",
    }
    configure(service if by_service else {}, **secured.kerberos.environment)
    root = "hdfs://shop" if by_service else f"hdfs://localhost:{secured.port}"
    with pytest.raises(
        TargetError,
        match=rf"localhost:{secured.port} asks for Kerberos, and the settings of this client do not.*core-site.xml",
    ):
        write("parquet", f"{root}/none", numbers(1))


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that takes connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_name_node_that_says_nothing_ends_the_first_call(
    silent: int, configure: Configure, impatient: None
) -> None:
    configure({})
    with pytest.raises(TargetError, match=rf"no answer within 1 s: .*127.0.0.1:{silent} says noth"):
        write("parquet", f"hdfs://127.0.0.1:{silent}/out", numbers(1))
    with pytest.raises(SourceError, match=rf"127.0.0.1:{silent} says nothing"):
        read("parquet", f"hdfs://127.0.0.1:{silent}/out")


@every_server
def test_a_data_node_that_says_nothing_ends_the_first_call(
    configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The NameNode is reached, and names a DataNode by an address that this host does not reach."""
    port = free_port()
    settings = {"dfs.datanode.address": f"127.0.0.1:{port}", "dfs.datanode.hostname": "127.0.0.2"}
    with start_hdfs(settings) as names, socket.create_server(("127.0.0.2", port)):
        target = f"hdfs://127.0.0.1:{names}/out"
        configure({"dfs.replication": "1"})
        write("csv", target, numbers(1))
        configure({"dfs.replication": "1", "dfs.client.use.datanode.hostname": "true"})
        monkeypatch.setattr(hdfs, "_ASK_SECONDS", 0.5)
        monkeypatch.setattr(hdfs, "_SECONDS", 2.0)
        with pytest.raises(SourceError, match=r"no answer within 2 s: .*DataNode"):
            read("csv", target)
        with pytest.raises(TargetError, match=r"no answer within 2 s: .*DataNode"):
            write("csv", f"{target}-2", numbers(1))


def test_a_port_where_nobody_listens_ends_the_first_call(
    configure: Configure, impatient: None
) -> None:
    configure({})
    with pytest.raises(TargetError, match=r"127.0.0.1:1: Connection refused.*host and port"):
        write("parquet", "hdfs://127.0.0.1:1/out", numbers(1))


def test_a_server_of_another_kind_ends_the_first_call(
    configure: Configure, impatient: None
) -> None:
    configure({})
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(64)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        port = server.getsockname()[1]
        with pytest.raises(TargetError, match=rf"127.0.0.1:{port} is no NameNode"):
            write("parquet", f"hdfs://127.0.0.1:{port}/out", numbers(1))
        server.shutdown(socket.SHUT_RDWR)
        thread.join(60)


@pytest.mark.parametrize("half", ["reader", "writer"])
def test_sigterm_ends_a_command_that_waits_for_a_name_node(tmp_path: Path, half: str) -> None:
    (tmp_path / "in.csv").write_text("n\n1\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        uri = f"hdfs://127.0.0.1:{server.getsockname()[1]}/x"
        places = {
            "reader": [f"{uri}/in.csv", str(tmp_path / "out.csv")],
            "writer": [str(tmp_path / "in.csv"), "parquet:", "-o", f"writer.path={uri}"],
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "spark_channel.cli", "copy", *places[half]],
            env={**os.environ, "HADOOP_CONF_DIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            with server.accept()[0]:
                process.send_signal(signal.SIGTERM)
                told, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 143, told
