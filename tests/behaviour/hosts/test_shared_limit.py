"""A limit that one host serves with TLS, spent by jobs on two others; the hosts are network namespaces. No Spark."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.behaviour.hosts.network import Host, Network, why_not
from tests.service.helpers import ROOT

_WHY_NOT = why_not()
pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT or "there are hosts"),
]
RATE = 400


@pytest.fixture
def network() -> Iterator[Network]:
    with Network("limits", "one", "two") as made:
        yield made


@pytest.fixture
def served(network: Network, tmp_path: Path) -> Iterator[tuple[str, Path, Path]]:
    """(the address that other hosts take, the file of its token, its certificate)."""
    host, token = network["limits"], tmp_path / "token"
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-new",
            "-x509",
            "-days",
            "2",
            "-nodes",
            "-subj",
            f"/CN={host.address}",
            "-newkey",
            "rsa:2048",
            "-addext",
            f"subjectAltName=IP:{host.address}",
            "-out",
            certificate,
            "-keyout",
            key,
        ],
        check=True,
        capture_output=True,
    )
    process = started(
        host,
        tmp_path,
        "spark_channel.cli",
        "limits",
        "serve",
        "orders",
        "--rows-per-second",
        str(RATE),
        "--host",
        host.address,
        "--token-file",
        str(token),
        "--tls-certificate",
        str(certificate),
        "--tls-key",
        str(key),
    )
    assert process.stdout is not None
    try:
        process.stdout.readline()
        address = process.stdout.readline().split("sharedLimit=")[1].split(",")[0]
        yield address, token, certificate
    finally:
        ended(process)


def started(
    host: Host, run: Path, module: str, *arguments: str, **more: str
) -> "subprocess.Popen[str]":
    folder = run / f"run-{host.name}"
    folder.mkdir(mode=0o700, exist_ok=True)
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "PYTHONUNBUFFERED": "1", **more}
    return subprocess.Popen(
        host.command(sys.executable, "-m", module, *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment,
    )


def ended(process: "subprocess.Popen[str]") -> None:
    process.terminate()
    process.communicate(timeout=20)


def spenders(
    network: Network, served: tuple[str, Path, Path], run: Path, seconds: float
) -> list["subprocess.Popen[str]"]:
    address, token, certificate = served
    arguments = (address, token.read_text().strip(), str(seconds))
    return [
        started(
            network[name],
            run,
            "tests.behaviour.hosts.spender",
            *arguments,
            SPARK_CHANNEL_TLS_ROOT=str(certificate),
        )
        for name in ("one", "two")
    ]


def times_of(process: "subprocess.Popen[str]") -> list[float]:
    out, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    return [float(line) for line in out.split()]


def worst_second(times: list[float]) -> int:
    """The most rows within any second."""
    times, most, begin = sorted(times), 0, 0
    for end, at in enumerate(times):
        while at - times[begin] > 1.0:
            begin += 1
        most = max(most, end - begin + 1)
    return most


def test_jobs_of_two_hosts_keep_one_limit(
    network: Network, served: tuple[str, Path, Path], tmp_path: Path
) -> None:
    assert served[0].startswith("tls://10.77.0.1:")
    times = [times_of(process) for process in spenders(network, served, tmp_path, 5.0)]
    together = sorted(each for some in times for each in some)
    assert worst_second(together) <= 1.15 * RATE
    for some in times:
        assert 0.5 * len(together) * 0.7 <= len(some) <= 0.5 * len(together) * 1.3


def test_a_cut_link_spends_nothing_that_was_not_granted(
    network: Network, served: tuple[str, Path, Path], tmp_path: Path
) -> None:
    """One of two hosts is unplugged for 5 s: it spends its grant, waits, and continues; the limit holds."""
    one, two = spenders(network, served, tmp_path, 14.0)
    assert one.stdout is not None
    first = float(one.stdout.readline())
    time.sleep(2.0)
    network["one"].plug(False)
    cut = time.monotonic()
    time.sleep(5.0)
    network["one"].plug(True)
    back = time.monotonic()
    of_one, of_two = [first, *times_of(one)], times_of(two)
    assert worst_second(of_one + of_two) <= 1.15 * RATE
    assert not [at for at in of_one if cut + 2.5 < at < back], (
        "a grant lasts for two seconds at most"
    )
    assert [at for at in of_one if at > back], "it continues"
    assert len([at for at in of_two if cut < at < back]) >= 0.4 * RATE * 5


def test_the_certificate_is_checked(
    network: Network, served: tuple[str, Path, Path], tmp_path: Path
) -> None:
    other = tmp_path / "other.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-new",
            "-x509",
            "-days",
            "2",
            "-nodes",
            "-subj",
            "/CN=x",
            "-newkey",
            "rsa:2048",
            "-out",
            other,
            "-keyout",
            tmp_path / "other.key",
        ],
        check=True,
        capture_output=True,
    )
    address, token, _ = served
    process = started(
        network["one"],
        tmp_path,
        "tests.behaviour.hosts.spender",
        address,
        token.read_text().strip(),
        "1",
        SPARK_CHANNEL_TLS_ROOT=str(other),
    )
    out, err = process.communicate(timeout=90)
    assert process.returncode == 1
    assert out == ""
    assert "certificate" in err.splitlines()[-1].lower(), err
