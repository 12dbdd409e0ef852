"""The service as its own process: started once, found again, ended with the driver. Real kills."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_channel.errors import ServiceUnavailableError
from spark_channel.processes import alive, driver_pid, started, wait_until_gone
from spark_channel.progress import JobSpec, Phase
from spark_channel.service import (
    ServiceAddress,
    ServiceControl,
    ServiceServer,
    ServiceSettings,
    advertise,
    ensure_service,
    find_service,
)
from spark_channel.service.discovery import ServiceDirectory, ServiceRecord, advert_name
from tests.service.helpers import hello, wait_for, wait_gone

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")

Driver = subprocess.Popen[bytes]


def standing(driver: Driver) -> ServiceRecord:
    found = ServiceDirectory().read(advert_name(driver.pid))
    assert found is not None
    return found


def services() -> set[int]:
    """Pids of processes that run a service which this test started: its directory distinguishes them from others."""
    mark = os.environ["XDG_RUNTIME_DIR"].encode()
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if (
                entry.name.isdigit()
                and b"spark_channel.service" in (entry / "cmdline").read_bytes()
                and mark in (entry / "environ").read_bytes()
            ):
                found.add(int(entry.name))
        except OSError:
            continue
    return found


def test_it_is_started_once_and_found_again(driver: Driver) -> None:
    assert find_service(driver.pid) is None
    first = ensure_service(watch_pid=driver.pid)
    assert ensure_service(watch_pid=driver.pid) == first
    assert find_service(driver.pid) == first
    with ServiceControl(first) as control:
        assert control.hello()["pid"] == standing(driver).service_pid != os.getpid()
        job = control.open_job(JobSpec("read"))
        control.enter(job, Phase.DONE)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_the_driver_however_that_ends_and_leaves_nothing(
    driver: Driver, how: signal.Signals, runtime_directory: Path
) -> None:
    address = ensure_service(watch_pid=driver.pid)
    pid = standing(driver).service_pid
    driver.send_signal(how)
    assert wait_gone(pid) < 10
    assert list((runtime_directory / "spark-channel").iterdir()) == []
    assert pid not in services()
    with ServiceControl(address, timeout=1) as control, pytest.raises(ServiceUnavailableError):
        control.hello()


def test_a_driver_that_is_a_zombie_is_gone(driver: Driver) -> None:
    since = started(driver.pid)
    assert since is not None
    assert alive(driver.pid, since)
    driver.kill()
    wait_until_gone(driver.pid, since)
    assert started(driver.pid) is None
    with pytest.raises(ServiceUnavailableError, match=r"process \d+ does not exist"):
        ensure_service(watch_pid=driver.pid)


def test_without_pidfds_it_looks_each_second(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    since = started(driver.pid)
    assert since is not None
    timer = threading.Timer(0.2, driver.kill)
    timer.start()
    start = time.monotonic()
    wait_until_gone(driver.pid, since)
    assert 0.2 <= time.monotonic() - start < 5
    timer.join()


def test_a_wait_can_be_ended_by_a_descriptor(driver: Driver) -> None:
    readable, writable = os.pipe()
    os.write(writable, b"x")
    wait_until_gone(driver.pid, started(driver.pid) or "", readable)
    assert driver.poll() is None
    os.close(readable)
    os.close(writable)


def test_two_starters_at_once_get_one_service(driver: Driver) -> None:
    before = services()
    with ThreadPoolExecutor(4) as pool:
        addresses = set(pool.map(lambda _: ensure_service(watch_pid=driver.pid), range(4)))
    assert len(addresses) == 1
    pid = standing(driver).service_pid
    for other in services() - before - {pid}:
        wait_gone(other)
    assert services() - before == {pid}


def test_starters_in_several_processes_get_one_service(driver: Driver) -> None:
    script = (
        "import sys, json; from spark_channel.service import ensure_service; "
        f"json.dump(ensure_service(watch_pid={driver.pid}).to_json(), sys.stdout)"
    )
    starters = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) for _ in range(3)
    ]
    addresses = [json.loads(each.communicate(timeout=60)[0]) for each in starters]
    assert [each.returncode for each in starters] == [0, 0, 0]
    assert all(each == addresses[0] for each in addresses)
    assert hello(ServiceAddress.from_json(addresses[0]))


def test_a_killed_service_is_replaced(driver: Driver) -> None:
    first = ensure_service(watch_pid=driver.pid)
    old = standing(driver).service_pid
    os.kill(old, signal.SIGKILL)
    wait_gone(old)
    assert find_service(driver.pid) is None
    second = ensure_service(watch_pid=driver.pid)
    assert second.token != first.token
    assert hello(second)


def test_a_service_that_hangs_is_replaced(driver: Driver) -> None:
    ensure_service(watch_pid=driver.pid)
    old = standing(driver).service_pid
    os.kill(old, signal.SIGSTOP)
    wait_for(lambda: ") T" in Path(f"/proc/{old}/stat").read_text(), "the service to hang")
    try:
        second = ensure_service(watch_pid=driver.pid)
        assert standing(driver).service_pid != old
        assert hello(second)
    finally:
        os.kill(old, signal.SIGCONT)
    pid = standing(driver).service_pid
    driver.kill()
    wait_gone(old)
    wait_gone(pid)
    assert ServiceDirectory().names() == []


def test_it_outlives_its_starter_and_is_nobodys_zombie(driver: Driver) -> None:
    ensure_service(watch_pid=driver.pid)
    pid = standing(driver).service_pid
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    assert stat[1] != str(os.getpid())
    assert os.getsid(pid) != os.getsid(0)
    os.kill(pid, signal.SIGTERM)
    wait_gone(pid)
    assert ServiceDirectory().names() == []


@pytest.mark.parametrize(
    "name",
    [
        "PGPASSWORD",
        "PGPASSFILE",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "MYSQL_PWD",
        "ORDERS_LOGIN",
    ],
)
def test_no_secret_of_the_jobs_environment_stays_in_the_service(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "geheim-und-lang")
    ensure_service(watch_pid=driver.pid)
    environment = Path(f"/proc/{standing(driver).service_pid}/environ").read_bytes()
    assert b"geheim" not in environment
    assert name.encode() not in environment
    assert b"PATH=" in environment


def test_no_secret_stays_in_the_process_that_cleans_up(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, runtime_directory: Path
) -> None:
    monkeypatch.setenv("PGPASSWORD", "geheim-und-lang")
    with ServiceServer() as server:
        take_back = advertise(server.address, driver.pid)
        mark = str(runtime_directory).encode()
        cleaners = []
        for entry in Path("/proc").iterdir():
            try:
                program, environment = (
                    (entry / "cmdline").read_bytes(),
                    (entry / "environ").read_bytes(),
                )
            except OSError:
                continue
            if b"def wait_until_one_is_gone(" in program and mark in environment:
                cleaners.append(environment)
        take_back()
    assert cleaners
    assert not any(b"geheim" in environment for environment in cleaners)


def test_the_token_is_in_no_command_line_or_environment(driver: Driver) -> None:
    address = ensure_service(watch_pid=driver.pid)
    process = Path(f"/proc/{standing(driver).service_pid}")
    for place in ("cmdline", "environ"):
        assert address.token.encode() not in (process / place).read_bytes()
    assert (process / "cwd").readlink() == Path("/")


def test_it_holds_nothing_of_its_starter_open(driver: Driver, tmp_path: Path) -> None:
    with (tmp_path / "kept").open("w") as kept:
        os.set_inheritable(kept.fileno(), True)
        ensure_service(watch_pid=driver.pid)
    opened = Path(f"/proc/{standing(driver).service_pid}/fd")
    for each in opened.iterdir():
        with contextlib.suppress(FileNotFoundError):
            # Closed meanwhile: not what it was started with.
            assert each.readlink() != tmp_path / "kept"
    assert (opened / "0").readlink() == Path(os.devnull)
    assert (opened / "1").readlink() == Path(os.devnull)


def test_a_port_that_is_taken_is_told_to_the_starter(driver: Driver, server: ServiceServer) -> None:
    settings = ServiceSettings(port=server.address.port)
    with pytest.raises(ServiceUnavailableError, match="free port"):
        ensure_service(settings, watch_pid=driver.pid)
    assert ServiceDirectory().names() == []


def test_an_interpreter_that_cannot_start_it_is_a_clear_error(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    start = time.monotonic()
    with pytest.raises(ServiceUnavailableError, match="did not start"):
        ensure_service(watch_pid=driver.pid)
    assert time.monotonic() - start < 5


def test_an_interpreter_that_hangs_is_given_up_in_time(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hanging = tmp_path / "python"
    hanging.write_text("#!/bin/sh\nexec sleep 60\n")
    hanging.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(hanging))
    with pytest.raises(ServiceUnavailableError, match=r"within 0\.5 s"):
        ensure_service(watch_pid=driver.pid, timeout=0.5)


def test_a_stale_file_of_a_reused_pid_is_not_trusted(driver: Driver, server: ServiceServer) -> None:
    other = ServiceRecord(
        server.address, os.getpid(), started(os.getpid()) or "", driver.pid, "1", "n", ""
    )
    ServiceDirectory().publish(advert_name(driver.pid), other)
    assert ensure_service(watch_pid=driver.pid) != server.address


ADVERTISER = """
import os, sys
from spark_channel.service import ServiceServer, advertise
server = ServiceServer()
withdraw = advertise(server.start(), int(sys.argv[1]))
print("ready", flush=True)
if input() == "withdraw":
    withdraw()
    server.stop()
    print("withdrawn", flush=True)
    input()
"""


@pytest.fixture
def advertiser(driver: Driver) -> Iterator[Driver]:
    """A driver's Python that runs the service in itself."""
    process = subprocess.Popen(
        [sys.executable, "-c", ADVERTISER, str(driver.pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.kill()
        process.wait()


def test_a_service_in_the_drivers_python_is_found_and_can_be_withdrawn(
    driver: Driver, advertiser: Driver
) -> None:
    assert hello(ensure_service(watch_pid=driver.pid))
    assert standing(driver).service_pid == advertiser.pid
    assert advertiser.stdin is not None
    assert advertiser.stdout is not None
    advertiser.stdin.write(b"withdraw\n")
    advertiser.stdin.flush()
    assert advertiser.stdout.readline() == b"withdrawn\n"
    assert ServiceDirectory().names() == []
    assert find_service(driver.pid) is None


@pytest.mark.parametrize("victim", ["python", "jvm"])
def test_when_either_is_killed_the_file_goes_too(
    driver: Driver, advertiser: Driver, victim: str
) -> None:
    assert find_service(driver.pid) is not None
    (advertiser if victim == "python" else driver).kill()
    wait_for(lambda: ServiceDirectory().names() == [], "the file to be removed")


def test_the_last_to_advertise_is_found(driver: Driver, server: ServiceServer) -> None:
    first = ensure_service(watch_pid=driver.pid)
    withdraw = advertise(server.address, driver.pid)
    assert find_service(driver.pid) == server.address
    assert hello(first)
    withdraw()
    assert find_service(driver.pid) is None
    with pytest.raises(ServiceUnavailableError, match=r"process \d+ does not exist"):
        advertise(server.address, 2**22 + 1)


def test_without_a_jvm_above_the_driver_is_the_parent() -> None:
    assert driver_pid() == os.getppid()


def test_the_nearest_ancestor_that_is_a_jvm_is_the_driver(tmp_path: Path) -> None:
    """`java` here is a shell over a shell over Python, as a JVM is over a daemon over a worker."""
    java = tmp_path / "java"
    java.symlink_to("/bin/sh")
    python = "import os, sys; from spark_channel.processes import driver_pid; print(driver_pid())"
    inner = f"/bin/sh -c '{sys.executable} -c \"{python}\"; true'; true"
    jvm = subprocess.Popen([java, "-c", inner], stdout=subprocess.PIPE)
    output = jvm.communicate(timeout=60)[0]
    assert int(output) == jvm.pid
