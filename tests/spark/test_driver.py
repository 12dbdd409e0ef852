"""Under which host tasks reach the service, and which addresses it binds."""

import ipaddress
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from spark_channel.errors import OptionError
from spark_channel.spark import driver as module
from spark_channel.spark.driver import bind_to, driver_host, service_settings

CLUSTER = "java -cp x org.apache.spark.deploy.SparkSubmit --conf spark.master=spark://m:7077"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "SPARK_CHANNEL_HOST",
        "SPARK_CHANNEL_PORT",
        "SPARK_LOCAL_IP",
        "SPARK_LOCAL_HOSTNAME",
    ):
        monkeypatch.delenv(name, raising=False)


def unresolved(name: str, *_more: object, **_others: object) -> list[object]:
    raise socket.gaierror(-2, f"Name or service not known: {name}")


def test_what_spark_was_told_comes_first() -> None:
    assert (
        driver_host(f"{CLUSTER} --conf spark.driver.host=10.1.2.3 pyspark-shell", None)
        == "10.1.2.3"
    )
    settings = service_settings(CLUSTER, "127.0.0.1")
    assert (settings.host, settings.advertise_host) == ("127.0.0.1", "127.0.0.1")


def test_a_local_master_stays_on_the_loopback() -> None:
    settings = service_settings(
        "java --conf spark.master=local[2] --conf spark.driver.host=10.1.2.3"
    )
    assert (settings.host, settings.advertise_host) == ("127.0.0.1", None)


def test_a_name_that_nobody_here_resolves_is_bound_everywhere_and_told_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", unresolved)
    settings = service_settings(CLUSTER, "driver-svc.spark.svc")
    assert (settings.host, settings.advertise_host) == ("0.0.0.0", "driver-svc.spark.svc")


def test_a_name_that_is_the_loopback_here_is_bound_everywhere_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Debian and Ubuntu: the host's own name is 127.0.1.1 in /etc/hosts, and something else for everybody else."""
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda *_a, **_k: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))],
    )
    assert bind_to("worker-node-7") == "0.0.0.0"


def test_an_address_of_another_machine_is_told_and_all_of_ours_are_bound() -> None:
    assert bind_to("192.0.2.77") == "0.0.0.0"


def test_an_address_of_ours_is_bound_alone() -> None:
    assert bind_to("127.0.0.1") == "127.0.0.1"
    assert bind_to("localhost") == "127.0.0.1"


def test_a_host_that_calls_itself_the_loopback_is_told_by_its_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "gethostbyname", lambda _name: "127.0.1.1")
    assert not module._own_address().startswith("127.0.1")


def test_a_host_whose_name_does_not_resolve_has_an_address_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "gethostbyname", unresolved)
    monkeypatch.setattr(socket, "getaddrinfo", unresolved)
    settings = service_settings(CLUSTER)
    assert settings.advertise_host
    assert not settings.advertise_host.startswith("127.0.1")


def test_the_environment_says_what_spark_takes_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "10.9.9.9")
    assert driver_host(CLUSTER, None) == "10.9.9.9"
    monkeypatch.setenv("SPARK_LOCAL_HOSTNAME", "edge-1")
    assert driver_host(CLUSTER, None) == "edge-1"
    monkeypatch.setenv("SPARK_CHANNEL_HOST", "127.0.0.1")
    assert service_settings(CLUSTER, "10.1.1.1").advertise_host == "127.0.0.1"


@pytest.mark.parametrize("port", ["70000", "-1", "http", "3.5"])
def test_a_port_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch, port: str) -> None:
    monkeypatch.setenv("SPARK_CHANNEL_PORT", port)
    with pytest.raises(OptionError, match="SPARK_CHANNEL_PORT"):
        service_settings(CLUSTER, "127.0.0.1")


@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="looks at sockets in /proc")
def test_connections_from_elsewhere_tell_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process stands for the JVM: it listens, and is connected to from another address of this machine."""
    monkeypatch.setattr(ipaddress.IPv4Address, "is_loopback", property(lambda _self: False))
    program = (
        "import socket, sys; s = socket.create_server(('127.0.0.5', 0)); print(s.getsockname()[1], flush=True); "
        "c = s.accept(); print('accepted', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline())
        assert module._connected(process.pid) is None
        with socket.create_connection(("127.0.0.5", port), source_address=("127.0.0.6", 0)):
            assert process.stdout.readline() == "accepted\n"
            assert module._connected(process.pid) == "127.0.0.5"
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()
