"""Small data files of Delta and Iceberg tables are merged: the same rows for every reader, whatever else happens."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")

from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction

from spark_channel.connectors import WriteContext, load_reader, load_writer
from spark_channel.connectors.base import compaction
from spark_channel.connectors.base.feed import FeedLimit, FeedOptions
from spark_channel.connectors.lake import compact
from spark_channel.connectors.lake.writer import LakeWriter
from spark_channel.errors import CommitError, TargetError, UnsupportedError
from tests.connectors.iceberg.helpers import (
    leftovers,
    mark_as_deleted,
    options_of,
    rows_by_pyiceberg,
    shop,
)

TARGET = 128 << 20


@dataclass
class Lake:
    """`rows` is what the format's own library reads, `files` how many data files the table has."""

    kind: str
    options: dict[str, str]
    rows: Callable[[], pa.Table]
    files: Callable[[], int]
    left: Callable[[], list[str]]

    def writer(self, **more: str) -> LakeWriter:
        found, _ = load_writer({"writer": self.kind, **self.options, **more})
        assert isinstance(found, LakeWriter)
        return found

    def write(
        self, rows: pa.Table, job: str, txn: tuple[str, int] | None = None, **more: str
    ) -> None:
        writer = self.writer(**more)
        overwrite = "overwrite" in job
        plan = writer.prepare(WriteContext(job, txn=txn, overwrite=overwrite), rows.schema)
        if plan.published_at is not None:
            return
        attempt = writer.open(plan, 0, 0)
        for batch in rows.to_batches():
            attempt.write(batch)
        writer.commit(plan, [attempt.close()])

    def fill(self, count: int, **more: str) -> None:
        for number in range(count):
            self.write(numbers(number), f"job{number}", ("nightly", number), **more)

    def ids(self) -> list[int]:
        return sorted(self.rows()["id"].to_pylist())


def numbers(*values: int) -> pa.Table:
    texts = pa.array([f"text {value}" for value in values], pa.string())
    return pa.table({"id": pa.array(values, pa.int64()), "s": texts})


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    if request.param == "delta":
        path = tmp_path / "t"
        yield Lake(
            "delta",
            {"path": str(path)},
            lambda: DeltaTable(path).to_pyarrow_table(),
            lambda: len(DeltaTable(path).file_uris()),
            lambda: [*map(str, path.glob("_spark_channel/**/*.*")), *unnamed(path)],
        )
        return
    with shop(tmp_path) as catalog:
        yield Lake(
            "iceberg",
            options_of(tmp_path, "shop.t"),
            lambda: rows_by_pyiceberg(catalog, "shop.t"),
            lambda: len(list(catalog.load_table("shop.t").scan().plan_files())),
            lambda: leftovers(catalog, "shop.t", killed=True),
        )


def unnamed(path: Path) -> list[str]:
    """Data files of jobs that no version of a Delta table has ever named."""
    log = [
        json.loads(line)
        for version in path.glob("_delta_log/*.json")
        for line in version.read_text().splitlines()
    ]
    named = {path / unquote(action["add"]["path"]) for action in log if "add" in action}
    return [str(file) for file in path.glob("spark-channel/**/*.*") if file not in named]


def same(one: pa.Table, other: pa.Table) -> bool:
    return sorted(map(str, one.to_pylist())) == sorted(
        map(str, other.to_pylist())
    ) and one.schema.equals(other.schema)


def test_one_file_has_the_rows_of_all_and_claims_stay(lake: Lake) -> None:
    lake.fill(8)
    before = lake.rows()
    done = lake.writer().compact(TARGET)
    assert (done.before, done.merged, done.made, done.after, done.rows) == (8, 8, 1, 1, 8)
    assert lake.files() == 1
    assert same(lake.rows(), before)
    assert lake.left() == []
    again = lake.writer().compact(TARGET)
    assert (again.before, again.merged, again.made) == (1, 0, 0)
    lake.fill(8)  # each transaction id was published
    assert lake.ids() == list(range(8))
    lake.write(numbers(9), "later")
    assert lake.ids() == [*range(8), 9]


def test_a_dry_run_changes_nothing(lake: Lake) -> None:
    lake.fill(3)
    found = lake.writer().compact(TARGET, dry_run=True)
    assert (found.merged, found.made, found.made_bytes) == (3, 1, None)
    assert lake.files() == 3


TYPES = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "bool": pa.array([True, None, False]),
        "int": pa.array([-(2**31), None, 2**31 - 1], pa.int32()),
        "double": pa.array([float("inf"), None, -0.0]),
        "float": pa.array([float("nan"), None, 1e-40], pa.float32()),
        "decimal": pa.array([Decimal("-12345678901234567890.123456789"), None, Decimal("0E-9")], pa.decimal128(38, 9)),
        "text": pa.array(["", None, 'ü"\n,\\N\r']),
        "data": pa.array([b"\x00\xff", None, b""]),
        "day": pa.array([date(1900, 1, 1), None, date(9999, 12, 31)]),
        "time": pa.array([-1, None, 253_402_300_799_999_999], pa.timestamp("us")),
        "instant": pa.array([-1, None, 253_402_300_799_999_999], pa.timestamp("us", "UTC")),
        "list": pa.array([[1, None], None, []], pa.list_(pa.int32())),
        "struct": pa.array([{"a": 1}, None, {"b": "x"}], pa.struct([("a", pa.int32()), ("b", pa.string())])),
        "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    }
)  # fmt: skip


def test_another_program_reads_every_type_as_before(lake: Lake) -> None:
    for number, part in enumerate([TYPES, TYPES.slice(1), TYPES.slice(2)]):
        lake.write(part, f"job{number}")
    before = lake.rows()
    assert lake.writer().compact(TARGET).made == 1
    assert same(lake.rows(), before)
    assert before.num_rows == 6


def test_partitions_stay_apart_and_large_files_as_they_are(lake: Lake) -> None:
    odd = ["a b", "a/b", "a=b", "100%", "ü", "x:y", None]
    for number in range(3):
        rows = pa.table({"id": pa.array(range(7), pa.int64()), "p": odd})
        lake.write(rows, f"job{number}", partitionBy="p")
    many = 50_000
    lake.write(pa.table({"id": pa.array(range(many), pa.int64()), "p": ["large"] * many}), "large")
    lake.write(pa.table({"id": pa.array([1], pa.int64()), "p": ["large"]}), "small")
    before = lake.rows()
    done = lake.writer().compact(20_000)
    assert (done.before, done.merged, done.made, done.after) == (23, 21, 7, 9)
    assert same(lake.rows(), before)
    assert lake.files() == 9


def test_files_that_are_far_larger_in_memory_are_one_file(lake: Lake) -> None:
    for number in range(3):
        rows = pa.table({"id": [number] * 50_000, "s": ["the same text in each row"] * 50_000})
        lake.write(rows, f"job{number}")
    before = lake.rows()
    done = lake.writer().compact(100_000)
    assert (done.merged, done.made) == (3, 1)
    assert done.made_bytes is not None
    assert before.nbytes > 20 * done.made_bytes
    assert lake.files() == 1
    assert sorted(lake.rows()["id"].to_pylist()) == sorted(before["id"].to_pylist())


def test_files_without_rows_are_merged_into_none(tmp_path: Path) -> None:
    """As a DELETE of Spark or an empty Spark partition leaves them."""
    path = tmp_path / "t"
    for number in range(2):
        write_deltalake(path, numbers(number), mode="append", partition_by=["s"])
    for part in ("text 0", "empty"):
        _add_file(path, numbers().drop_columns("s"), {"s": part})
        _add_file(path, numbers().drop_columns("s"), {"s": part})
    before = DeltaTable(path).to_pyarrow_table()
    done = load_writer({"writer": "delta", "path": str(path)})[0].compact(TARGET)
    assert (done.before, done.merged, done.made, done.rows, done.after) == (6, 5, 1, 1, 2)
    assert len(DeltaTable(path).file_uris()) == 2
    assert same(DeltaTable(path).to_pyarrow_table(), before)


def test_a_table_of_files_without_rows_has_no_file_after_it(tmp_path: Path) -> None:
    path = tmp_path / "t"
    DeltaTable.create(path, numbers().schema)
    for _ in range(2):
        _add_file(path, numbers(), {})
    done = load_writer({"writer": "delta", "path": str(path)})[0].compact(TARGET)
    assert (done.before, done.merged, done.made, done.rows) == (2, 2, 0, 0)
    assert DeltaTable(path).file_uris() == []
    assert DeltaTable(path).to_pyarrow_table().num_rows == 0


def test_a_group_that_does_not_fit_stays_and_is_named(tmp_path: Path) -> None:
    """A time is another text in the log than here."""
    path = tmp_path / "t"
    times = pa.array([1, None, 2], pa.timestamp("us", "UTC"))
    for number in range(2):
        rows = pa.table({"id": [number] * 3, "at": times})
        write_deltalake(path, rows, mode="append", partition_by=["at"])
    before = DeltaTable(path).to_pyarrow_table()
    done = load_writer({"writer": "delta", "path": str(path)})[0].compact(TARGET)
    assert (done.merged, done.made, len(done.left)) == (2, 1, 2)
    assert "spelled in another way" in done.left[0]
    assert len(DeltaTable(path).file_uris()) == 5
    assert same(DeltaTable(path).to_pyarrow_table(), before)


def _add_file(path: Path, rows: pa.Table, partition: dict[str, str | None]) -> None:
    """A file of another writer."""
    name = f"{uuid4().hex}.parquet"
    pq.write_table(rows, path / name)
    size = (path / name).stat().st_size
    add = AddAction(name, size, partition, 0, True, json.dumps({"numRecords": rows.num_rows}))
    table = DeltaTable(path)
    by = table.metadata().partition_columns
    table.create_write_transaction([add], "append", table.schema(), by)


def test_a_reader_that_holds_the_old_list_reads_the_old_files(lake: Lake) -> None:
    lake.fill(5)
    reader = load_reader({"reader": lake.kind, **lake.options})[0]
    splits = reader.split(4)
    lake.writer().compact(TARGET)
    found = [
        row for split in splits for batch in reader.read(split) for row in batch["id"].to_pylist()
    ]
    assert sorted(found) == list(range(5))


def test_a_stream_passes_a_merge(lake: Lake) -> None:
    lake.fill(4)
    reader = load_reader({"reader": lake.kind, **lake.options})[0]
    feed = reader.feed(FeedOptions())
    token = feed.latest(feed.earliest()[0], FeedLimit())
    lake.writer().compact(TARGET)
    lake.write(numbers(9), "later")
    upto = feed.latest(token, FeedLimit())
    splits = feed.changes(token, upto)
    assert [
        row for split in splits for batch in feed.read(split) for row in batch["id"].to_pylist()
    ] == [9]


@pytest.mark.parametrize("other", ["append", "overwrite", "merge"])
def test_another_job_meanwhile(lake: Lake, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.fill(4)
    commit = compact._Run._commit

    def beside(self: Any, *given: Any) -> Any:
        monkeypatch.undo()
        if other == "merge":
            lake.writer().compact(TARGET)
        else:
            lake.write(numbers(9), other)
        return commit(self, *given)

    monkeypatch.setattr(compact._Run, "_commit", beside)
    done = lake.writer().compact(TARGET)
    assert (done.merged, done.made, done.dropped) == ((4, 1, 0) if other == "append" else (0, 0, 4))
    assert (
        lake.ids() == {"append": [*range(4), 9], "overwrite": [9], "merge": list(range(4))}[other]
    )
    assert lake.files() == (2 if other == "append" else 1)
    assert lake.left() == []


def test_a_merge_that_was_interrupted_in_its_commit_cannot_arrive_later(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.fill(3)
    there = lake.writer().lake()
    table = there.open()
    assert table is not None
    kind = type(table)
    original = kind.commit
    late: list[tuple[Any, Any, Path, bytes]] = []

    def interrupted(self: Any, change: Any) -> bool:
        monkeypatch.setattr(kind, "commit", original)
        (path,) = (Path(there.base) / file.path for file in change.added)
        late.append((self, change, path, path.read_bytes()))
        raise KeyboardInterrupt  # while its answer is awaited

    monkeypatch.setattr(kind, "commit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lake.writer().compact(TARGET)
    ((state, change, path, data),) = late
    assert not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)  # the request has looked at it before
    assert original(state, change) is False
    assert lake.ids() == [0, 1, 2]


def test_a_merged_file_that_is_gone_before_the_commit_is_not_committed(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As VACUUM without retention removes every file that no version names."""
    lake.fill(3)
    commit = compact._Run._commit

    def vacuumed(self: Any, *given: Any) -> Any:
        if lake.kind == "delta":
            table = DeltaTable(lake.options["path"])
            table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        for path in tmp_path.rglob("merged-*.parquet"):
            path.unlink()
        return commit(self, *given)

    monkeypatch.setattr(compact._Run, "_commit", vacuumed)
    with pytest.raises(CommitError, match="is missing or incomplete"):
        lake.writer().compact(TARGET)
    assert lake.ids() == [0, 1, 2]
    assert lake.files() == 3
    monkeypatch.undo()
    assert lake.writer().compact(TARGET).made == 1
    assert lake.ids() == [0, 1, 2]


def test_a_file_with_other_rows_than_its_log_says_is_not_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps before and after it are."""
    monkeypatch.setattr(compaction, "_STEP_FILES", 2)
    path = tmp_path / "t"
    for number in range(6):
        table = numbers(number, number).append_column("p", pa.array([number // 2] * 2))
        write_deltalake(path, table, mode="append", partition_by=["p"])
    damaged = next((path / "p=1").glob("*.parquet"))
    pq.write_table(numbers(7), damaged)
    done = load_writer({"writer": "delta", "path": str(path)})[0].compact(TARGET)
    assert (done.merged, done.made, len(done.left)) == (4, 2, 1)
    assert "has 1 rows, and the log of" in done.left[0]
    assert len(DeltaTable(path).file_uris()) == 4


KILLED = """
import json, os, signal, sys
from spark_channel.connectors import load_writer
from spark_channel.connectors.base import compaction
from spark_channel.connectors.lake import compact, publish, runs, task_writer
writer = load_writer(json.loads(sys.argv[1]))[0]
compaction._STEP_FILES = 1
kind, name, is_done = {
    "in a file": (task_writer.FileSet, "finish", False),
    "before the commit": (compact._Run, "_commit", False),
    "in the commit": (runs.Run, "note_publishing", True),
    "before its answer": (type(writer.lake().open()), "commit", True),
    "before it tidies up": (publish.LakePublisher, "clear", False),
    "between two steps": (publish.LakePublisher, "clear", True),
}[sys.argv[2]]
original = getattr(kind, name)
def die(*given, **named):
    if is_done:
        original(*given, **named)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(kind, name, die)
writer.compact(128 << 20)
"""


@pytest.mark.parametrize(
    ("point", "merged"),
    [
        ("in a file", 0),
        ("before the commit", 0),
        ("in the commit", 0),
        ("before its answer", 2),
        ("before it tidies up", 2),
        ("between two steps", 2),
    ],
)
def test_a_killed_merge_loses_and_doubles_nothing_also_for_a_reader_of_before(
    lake: Lake, point: str, merged: int
) -> None:
    for number in range(4):
        rows = pa.table({"id": [number], "s": ["ab"[number % 2]]})
        lake.write(rows, f"job{number}", partitionBy="s")
    reader = load_reader({"reader": lake.kind, "splitBytes": "1", **lake.options})[0]
    splits = iter(reader.split(4))
    read = ids_of(reader, next(splits))
    options = json.dumps({"writer": lake.kind, **lake.options})
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, options, point], check=False, cwd=Path(__file__).parents[3]
    )
    assert killed.returncode == -signal.SIGKILL
    assert lake.ids() == list(range(4))
    assert lake.files() == 4 - merged // 2
    read += ids_of(reader, next(splits))
    assert lake.writer().compact(TARGET).merged == 4 - merged
    lake.write(pa.table({"id": [9], "s": ["a"]}), "next")
    assert lake.ids() == [*range(4), 9]
    assert lake.files() == 3
    for split in splits:
        read += ids_of(reader, split)
    assert sorted(read) == list(range(4))
    assert lake.left() == []


def ids_of(reader: Any, split: Any) -> list[int]:
    return [row for batch in reader.read(split) for row in batch["id"].to_pylist()]


def test_a_table_that_is_not_there(lake: Lake) -> None:
    with pytest.raises(TargetError, match="does not exist"):
        lake.writer().compact(TARGET)


def test_delta_says_that_no_row_changed(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for number in range(3):
        write_deltalake(
            path,
            numbers(number),
            mode="append",
            configuration={"delta.appendOnly": "true", "delta.enableChangeDataFeed": "true"}
            if not number
            else None,
        )
    before = DeltaTable(path).to_pyarrow_table()
    assert load_writer({"writer": "delta", "path": str(path)})[0].compact(TARGET).made == 1
    log = max((path / "_delta_log").glob("*.json")).read_text().splitlines()
    actions = [json.loads(line) for line in log]
    changes = [
        each[kind]["dataChange"] for each in actions for kind in ("add", "remove") if kind in each
    ]
    assert changes == [False] * 4
    assert same(DeltaTable(path).to_pyarrow_table(), before)


def bounds_of(path: Path) -> list[tuple[Any, Any, Any]]:
    actions = pa.table(DeltaTable(path).get_add_actions()).to_pylist()
    return [(each["min"], each["max"], each["null_count"]) for each in actions]


@pytest.mark.parametrize("known", [True, False])
def test_delta_keeps_the_bounds_of_fractions_and_times(tmp_path: Path, known: bool) -> None:
    path = tmp_path / "t"
    at, fraction = datetime(2020, 1, 1, 1, 2, 3, 456789), [1.5, -0.5, None]
    if not known:
        fraction[1] = float("nan")
        write_deltalake(path, pa.table({"f": [2.5], "t": [at], "i": pa.array([None], pa.int64())}))
    for number, value in enumerate(fraction if known else fraction[:2]):
        moment = pa.array([at + timedelta(days=number)], pa.timestamp("us"))
        rows = {"f": pa.array([value], pa.float64()), "t": moment, "i": [number]}
        write_deltalake(path, pa.table(rows), mode="append")
    before = bounds_of(path)
    assert load_writer({"writer": "delta", "path": str(path)})[0].compact(TARGET).made == 1
    ((low, high, nulls),) = bounds_of(path)
    assert low["t"] == min(each["t"] for each, _, _ in before)
    assert high["t"] == max(each["t"] for _, each, _ in before)
    assert nulls["t"] == 0
    assert (low["f"], high["f"]) == (None, None)  # of one file they are not known


def test_delta_joins_the_bounds_of_all_sources(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for value in (1.5, -0.5, 2.5):
        write_deltalake(path, pa.table({"f": [value, None], "n": [1, 2]}), mode="append")
    load_writer({"writer": "delta", "path": str(path)})[0].compact(TARGET)
    assert bounds_of(path) == [({"f": -0.5, "n": 1}, {"f": 2.5, "n": 2}, {"f": 3, "n": 0})]


def test_iceberg_says_that_no_row_changed(tmp_path: Path) -> None:
    with shop(tmp_path) as catalog:
        table = catalog.create_table("shop.t", numbers().schema)
        for number in range(3):
            table.append(numbers(number))
        options = options_of(tmp_path, "shop.t")
        assert load_writer({"writer": "iceberg", **options})[0].compact(TARGET).made == 1
        snapshot = catalog.load_table("shop.t").current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        assert snapshot.summary.operation.value == "replace"
        assert snapshot.summary["deleted-data-files"] == "3"
        assert snapshot.summary["total-records"] == "3"
        assert catalog.load_table("shop.t").inspect.files().num_rows == 1


def test_files_of_an_earlier_partitioning_stay(tmp_path: Path) -> None:
    with shop(tmp_path) as catalog:
        table = catalog.create_table("shop.t", numbers().schema)
        for number in range(2):
            table.append(numbers(number))
        with table.update_spec() as spec:
            spec.add_identity("s")
        for _ in range(2):
            table.append(numbers(7))
        options = options_of(tmp_path, "shop.t")
        done = load_writer({"writer": "iceberg", **options})[0].compact(TARGET)
        assert (done.before, done.merged, done.made) == (4, 2, 1)
        assert sorted(rows_by_pyiceberg(catalog, "shop.t")["id"].to_pylist()) == [0, 1, 7, 7]


def test_tables_with_delete_files_are_refused(tmp_path: Path) -> None:
    with shop(tmp_path) as catalog:
        table = catalog.create_table("shop.t", numbers().schema)
        table.append(numbers(1, 2))
        mark_as_deleted(table, "POSITION_DELETES")
        options = options_of(tmp_path, "shop.t")
        with pytest.raises(UnsupportedError, match="delete files"):
            load_writer({"writer": "iceberg", **options})[0].compact(TARGET)
