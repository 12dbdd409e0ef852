"""The private directory: who may read what, and what a hostile or crashed neighbour can do."""

import fcntl
import os
import stat
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from spark_channel.errors import ServiceUnavailableError
from spark_channel.local import LocalEngine
from spark_channel.processes import started
from spark_channel.service import ServiceAddress, SharedLimit, advertise, discovery
from spark_channel.service.discovery import ServiceDirectory, ServiceRecord, private_directory
from tests.small_disk import small_disk

ADDRESS = ServiceAddress("127.0.0.1", 4711, "geheim")
NAME = "driver-1.2.json"


def advert() -> ServiceRecord:
    pid = os.getpid()
    return ServiceRecord.of_this_process(ADDRESS, pid, started(pid) or "")


@pytest.fixture
def place() -> ServiceDirectory:
    return ServiceDirectory()


def test_what_is_published_is_found_and_can_be_withdrawn(place: ServiceDirectory) -> None:
    mine = advert()
    assert place.read(NAME) is None
    assert place.publish(NAME, mine) is mine
    assert place.read(NAME) == mine
    assert place.names() == [NAME]
    place.withdraw(NAME, "another nonce")
    assert place.read(NAME) == mine
    place.withdraw(NAME, mine.nonce)
    place.withdraw(NAME, mine.nonce)
    assert place.names() == []


def test_file_and_directory_are_for_this_user_alone(
    place: ServiceDirectory, runtime_directory: Path
) -> None:
    old = os.umask(0)
    try:
        place.publish(NAME, advert())
    finally:
        os.umask(old)
    directory = runtime_directory / "spark-channel"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / NAME).stat().st_mode) == 0o600
    assert [each.name for each in directory.iterdir()] == [NAME]


def test_the_first_of_two_stays(place: ServiceDirectory) -> None:
    first, second = advert(), advert()
    assert place.publish(NAME, first) is first
    assert place.publish(NAME, second) == first
    assert place.publish(NAME, second, replace=first.nonce) is second
    assert place.publish(NAME, first, replace=first.nonce) == second


def test_of_many_at_once_one_wins_and_all_know_it(place: ServiceDirectory) -> None:
    outcomes = []
    start = threading.Barrier(8)

    def publish() -> None:
        mine = advert()
        start.wait()
        outcomes.append(place.publish(NAME, mine).nonce)

    threads = [threading.Thread(target=publish) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(outcomes)) == 1
    standing = place.read(NAME)
    assert standing is not None
    assert standing.nonce == outcomes[0]


def test_adverts_of_the_dead_are_replaced_and_swept(
    place: ServiceDirectory, runtime_directory: Path
) -> None:
    dead = replace(advert(), service_started="long ago")
    orphan = replace(advert(), watch_started="long ago")
    place.publish(NAME, dead)
    half = runtime_directory / "spark-channel" / ".driver-9.2.json.abc"
    half.write_text("{")
    mine = advert()
    assert place.publish(NAME, mine) is mine
    place.publish("driver-8.2.json", orphan)
    place.publish("driver-7.2.json", mine)
    assert place.names() == ["driver-1.2.json", "driver-7.2.json"]
    assert not half.exists()


def test_an_advert_of_another_container_is_left_alone(place: ServiceDirectory) -> None:
    other = replace(advert(), namespace="1", service_started="unknown here")
    place.publish(NAME, other)
    place.publish("driver-8.2.json", advert())
    assert place.read(NAME) == other


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "null", "x" * 100_000])
def test_a_broken_file_is_none_and_can_be_replaced(
    place: ServiceDirectory, runtime_directory: Path, content: str
) -> None:
    file = runtime_directory / "spark-channel" / NAME
    file.write_text(content)
    file.chmod(0o600)
    assert place.read(NAME) is None
    mine = advert()
    assert place.publish(NAME, mine) is mine
    assert place.read(NAME) == mine


def test_a_file_that_others_may_read_or_that_is_a_link_is_none(
    place: ServiceDirectory, runtime_directory: Path
) -> None:
    place.publish(NAME, advert())
    file = runtime_directory / "spark-channel" / NAME
    file.chmod(0o640)
    assert place.read(NAME) is None
    file.chmod(0o600)
    assert place.read(NAME) is not None
    real = runtime_directory / "real.json"
    file.rename(real)
    file.symlink_to(real)
    assert place.read(NAME) is None
    file.unlink()
    os.mkfifo(file, 0o600)
    assert place.read(NAME) is None


def test_a_link_in_the_way_is_replaced_and_not_followed(
    place: ServiceDirectory, runtime_directory: Path
) -> None:
    victim = runtime_directory / "victim"
    victim.write_text("precious")
    (runtime_directory / "spark-channel" / NAME).symlink_to(victim)
    mine = advert()
    assert place.publish(NAME, mine) is mine
    assert place.read(NAME) == mine
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("trap", ["link", "open", "file"])
def test_a_directory_that_is_not_ours_alone_is_refused(runtime_directory: Path, trap: str) -> None:
    path = runtime_directory / "spark-channel"
    if trap == "link":
        path.symlink_to(tempfile.gettempdir())
    elif trap == "open":
        path.mkdir()
        path.chmod(0o777)
    else:
        path.write_text("")
    with pytest.raises(ServiceUnavailableError, match="this user alone"):
        private_directory()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory to another user")
def test_a_directory_of_another_user_is_refused_where_there_is_no_home(
    runtime_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/dev/null")
    path = runtime_directory / "spark-channel"
    path.mkdir(mode=0o700)
    os.chown(path, 12345, 12345)
    with pytest.raises(ServiceUnavailableError, match="this user alone"):
        private_directory()


@pytest.mark.parametrize("runtime", ["", "relative", "/nowhere/at/all", "open"])
def test_without_a_runtime_directory_it_is_among_the_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str
) -> None:
    if runtime == "open":
        runtime = str(tmp_path / "open")
        Path(runtime).mkdir()
        Path(runtime).chmod(0o755)
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = private_directory()
    assert path == tmp_path / f"spark-channel-{os.geteuid()}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_lock_that_is_never_released_is_given_up(
    place: ServiceDirectory, runtime_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "_LOCK_SECONDS", 0.2)
    descriptor = os.open(runtime_directory / "spark-channel", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        with pytest.raises(ServiceUnavailableError, match="holds the lock"):
            place.publish(NAME, advert())
        assert place.read(NAME) is None
    finally:
        os.close(descriptor)
    mine = advert()
    assert place.publish(NAME, mine) is mine


def test_a_lock_that_is_released_in_time_is_waited_for(
    place: ServiceDirectory, runtime_directory: Path
) -> None:
    descriptor = os.open(runtime_directory / "spark-channel", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    timer = threading.Timer(0.2, os.close, (descriptor,))
    timer.start()
    mine = advert()
    assert place.publish(NAME, mine) is mine
    timer.join()


def test_a_full_disk_is_named_and_ends_no_job_without_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(disk))
        disk.chmod(0o700)
        private_directory()
        with pytest.raises(OSError, match="No space"):
            (disk / "full").write_bytes(bytes(2 << 20))
        with pytest.raises(ServiceUnavailableError, match=r"No space left on device\. Free space"):
            advertise(ADDRESS, os.getpid())
        with pytest.raises(ServiceUnavailableError, match="No space"):
            SharedLimit("orders", rows_per_second=1).start()
        with LocalEngine(served=True) as engine:
            assert engine.service().port
        assert "do not find the jobs of this run" in caplog.text
