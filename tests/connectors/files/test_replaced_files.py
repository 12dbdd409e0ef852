"""Files that an overwrite replaced are listed, kept as long as the docs say, and put back."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_channel.clock import utc_now
from spark_channel.connectors.files import log, publish, writer
from spark_channel.connectors.files import replaced_files as replaced
from spark_channel.connectors.files.replaced_files import put_back, replaced_files
from spark_channel.errors import CommitError, TargetError
from tests.cli.typed import typed
from tests.connectors.files.helpers import (
    FORMATS,
    FolderObjects,
    numbers,
    read,
    state,
    visible,
    write,
)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


def overwrite(form: str, target: Path, rows: pa.Table, job: str, **options: str) -> None:
    write(form, target, rows, job=job, context={"overwrite": True}, **options)


@pytest.mark.parametrize("form", FORMATS)
def test_what_an_overwrite_replaced_is_put_back_with_its_columns(form: str, target: Path) -> None:
    dialect: dict[str, Any] = {"sep": ";"} if form == "csv" else {}
    before = pa.table({"n": pa.array([1, None], pa.int64()), "t": ["x", "y;z"]})
    write(form, target, before, job="a", **dialect)
    overwrite(form, target, numbers(2), "b")
    (kept,) = replaced_files(str(target))
    assert put_back(str(target), kept.number) == len(kept.paths) == 1
    assert read(form, target).equals(before)
    assert (target / kept.paths[0]).exists()  # other readers see it, too
    (other,) = replaced_files(str(target))
    put_back(str(target), other.number)
    assert visible(form, target) == [2]


def test_a_write_after_it_was_put_back_adds_to_these_rows(target: Path) -> None:
    write("parquet", target, numbers(1), job="a")
    overwrite("parquet", target, numbers(2), "b")
    put_back(str(target), replaced_files(str(target))[0].number)
    write("parquet", target, numbers(3), job="c", retention="0")
    assert visible("parquet", target) == [1, 3]


def test_the_format_is_put_back_too(target: Path) -> None:
    write("csv", target, numbers(1), job="a")
    overwrite("parquet", target, numbers(2), "b")
    put_back(str(target), replaced_files(str(target))[0].number)
    assert visible("csv", target) == [1]
    assert state(target)["format"] == "csv"


def test_files_of_other_programs_are_put_back(target: Path) -> None:
    (target / "k=1").mkdir(parents=True)
    pq.write_table(numbers(1), target / "k=1" / "part-0.parquet")
    overwrite("parquet", target, numbers(2), "b")
    assert not (target / "k=1").exists()
    (kept,) = replaced_files(str(target))
    assert kept.paths == ["k=1/part-0.parquet"]
    put_back(str(target), kept.number)
    assert pq.read_table(target / "k=1" / "part-0.parquet")["n"].to_pylist() == [1]
    assert visible("parquet", target) == [1]


def test_a_store_without_renames_keeps_them_in_their_place(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (writer, replaced):
        monkeypatch.setattr(module, "store_of", FolderObjects)
    write("parquet", target, numbers(1), job="a")
    overwrite("parquet", target, numbers(2), "b")
    put_back(str(target), replaced_files(str(target))[0].number)
    write("parquet", target, numbers(3), job="c", retention="0")
    assert visible("parquet", target) == [1, 3]


def test_files_of_a_prefix_are_put_back(target: Path) -> None:
    write("csv", target, numbers(1), job="a", filePrefix="orders")
    overwrite("csv", target, numbers(2), "b", filePrefix="orders")
    command = ("replaced", str(target), "--file-prefix", "orders")
    (kept,) = json.loads(typed(*command, "--output", "json").stdout)
    assert typed(*command, "--put-back", str(kept["number"])).exit_code == 0
    assert visible("csv", target) == [1]


def test_they_are_kept_as_long_as_the_option_says(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("parquet", target, numbers(1), job="a")
    overwrite("parquet", target, numbers(2), "b")

    def write_after(minutes: int, number: int) -> None:
        at = (utc_now() + timedelta(minutes=minutes)).isoformat(timespec="seconds")
        monkeypatch.setattr(publish, "_now", lambda: at)
        write("parquet", target, numbers(number), job=f"job-{number}")

    write_after(59, 3)
    assert [each.is_due for each in replaced_files(str(target))] == [False]
    write_after(61, 4)
    assert replaced_files(str(target)) == []
    with pytest.raises(TargetError, match="no files that entry"):
        put_back(str(target), 3)


def test_a_file_that_was_removed_leaves_all_as_it_was(target: Path) -> None:
    write("parquet", target, numbers(1), numbers(2), job="a")
    overwrite("parquet", target, numbers(3), "b")
    (kept,) = replaced_files(str(target))
    next((target / "_spark_channel" / "replaced").rglob("*.parquet")).unlink()
    with pytest.raises(TargetError, match="1 of the 2 files"):
        put_back(str(target), kept.number)
    assert visible("parquet", target) == [3]


def test_another_file_of_the_name_is_not_replaced(target: Path) -> None:
    target.mkdir()
    pq.write_table(numbers(1), target / "part-0.parquet")
    overwrite("parquet", target, numbers(2), "b")
    (target / "part-0.parquet").write_text("another program's")
    with pytest.raises(TargetError, match=r"another file called part-0\.parquet"):
        put_back(str(target), replaced_files(str(target))[0].number)
    assert (target / "part-0.parquet").read_text() == "another program's"
    assert visible("parquet", target) == [2]


def test_an_entry_that_cannot_be_written_leaves_all_as_it_was(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("parquet", target, numbers(1), job="a")
    overwrite("parquet", target, numbers(2), "b")
    (kept,) = replaced_files(str(target))

    def fail(*args: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(log.Log, "change", fail)
        with pytest.raises(TargetError, match="no space left"):
            put_back(str(target), kept.number)
    assert not (target / kept.paths[0]).exists()
    assert replaced_files(str(target)) == [kept]
    assert visible("parquet", target) == [2]


def test_a_file_that_another_job_removes_meanwhile_is_named(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("parquet", target, numbers(1), job="a")
    overwrite("parquet", target, numbers(2), "b")
    (kept,) = replaced_files(str(target))
    finish = publish.TargetDirectory._finish

    def remove_and_finish(self: publish.TargetDirectory, manifest: object) -> None:
        (target / kept.paths[0]).unlink()
        finish(self, manifest)  # type: ignore[arg-type]

    monkeypatch.setattr(publish.TargetDirectory, "_finish", remove_and_finish)
    with pytest.raises(CommitError, match="another job removed 1 of 1 files"):
        put_back(str(target), kept.number)


def test_the_command(target: Path) -> None:
    write("parquet", target, numbers(1), job="a")
    overwrite("parquet", target, numbers(2), "b")
    (listed,) = json.loads(typed("replaced", str(target), "--output", "json").stdout)
    shown = typed("replaced", str(target)).stdout
    assert str(listed["number"]) in shown
    assert "--put-back" in shown
    done = typed("replaced", str(target), "--put-back", str(listed["number"]))
    assert (done.exit_code, "1 file is visible again" in done.stdout) == (0, True)
    assert visible("parquet", target) == [1]
    nothing = typed("replaced", str(target.parent))
    assert nothing.exit_code == 1
    assert "has no log" in str(nothing.exception)
