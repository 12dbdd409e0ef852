"""Where a task's source notes the range of its rows: no other user can put a file, link or folder in the way."""

import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from spark_channel.errors import SourceError
from spark_channel.spark.own_reads import forget_origins, note_origin, origins_of_task


class Task:
    """As much of Spark's TaskContext as names an attempt."""

    def __init__(
        self, query: str | None = "0b1c", batch: str | None = "7", attempt: int = 11
    ) -> None:
        self._properties = {"sql.streaming.queryId": query, "streaming.sql.batchId": batch}
        self._attempt = attempt

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
        return self._properties[name]

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return 3

    def attemptNumber(self) -> int:  # noqa: N802 - Spark's name
        return 0

    def stageId(self) -> int:  # noqa: N802 - Spark's name
        return 2

    def taskAttemptId(self) -> int:  # noqa: N802 - Spark's name
        return self._attempt


def task(**given: Any) -> Any:
    return Task(**given)


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No private directory of the session: as in most containers, all is in /tmp."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    shared = tmp_path / "tmp"
    shared.mkdir(mode=0o777)
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    return shared


def files(runtime: Path) -> list[Path]:
    return [path for path in runtime.rglob("*") if not path.is_dir()]


def test_what_the_source_notes_the_sink_finds_until_it_is_done(runtime: Path) -> None:
    note_origin(task(), "range-1")
    note_origin(task(), "range-2")
    assert origins_of_task(task()) == ["range-1", "range-2"]
    assert origins_of_task(task(attempt=12)) == []
    assert origins_of_task(task(batch="8")) == []
    (file,) = files(runtime)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert all(
        stat.S_IMODE(each.stat().st_mode) == 0o700 for each in (file.parent, file.parent.parent)
    )
    forget_origins(task())
    assert files(runtime) == []
    forget_origins(task())


def test_outside_a_stream_nothing_is_noted(runtime: Path) -> None:
    note_origin(task(query=None), "range-1")
    assert list(runtime.iterdir()) == []


def test_a_directory_that_another_user_made_first_is_not_used(runtime: Path) -> None:
    made = runtime / f"spark-channel-{os.geteuid()}"
    made.mkdir(mode=0o777)
    made.chmod(0o777)
    with pytest.raises(SourceError, match="TMPDIR"):
        note_origin(task(), "range-1")
    assert origins_of_task(task()) == []
    assert files(runtime) == []


@pytest.mark.parametrize("place", ["spark-channel-{uid}", "spark-channel-{uid}/origins"])
def test_a_link_in_the_place_of_the_directory_is_not_followed(runtime: Path, place: str) -> None:
    victim = runtime / "victim"
    victim.mkdir(mode=0o700)
    link = runtime / place.format(uid=os.geteuid())
    link.parent.mkdir(mode=0o700, exist_ok=True)
    link.symlink_to(victim)
    with pytest.raises(SourceError):
        note_origin(task(), "range-1")
    assert list(victim.iterdir()) == []


def test_a_link_in_the_place_of_the_file_is_replaced_and_not_followed(runtime: Path) -> None:
    note_origin(task(), "range-1")
    (file,) = files(runtime)
    victim = runtime / "victim"
    victim.write_text("precious")
    file.unlink()
    file.symlink_to(victim)
    note_origin(task(), "range-2")
    assert victim.read_text() == "precious"
    assert origins_of_task(task()) == ["range-2"]


def test_the_name_of_a_query_names_no_other_place(runtime: Path) -> None:
    note_origin(task(query="../../escape/0b1c"), "range-1")
    (file,) = files(runtime)
    assert file.parent == runtime / f"spark-channel-{os.geteuid()}" / "origins"


def test_what_killed_tasks_left_is_removed_after_a_day(runtime: Path) -> None:
    note_origin(task(query="dead"), "range-1")
    (left,) = files(runtime)
    old = time.time() - 90_000
    os.utime(left, (old, old))
    note_origin(task(), "range-1")
    assert not left.exists()
