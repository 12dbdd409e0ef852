"""Few rows of several tasks become one file in the commit of their job: exactly the rows of its receipts.

In an object store, where nothing is staged, the tasks' files are published.
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_channel.connectors.base import compaction
from spark_channel.connectors.files import writer
from spark_channel.errors import CommitError, SupersededError
from tests.connectors.files.helpers import (
    FORMATS,
    FolderObjects,
    leftovers,
    numbers,
    prepare,
    read,
    stage,
    state,
    visible,
    write,
    writer_of,
)

GATHERS = {"gathers": True}


@pytest.fixture(params=["disk", "objects"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "objects":
        monkeypatch.setattr(writer, "store_of", FolderObjects)
    return str(request.param)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


def data_files(target: Path) -> list[str]:
    return sorted(path.name for path in target.iterdir() if path.name.startswith("part-"))


def listed(target: Path) -> list[str]:
    return sorted(file["path"] for file in state(target)["files"])


@pytest.mark.parametrize("form", FORMATS)
def test_the_rows_of_all_tasks_in_their_order(kind: str, target: Path, form: str) -> None:
    out = writer_of(form, target)
    plan = prepare(out, numbers().schema, gathers=True)
    receipts = stage(out, plan, [numbers(number, -number) for number in range(9)])
    out.commit(plan, receipts[::-1])
    assert len(data_files(target)) == (1 if kind == "disk" else 9)
    assert data_files(target) == listed(target)
    assert leftovers(target) == []
    rows = [each for number in range(9) for each in (number, -number)]
    assert read(form, target).column("n").to_pylist() == rows
    write(form, target, numbers(50), numbers(51), job="next", context=GATHERS)
    write(form, target, numbers(60), job="last", context=GATHERS)
    assert visible(form, target) == sorted([*rows, 50, 51, 60])
    assert len(data_files(target)) == (3 if kind == "disk" else 12)


def test_other_readers_see_each_row_once_though_the_driver_dies_after_its_entry(
    kind: str, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = writer_of("parquet", target)
    plan = prepare(out, numbers().schema, gathers=True)
    receipts = stage(out, plan, [numbers(1), numbers(2)])

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(out, "clear", killed)
    with pytest.raises(KeyboardInterrupt):
        out.commit(plan, receipts)
    assert (target / "_SUCCESS").exists()
    found = [pq.read_table(target / name) for name in data_files(target)]
    assert sorted(pa.concat_tables(found).column("n").to_pylist()) == [1, 2]


def test_attempts_without_a_receipt_add_nothing(kind: str, target: Path) -> None:
    out = writer_of("parquet", target)
    plan = prepare(out, numbers().schema, gathers=True)
    receipts = stage(out, plan, [numbers(1), numbers(2)])
    stage(out, plan, [numbers(1), numbers(2)], attempt=7)
    out.commit(plan, receipts)
    assert visible("parquet", target) == [1, 2]
    assert data_files(target) == listed(target)


def test_a_run_that_was_overtaken_publishes_no_gathered_file(kind: str, target: Path) -> None:
    first, second = (writer_of("parquet", target) for _ in range(2))
    early = prepare(first, numbers().schema, "a", txn=("app", 1), gathers=True)
    late = stage(first, early, [numbers(1), numbers(2)])
    plan = prepare(second, numbers().schema, "b", txn=("app", 1), gathers=True)
    with pytest.raises(SupersededError):
        first.commit(early, late)
    second.commit(plan, stage(second, plan, [numbers(3), numbers(4)]))
    assert visible("parquet", target) == [3, 4]
    assert data_files(target) == listed(target)
    assert leftovers(target) == []


def test_a_commit_is_repeated_without_a_second_file(kind: str, target: Path) -> None:
    out = writer_of("csv", target)
    plan = prepare(out, numbers().schema, gathers=True)
    receipts = stage(out, plan, [numbers(1), numbers(2)])
    assert [out.commit(plan, receipts) for _ in range(2)] == [True, True], "this run has published"
    assert visible("csv", target) == [1, 2]
    assert data_files(target) == listed(target)


def test_a_write_that_another_run_has_published_is_its_own_no_more(target: Path) -> None:
    late = writer_of("csv", target)
    plan = prepare(late, numbers().schema, "a", txn=("app", 1), gathers=True)
    receipts = stage(late, plan, [numbers(1), numbers(2)])
    write("csv", target, numbers(3), numbers(4), job="b", context={**GATHERS, "txn": ("app", 1)})
    assert late.commit(plan, receipts) is False
    assert visible("csv", target) == [3, 4]


def test_dictionaries_that_differ_stay_in_the_files_of_their_tasks(target: Path) -> None:
    """An Arrow file has one dictionary for each column."""
    found = [pa.table({"s": pa.array(each).dictionary_encode()}) for each in (["a", "b"], ["c"])]
    write("arrow", target, *found, context=GATHERS)
    assert len(data_files(target)) == 2
    rows = [row for name in data_files(target) for row in _arrow(target / name)]
    assert sorted(rows) == ["a", "b", "c"]
    assert leftovers(target) == []


def _arrow(path: Path) -> list[str]:
    with pa.ipc.open_file(path) as file:
        return [str(value) for value in file.read_all().column("s").to_pylist()]


@pytest.mark.parametrize(("name", "most"), [("FEW_ROWS", 3), ("FEW_BYTES", 31)])
def test_more_rows_stay_in_the_files_of_their_tasks(
    target: Path, monkeypatch: pytest.MonkeyPatch, name: str, most: int
) -> None:
    monkeypatch.setattr(compaction, name, most)
    write("parquet", target, numbers(1, 2), numbers(3, 4), context=GATHERS)
    assert len(data_files(target)) == 2
    write("parquet", target, numbers(5), numbers(6), job="few", context=GATHERS)
    assert len(data_files(target)) == 3


def test_the_options_still_bound_a_file(target: Path) -> None:
    tables = [numbers(number) for number in range(6)]
    write("json", target, *tables, context=GATHERS, maxRecordsPerFile="4")
    assert sorted(file["rows"] for file in state(target)["files"]) == [2, 4]
    assert visible("json", target) == list(range(6))


def test_texts_that_no_reader_parses_stay_apart(target: Path) -> None:
    pair = pa.table({"a": ["x"], "b": ["y"]})
    write("csv", target, pair, pair, context=GATHERS, sep="||", raw="true")
    assert [(target / name).read_text() for name in listed(target)] == ["a||b\nx||y\n"] * 2
    assert data_files(target) == listed(target)


def test_a_staged_file_that_is_gone_is_named(kind: str, target: Path) -> None:
    out = writer_of("csv", target)
    plan = prepare(out, numbers().schema, gathers=True)
    receipts = stage(out, plan, [numbers(1), numbers(2)])
    next(target.rglob("part-00001*")).unlink()
    with pytest.raises(CommitError, match=r"part-00001.*missing or incomplete"):
        out.commit(plan, receipts)


def test_a_staged_file_with_other_rows_is_not_published(target: Path) -> None:
    write("parquet", target, numbers(0), job="before")
    out = writer_of("parquet", target)
    plan = prepare(out, numbers().schema, gathers=True)
    receipts = stage(out, plan, [numbers(1), numbers(2, 3)])
    for path in target.rglob("part-00001*"):
        data = path.read_bytes()
        path.write_bytes(data[:-40] + b"\x00" * 40)
    with pytest.raises(CommitError, match=r"cannot be read.*run the job again"):
        out.commit(plan, receipts)
    out.abort(plan, receipts)
    assert visible("parquet", target) == [0]
    assert leftovers(target) == []
