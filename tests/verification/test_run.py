"""Two tables compared and repaired, from Python and from the command line, without Spark."""

import json
import sqlite3
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from decimal import Decimal
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import spark_channel
from spark_channel.clock import SystemClock
from spark_channel.errors import OptionError, SchemaError, SourceError, UnsupportedError
from spark_channel.local import local_engine
from spark_channel.planning import Endpoint, TransferSpec
from spark_channel.verification import compare as compare_module
from spark_channel.verification import run as run_module
from spark_channel.verification import tasks as tasks_module
from spark_channel.verification import verify_with
from spark_channel.verification.compare import SampledRow, without_equal
from spark_channel.verification.report import RepairSettings, VerifyReport, VerifySettings
from tests.cli.test_run import environment
from tests.cli.typed import typed

TABLE = "CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT, total DECIMAL(10, 2), day DATE)"
ROWS = [(number * 3, f"name {number}", number / 4, "2026-01-31") for number in range(2_000)]


def sqlite(path: Path, rows: list[tuple[Any, ...]], table: str = TABLE) -> dict[str, Any]:
    with closing(sqlite3.connect(path)) as db:
        db.execute(table)
        for row in rows[:1]:
            db.executemany(f"INSERT INTO orders VALUES ({', '.join('?' * len(row))})", rows)
        db.commit()
    return {"name": "sqlite", "path": str(path), "dbtable": "orders"}


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()


@pytest.fixture
def pair(tmp_path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    return sqlite(tmp_path / "a.db", ROWS), sqlite(tmp_path / "b.db", ROWS)


def differ(tmp_path: Path) -> None:
    change(
        tmp_path / "b.db",
        "UPDATE orders SET name = 'other' WHERE id IN (300, 5400)",
        "UPDATE orders SET total = 1.5, name = NULL WHERE id = 600",
        "DELETE FROM orders WHERE id = 1500",
        "INSERT INTO orders VALUES (1501, 'new', 1, NULL)",
    )


Pair = tuple[dict[str, Any], dict[str, Any]]


def test_equal_tables_are_equal(pair: Pair) -> None:
    report = spark_channel.verify(None, *pair)
    assert (report.outcome, report.equal, report.looks, report.exit_code) == ("equal", 2_000, 1, 0)
    assert report.compared == {
        "id": "integer",
        "name": "text",
        "total": "decimal<2>",
        "day": "date",
    }
    assert report.key == ("id",)


def test_each_differing_row_is_found_with_both_values(pair: Pair, tmp_path: Path) -> None:
    differ(tmp_path)
    report = spark_channel.verify(None, *pair, confirm=0)
    assert (report.equal, report.different, report.missing, report.extra) == (1_996, 3, 1, 1)
    assert report.columns == {"name": 3, "total": 1}
    found = {each.key["id"]: each for each in report.differences}
    assert {key: each.kind for key, each in found.items()} == {
        300: "different", 600: "different", 1500: "missing", 1501: "extra", 5400: "different",
    }  # fmt: skip
    both = found[600]
    assert both.columns == ("name", "total")
    assert both.source is not None
    assert both.target is not None
    assert (both.source["total"], both.target["total"]) == (Decimal("50.00"), Decimal("1.50"))
    assert "different id=600  name: 'name 200' -> None" in str(report)
    assert sum(report.histogram) == 5


def test_a_database_and_parquet_are_compared_by_value(pair: Pair, tmp_path: Path) -> None:
    lake = {"name": "parquet", "path": str(tmp_path / "lake")}
    spark_channel.transfer(None, pair[0], lake)
    assert spark_channel.verify(None, pair[0], lake, key=["id"]).outcome == "equal"
    differ(tmp_path)
    report = spark_channel.verify(None, pair[1], lake, key=["ID"], confirm=0)
    assert (report.different, report.missing, report.extra) == (3, 1, 1)
    whole = spark_channel.verify(None, pair[1], lake, key=["name"], confirm=0)
    assert (whole.equal, whole.missing, whole.extra) == (1_996, 4, 4)


def test_rows_without_a_key_are_compared_with_their_number(tmp_path: Path) -> None:
    for name, numbers in (("a", [1, 2, 2, None, 5]), ("b", [2, 1, None, None, 2])):
        pq.write_table(pa.table({"n": pa.array(numbers, pa.int32())}), tmp_path / f"{name}.parquet")
    sides = [{"path": str(tmp_path / f"{name}.parquet")} for name in "ab"]
    report = spark_channel.verify(None, *sides, confirm=0)
    assert (report.outcome, report.equal, report.missing, report.extra) == ("different", 4, 1, 1)
    assert {(each.kind, each.key["n"]) for each in report.differences} == {
        ("missing", 5),
        ("extra", None),
    }
    assert "no key is known" in report.notes[0]
    with pytest.raises(UnsupportedError, match="Name columns that identify each row with 'key'"):
        spark_channel.verify(None, *sides, confirm=0, repair=True)


def test_more_differences_than_fit_into_memory_are_counted(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "_MOST_ROWS", 100)
    monkeypatch.setattr(run_module, "_MOST_DETAILED", 400)
    monkeypatch.setattr(run_module, "_SAMPLES", 7)
    change(tmp_path / "b.db", "UPDATE orders SET name = 'x' WHERE id > 30")
    for key in ("id", "name"):
        report = spark_channel.verify(None, *pair, key=[key], confirm=0)
        assert report.different + report.missing == 1_989
        assert len(report.differences) == 7
    for most in (1_000, 300):
        monkeypatch.setattr(run_module, "_MOST_ROWS", 600)
        monkeypatch.setattr(run_module, "_MOST_CANDIDATES", most)
        report = spark_channel.verify(None, *pair, confirm=0)
        assert (report.different, report.columns) == (1_989, {"name": 300})
        assert (
            "1989 keys differ: the 300 whose rows fit in memory are looked at again"
            in report.notes[0]
        )


def test_columns_that_only_one_side_has_are_an_error_until_they_are_left_out(
    tmp_path: Path,
) -> None:
    one = sqlite(
        tmp_path / "a.db", [(1, "a")], "CREATE TABLE orders (id INTEGER PRIMARY KEY, old TEXT)"
    )
    other = sqlite(tmp_path / "b.db", [(1,)], "CREATE TABLE orders (ID INTEGER PRIMARY KEY)")
    with pytest.raises(SchemaError, match="the target lacks column 'old'"):
        spark_channel.verify(None, one, other)
    report = spark_channel.verify(None, one, other, exclude=["old"])
    assert (report.outcome, report.excluded) == ("equal", ("old",))


def test_columns_to_leave_out_are_there_and_leave_others(pair: Pair) -> None:
    with pytest.raises(OptionError, match="'exclude' names column 'nmae', which neither side has"):
        spark_channel.verify(None, *pair, exclude=["nmae"])
    with pytest.raises(SchemaError, match="no column is left to compare"):
        spark_channel.verify(None, *pair, exclude=["id", "name", "total", "DAY"])


def test_a_boolean_is_matched_with_a_number_in_the_key(tmp_path: Path) -> None:
    table = "CREATE TABLE orders (ok {}, id INTEGER, name TEXT, PRIMARY KEY (ok, id))"
    rows = [(number % 2, number, "a") for number in range(20)]
    one = sqlite(tmp_path / "a.db", rows, table.format("BOOLEAN"))
    other = sqlite(tmp_path / "b.db", [*rows[:-1], (1, 19, "b")], table.format("INTEGER"))
    report = spark_channel.verify(None, one, other, confirm=0)
    assert (report.equal, report.different) == (19, 1)


@pytest.mark.parametrize("rows_of_a_key", [1, 20])
def test_memory_is_bounded_whatever_the_number_of_differences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_of_a_key: int
) -> None:
    small = {"ROWS": 6_000, "CANDIDATES": 3_000, "DETAILED": 2_000, "BITS": 8}
    for name, most in small.items():
        monkeypatch.setattr(run_module, f"_MOST_{name}", most)
    monkeypatch.setattr(run_module, "_SAMPLES", 10)
    monkeypatch.setattr(tasks_module, "_ROWS_AT_ONCE", 1_000)
    in_arrow, found_of = [0], compare_module.find_differences

    def compared(*arrays: Any) -> Any:
        in_arrow[-1] = max(in_arrow[-1], pa.total_allocated_bytes())
        return found_of(*arrays)

    def compare_rows(count: int) -> int:
        numbers = np.arange(count)
        for name, add in (("a", 0), ("b", count)):
            table = pa.table({"id": numbers // rows_of_a_key, "n": numbers + add})
            pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=4_000)
        one, other = ({"path": str(tmp_path / f"{name}.parquet")} for name in "ab")
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        report, _ = verified((one, other), key=["id"])
        assert (report.different, report.equal, report.looks) == (count, 0, 4)
        return tracemalloc.get_traced_memory()[1] - before

    monkeypatch.setattr(run_module, "find_differences", compared)
    compare_rows(1_000)  # imports what it needs
    peaks = []
    tracemalloc.start()
    try:
        for count in (12_000, 48_000):
            in_arrow.append(0)
            peaks.append(compare_rows(count))
    finally:
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]
    assert in_arrow[2] < 1.5 * in_arrow[1] + (1 << 16)


def test_many_rows_of_one_key_are_matched_in_order_of_their_number() -> None:
    rows = [SampledRow({}, number, ()) for number in range(100_000)]
    target = [*reversed(rows[1:]), SampledRow({}, -1, ()), rows[7]]
    alone, left = without_equal(rows, target)
    assert [row.whole for row in alone] == [0]
    assert [row.whole for row in left] == [-1, 7]


def test_a_range_that_has_all_rows_is_divided_before_it_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "_MOST_ROWS", 100)
    table = "CREATE TABLE orders (shop INTEGER, id INTEGER, name TEXT, PRIMARY KEY (shop, id))"
    rows = [(1, number, "a") for number in range(2_000)]
    one = sqlite(tmp_path / "a.db", rows, table)
    other = sqlite(tmp_path / "b.db", [*rows[:-2], (1, 1_999, "b")], table)
    passes = []
    run = run_module.Verification._pass

    def counted(self: Any, work: Any, splits: Any) -> Any:
        passes.append(work)
        return run(self, work, splits)

    monkeypatch.setattr(run_module.Verification, "_pass", counted)
    report = spark_channel.verify(None, one, other, confirm=0)
    assert (report.equal, report.different, report.missing) == (1_998, 1, 1)
    # Two for checksums, the rows of the groups that differ, and the last look.
    assert len(passes) == 4


def test_rows_that_differ_all_over_a_table_are_read_once_for_their_hashes(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "_MOST_ROWS", 400)
    monkeypatch.setattr(run_module, "_ROWS_PER_BUCKET", 20)
    change(tmp_path / "b.db", "UPDATE orders SET name = 'x' WHERE id % 30 = 0")
    read: list[int] = []
    run = run_module.Verification._pass

    def counted(self: Any, work: Any, splits: Any) -> Any:
        made = run(self, work, splits)
        read.append(sum(rows for _, rows, _ in made))
        return made

    monkeypatch.setattr(run_module.Verification, "_pass", counted)
    report = spark_channel.verify(None, *pair, confirm=0)
    assert (report.different, report.equal) == (200, 1_800)
    assert len(read) > 5
    assert sum(read) <= 2 * 4_000 + 400 + 100


def test_rows_outside_of_the_ranges_that_differ_are_not_counted_where_one_side_has_no_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "_MOST_ROWS", 400)
    monkeypatch.setattr(run_module, "_MOST_CANDIDATES", 100)
    source = sqlite(tmp_path / "a.db", ROWS)
    ids = [row[0] for row in ROWS]
    names = [name if number < 4_500 else "x" for number, name, *_ in ROWS]
    pq.write_table(pa.table({"id": ids, "name": names}), tmp_path / "b.parquet")
    target = {"name": "parquet", "path": str(tmp_path / "b.parquet")}
    report = spark_channel.verify(
        None, source, target, key=["id"], exclude=["total", "day"], confirm=0
    )
    assert (report.equal, report.different, report.missing, report.extra) == (1_500, 500, 0, 0)


def test_values_that_take_much_memory_are_counted_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks_module, "_MOST_VALUES", 100_000)
    table = "CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT)"
    rows = [(number, "x" * 200_000) for number in range(200)]
    one = sqlite(tmp_path / "a.db", rows, table)
    other = sqlite(tmp_path / "b.db", [(number, "y" + name) for number, name in rows], table)
    report = spark_channel.verify(None, one, other, confirm=0)
    assert (report.different, report.columns) == (200, {"name": 200})
    assert 0 < len(report.differences) < 200
    assert {each.kind for each in report.differences} == {"different"}
    assert "differing rows whose values take much memory are counted" in report.notes[0]


def test_a_key_is_shown_without_line_breaks_and_in_any_locale(tmp_path: Path) -> None:
    table = "CREATE TABLE orders (id TEXT PRIMARY KEY, name TEXT)"
    one = sqlite(tmp_path / "a.db", [("ä\nequal: all", "x")], table)
    other = sqlite(tmp_path / "b.db", [], table)
    places = [
        "--source",
        f"{one['path']}?dbtable=orders",
        "--target",
        f"{other['path']}?dbtable=orders",
    ]
    for more in ([], ["--output", "json"]):
        done = subprocess.run(
            [sys.executable, "-m", "spark_channel.cli", "verify", *places, "--confirm", "0", *more],
            check=False,
            env={**environment(), "PYTHONIOENCODING": "ascii"},
            capture_output=True,
            timeout=120,
        )
        assert done.returncode == 3, done.stderr
        assert b"\nequal" not in done.stdout
    assert json.loads(done.stdout)["differences"][0]["key"] == {"id": "ä\nequal: all"}


def test_a_report_is_json_whatever_the_doubles(tmp_path: Path) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    table = "CREATE TABLE orders (id INTEGER PRIMARY KEY, x DOUBLE)"
    one = sqlite(tmp_path / "a.db", [(1, float("inf"))], table)
    other = sqlite(tmp_path / "b.db", [(1, 2.0)], table)
    report = spark_channel.verify(None, one, other, confirm=0)
    found = json.loads(report.to_json(), parse_constant=refuse)
    assert found["differences"][0]["source"] == {"id": 1, "x": "inf"}
    assert json.loads(report.table()["source"][0].as_py(), parse_constant=refuse)["x"] == "inf"


def test_rows_outside_of_a_condition_are_not_compared(pair: Pair, tmp_path: Path) -> None:
    differ(tmp_path)
    where = {"where": "id < 300"}
    report = spark_channel.verify(None, {**pair[0], **where}, {**pair[1], **where})
    assert (report.outcome, report.source_rows, report.where) == ("equal", 100, "id < 300")


class Sleeps(SystemClock):
    """A clock on which each wait runs the next of these, and takes no time."""

    def __init__(self, *during: Callable[[], None]) -> None:
        self.during, self.slept = list(during), list[float]()

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self.during:
            self.during.pop(0)()


def verified(pair: Pair, *during: Callable[[], None], **more: Any) -> tuple[VerifyReport, Sleeps]:
    clock = Sleeps(*during)
    spec = TransferSpec(Endpoint.parse("reader", pair[0]), Endpoint.parse("writer", pair[1]))
    with local_engine(served=False) as engine:
        repairs = more.pop("repairs", None)
        return verify_with(engine, spec, {}, VerifySettings(clock=clock, **more), repairs), clock


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32), st.floats(0, 3))
def test_a_target_that_follows_its_source_has_no_differences(
    tmp_path_factory: pytest.TempPathFactory, seed: int, lag: float
) -> None:
    """500 changes a second, each of which the target has `lag` seconds later."""
    path, random = tmp_path_factory.mktemp("follow"), Random(seed)
    rows = [(number, "a", None, None) for number in range(2_000)]
    pair = sqlite(path / "a.db", rows), sqlite(path / "b.db", rows)
    log: list[tuple[float, str]] = []
    now, applied = 0.0, 0

    def live(seconds: float) -> None:
        nonlocal now, applied
        changes = []
        for _ in range(int(500 * seconds)):
            now += 1 / 500
            key = random.randrange(2_400)
            gone = random.random() < 0.2
            statement = f"REPLACE INTO orders VALUES ({key}, 'at {now}', NULL, NULL)"
            changes.append((now, f"DELETE FROM orders WHERE id = {key}" if gone else statement))
        log.extend(changes)
        change(path / "a.db", *(each for _, each in changes))
        behind = [each for at, each in log[applied:] if at <= now - lag]
        change(path / "b.db", *behind)
        applied += len(behind)

    live(2.0)
    report, clock = verified(pair, *(partial(live, each) for each in (1.0, 4.0, 16.0)))
    assert (report.different, report.missing, report.extra) == (0, 0, 0), report
    assert report.exit_code in (0, 1)
    assert clock.slept == [1.0, 4.0, 16.0][: len(clock.slept)]


def test_the_waits_grow_to_about_a_minute(pair: Pair, tmp_path: Path) -> None:
    differ(tmp_path)
    report, clock = verified(pair, confirm=10)
    assert (report.outcome, report.looks) == ("different", 11)
    assert clock.slept == [1.0, 4.0, 16.0, *[64.0] * 7]


def test_rows_that_arrive_late_are_no_differences(pair: Pair, tmp_path: Path) -> None:
    differ(tmp_path)
    target = tmp_path / "b.db"
    report, clock = verified(
        pair,
        lambda: change(target, "INSERT INTO orders VALUES (1500, 'name 500', 125, '2026-01-31')"),
        lambda: change(target, "DELETE FROM orders WHERE id = 1501"),
        lambda: change(
            target, "UPDATE orders SET name = 'name ' || (id / 3) WHERE id IN (300, 5400)"
        ),
    )
    assert clock.slept == [1.0, 4.0, 16.0]
    assert (report.outcome, report.settled, report.different, report.missing) == (
        "different",
        4,
        1,
        0,
    )
    assert [each.key for each in report.differences] == [{"id": 600}]


def test_nothing_is_known_of_a_row_that_changes_at_every_look(pair: Pair, tmp_path: Path) -> None:
    def rename(name: str) -> Callable[[], None]:
        return lambda: change(tmp_path / "a.db", f"UPDATE orders SET name = '{name}' WHERE id = 9")

    rename("new")()
    report, _ = verified(pair, *map(rename, ("newer", "newest", "last")))
    assert (report.outcome, report.exit_code, report.changing, report.different) == (
        "unknown",
        1,
        1,
        0,
    )
    report, clock = verified(
        pair, lambda: change(tmp_path / "b.db", "UPDATE orders SET name = 'last' WHERE id = 9")
    )
    assert (report.outcome, report.settled, clock.slept) == ("equal", 1, [1.0])


def test_a_repair_makes_the_target_equal_once(pair: Pair, tmp_path: Path) -> None:
    differ(tmp_path)
    emptied = {**pair[1], "preSql": "DELETE FROM orders", "txnAppId": "load", "txnVersion": 1}
    planned = spark_channel.verify(
        None, pair[0], emptied, confirm=0, repair=True, delete=True, dry_run=True
    )
    assert [(each["repair"], each["id"]) for each in planned.repairs] == [
        ("upsert", 300), ("upsert", 600), ("upsert", 1500), ("upsert", 5400), ("delete", 1501),
    ]  # fmt: skip
    few = spark_channel.verify(None, pair[0], emptied, confirm=0, repair=True, max_repairs=3)
    assert (few.outcome, few.repaired) == ("different", {})
    assert "4 rows differ, which is more than 3" in few.notes[0]
    without = spark_channel.verify(None, pair[0], emptied, confirm=0, repair=True)
    # Fmt: skip.
    assert (without.outcome, without.repaired) == (
        "different",
        {"upserted": 4, "deleted": 0, "differ after it": 1},
    )
    assert without.notes == (
        "extra rows of the target stay there: 1. To remove them, add option 'delete'",
    )
    report = spark_channel.verify(None, pair[0], emptied, confirm=0, repair=True, delete=True)
    assert (report.outcome, report.repaired["deleted"]) == ("equal", 1)
    assert spark_channel.verify(None, *pair).outcome == "equal"


def test_a_row_that_comes_before_the_repair_is_not_deleted(pair: Pair, tmp_path: Path) -> None:
    differ(tmp_path)
    row = "INSERT INTO orders VALUES (1501, 'new', 1, NULL)"
    before = run_module.Verification.look_again

    def look(self: Any, differences: Any) -> Any:
        run_module.Verification.look_again = before  # type: ignore[method-assign] # replaced for a while
        change(tmp_path / "a.db", row)
        return before(self, differences)

    run_module.Verification.look_again = look  # type: ignore[method-assign] # replaced for a while
    try:
        report, _ = verified(pair, confirm=0, repairs=RepairSettings(delete=True))
    finally:
        run_module.Verification.look_again = before  # type: ignore[method-assign] # replaced for a while
    assert (report.outcome, report.repaired["deleted"]) == ("equal", 0)
    assert spark_channel.verify(None, *pair).equal == 2_001


def test_a_target_that_cannot_be_repaired_is_refused(pair: Pair, tmp_path: Path) -> None:
    lake = {"name": "parquet", "path": str(tmp_path / "lake")}
    spark_channel.transfer(None, pair[0], lake)
    differ(tmp_path)
    with pytest.raises(UnsupportedError, match="the parquet writer does not update rows by a key"):
        spark_channel.verify(None, pair[1], lake, key=["id"], confirm=0, repair=True)
    with pytest.raises(OptionError, match="'delete' needs 'repair'"):
        spark_channel.verify(None, *pair, delete=True)


def test_the_command_prints_the_result_and_ends_with_its_code(pair: Pair, tmp_path: Path) -> None:
    places = [
        text
        for side, options in zip(("--source", "--target"), pair, strict=True)
        for text in (side, f"{options['path']}?dbtable=orders")
    ]
    done = typed("verify", *places)
    assert (done.exit_code, done.stdout.splitlines()[1]) == (
        0,
        "rows: 2000 equal, 0 missing, 0 extra, 0 different",
    )
    differ(tmp_path)
    found = typed(
        "verify",
        *places,
        "--confirm",
        "0",
        "--report",
        str(tmp_path / "r.parquet"),
        "--output",
        "json",
    )
    assert (found.exit_code, json.loads(found.stdout)["columns"]) == (3, {"name": 3, "total": 1})
    kept = pq.read_table(tmp_path / "r.parquet")
    assert kept["kind"].to_pylist().count("different") == 3
    assert (
        json.loads(kept.filter(pa.compute.equal(kept["kind"], "extra"))["target"][0].as_py())["id"]
        == 1501
    )
    few = typed("verify", *places, "--repair", "--max-repairs", "2", "--confirm", "0")
    assert (few.exit_code, "raise option '--max-repairs' to 4" in few.stdout) == (3, True)
    none = typed("verify", *places, "--exclude", "nmae")
    assert none.exit_code == 2
    assert str(none.exception).startswith("option '--exclude' names column 'nmae'")
    assert typed("verify", *places, "--repair", "--delete", "--confirm", "0").exit_code == 0
    assert typed("verify", *places).exit_code == 0


def test_a_job_file_names_the_sides(pair: Pair, tmp_path: Path) -> None:
    def end(name: str, options: dict[str, Any]) -> dict[str, Any]:
        connection: list[dict[str, Any]] = [
            {"jdbcUrl": f"jdbc:sqlite:{options['path']}", "table": ["orders"]}
        ]
        if name.endswith("reader"):
            connection[0]["jdbcUrl"] = [connection[0]["jdbcUrl"]]
        columns = ["id", "name", "total", "day"]
        return {"name": name, "parameter": {"column": columns, "connection": connection}}

    content = [{"reader": end("sqlite3reader", pair[0]), "writer": end("sqlite3writer", pair[1])}]
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"job": {"setting": {}, "content": content}}))
    assert typed("verify", str(job)).exit_code == 0
    differ(tmp_path)
    assert typed("verify", str(job), "--confirm", "0").exit_code == 3
    repaired = typed("verify", str(job), "--confirm", "0", "--repair", "--delete")
    assert repaired.exit_code == 0, repaired.output
    assert spark_channel.verify(None, *pair).outcome == "equal"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--source", "x.db"], "option '--target' is missing"),
        (["--source", "zz:x", "--target", "b.db?dbtable=t"], "--source begins with 'zz:'"),
        (
            ["--source", "a.csv", "--target", "b.csv", "--report", "x.txt"],
            "ends with .json or .parquet",
        ),
        (["--source", "a.csv", "--target", "b.csv", "--confirm", "11"], "from 0 to 10"),
        (["--source", "a.csv", "--target", "b.csv", "--dry-run"], "'--dry-run' needs '--repair'"),
        (["--source", "a.csv", "--target", "b.csv", "--key", ""], "option '--key' got ''"),
    ],
)
def test_bad_input_is_refused(arguments: list[str], message: str) -> None:
    result = typed("verify", *arguments)
    assert result.exit_code == 2
    assert message in str(result.exception)


VALUES = st.tuples(st.text("ab", max_size=2) | st.none(), st.integers(-3, 3) | st.none())


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.dictionaries(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 9), VALUES, max_size=12),
    st.dictionaries(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 9), VALUES, max_size=12),
    st.booleans(),
)
def test_any_two_tables_differ_exactly_where_their_rows_do(
    tmp_path_factory: pytest.TempPathFactory,
    source: dict[int, Any],
    target: dict[int, Any],
    alike: bool,
) -> None:
    path = tmp_path_factory.mktemp("any")
    target = {**source, **target} if alike else target
    table = "CREATE TABLE orders (id BIGINT PRIMARY KEY, a TEXT, b INTEGER)"
    one = sqlite(path / "a.db", [(key, *row) for key, row in source.items()], table)
    other = sqlite(path / "b.db", [(key, *row) for key, row in target.items()], table)
    report = spark_channel.verify(None, one, other, confirm=0)
    kinds = {each.key["id"]: each.kind for each in report.differences}
    assert kinds == {
        key: "missing" if key not in target else "extra" if key not in source else "different"
        for key in source | target
        if source.get(key) != target.get(key)
    }
    assert report.equal == sum(target.get(key) == row for key, row in source.items())


def test_a_repair_that_is_killed_wrote_nothing_and_the_next_one_writes_all(
    pair: Pair, tmp_path: Path
) -> None:
    differ(tmp_path)
    script = (
        "import os, spark_channel\n"
        "from spark_channel.transfers.run import Transfer\n"
        "Transfer.commit = lambda *_: os._exit(9)\n"
        f"spark_channel.verify(None, {pair[0]!r}, {pair[1]!r}, confirm=0, repair=True, delete=True)\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        env=environment(),
        capture_output=True,
        timeout=120,
    )
    assert killed.returncode == 9, killed.stderr
    assert spark_channel.verify(None, *pair, confirm=0).equal == 1_996
    report = spark_channel.verify(None, *pair, confirm=0, repair=True, delete=True)
    assert (report.outcome, report.repaired["upserted"]) == ("equal", 4)


def test_two_repairs_at_once_leave_each_row_once(pair: Pair, tmp_path: Path) -> None:
    differ(tmp_path)
    with ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(spark_channel.verify, None, *pair, confirm=0, repair=True, delete=True)
            for _ in range(2)
        ]
        assert {run.result().outcome for run in runs} == {"equal"}
    assert spark_channel.verify(None, *pair).equal == 2_000


def test_columns_may_have_any_name(tmp_path: Path) -> None:
    table = 'CREATE TABLE orders (_hash INTEGER PRIMARY KEY, "a,b" TEXT, "select" TEXT, hash TEXT)'
    rows = [(number, "x'y", "\\ %", None) for number in range(9)]
    pair = sqlite(tmp_path / "a.db", rows, table), sqlite(tmp_path / "b.db", rows, table)
    change(
        tmp_path / "b.db",
        "UPDATE orders SET hash = '' WHERE _hash = 3",
        "DELETE FROM orders WHERE _hash = 4",
    )
    report = spark_channel.verify(None, *pair, confirm=0, repair=True)
    assert (report.columns, report.missing, report.outcome) == ({"hash": 1}, 1, "equal")
    assert spark_channel.verify(None, *pair, exclude=["a,b"]).outcome == "equal"


def test_a_lake_table_is_repaired_by_whole_rows(pair: Pair, tmp_path: Path) -> None:
    lake = {"name": "delta", "path": str(tmp_path / "lake")}
    spark_channel.transfer(None, pair[0], lake)
    differ(tmp_path)
    report = spark_channel.verify(None, pair[1], lake, key=["id"], confirm=0, repair=True)
    assert (report.repaired["upserted"], report.positions) == (4, {"target": "version 0"})
    assert (report.outcome, report.repaired["differ after it"]) == ("different", 1)
    for more, message in (
        ({"delete": True}, "rows of databases only"),
        ({"exclude": ["day"]}, "replaced as wholes"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            spark_channel.verify(None, pair[1], lake, key=["id"], confirm=0, repair=True, **more)


def test_the_plot_is_over_the_keys_that_are_there(tmp_path: Path) -> None:
    table = "CREATE TABLE orders (id INTEGER {}, name TEXT)"
    rows = [*((1_000 + n, "a") for n in range(1_000)), (None, "a")]
    other = [(key, "b") if key in (1_500, None) else (key, name) for key, name in rows]
    for more, ends in (("UNIQUE", (1_000, 1_999)), ("", (1_500, 1_500))):
        one, two = (tmp_path / f"{side}{more}.db" for side in "ab")
        report = spark_channel.verify(
            None,
            sqlite(one, rows, table.format(more)),
            sqlite(two, other, table.format(more)),
            key=["id"],
            confirm=0,
        )
        assert (report.different, report.key_range) == (2, ends)
        assert sum(report.histogram) == 1
    change(one, "DELETE FROM orders WHERE id IS NOT NULL")
    change(two, "DELETE FROM orders WHERE id IS NOT NULL")
    both = [{"name": "sqlite", "path": str(each), "dbtable": "orders"} for each in (one, two)]
    report = spark_channel.verify(None, *both, key=["id"], confirm=0)
    assert (report.different, report.histogram) == (1, ())


def test_differing_rows_of_files_are_plotted(tmp_path: Path) -> None:
    for name, changed in (("a", []), ("b", [7, 500])):
        numbers = list(range(1_000))
        texts = ["x" if each in changed else "y" for each in numbers]
        pq.write_table(pa.table({"id": numbers, "t": texts}), tmp_path / f"{name}.parquet")
    sides = [{"path": str(tmp_path / f"{name}.parquet")} for name in "ab"]
    report = spark_channel.verify(None, *sides, key=["id"], confirm=0)
    assert report.key_range == (7, 500)
    assert (report.histogram[0], report.histogram[-1]) == (1, 1)
    assert "differences by key: 7 [" in str(report)


def test_a_value_of_another_type_in_the_key_is_named(tmp_path: Path) -> None:
    table = "CREATE TABLE orders (id INTEGER UNIQUE, name TEXT)"
    one = sqlite(tmp_path / "a.db", [(1, "a"), ("abc", "b")], table)
    other = sqlite(tmp_path / "b.db", [(1, "a")], table)
    with pytest.raises(SourceError, match=r"holds 'abc' \(text\), which is not int64"):
        spark_channel.verify(None, one, other, key=["id"])


def test_a_key_without_an_index_is_read_in_as_few_statements_as_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = "CREATE TABLE orders (id INTEGER, name TEXT)"
    rows = [(number, "a") for number in range(2_000)]
    one = sqlite(tmp_path / "a.db", rows, table)
    other = sqlite(tmp_path / "b.db", [(key, "b" if key % 2 else "a") for key, _ in rows], table)
    read: list[int] = []
    run = run_module.Verification._pass

    def counted(self: Any, work: Any, splits: Any) -> Any:
        read.append(max(map(len, splits)))
        return run(self, work, splits)

    monkeypatch.setattr(run_module.Verification, "_pass", counted)
    report = spark_channel.verify(None, one, other, key=["id"], confirm=0)
    assert (report.different, report.equal) == (1_000, 1_000)
    assert set(read[1:]) == {read[0]}


def test_a_key_column_that_is_named_twice_is_one(pair: Pair) -> None:
    report = spark_channel.verify(None, *pair, key=["id", "ID"])
    assert (report.key, report.outcome) == (("id",), "equal")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"key": "id"}, r"option 'key' got 'id'; it takes a list of columns, such as \['id'\]"),
        ({"exclude": "day"}, "option 'exclude' got 'day'; it takes a list of columns"),
        ({"confirm": "2"}, "option 'confirm' got '2'; it takes a whole number from 0 to 10"),
        (
            {"repair": True, "max_repairs": -1},
            "'max_repairs' got -1; it takes a whole number from 0",
        ),
        ({"repair": True, "max_repairs": "9"}, "option 'max_repairs' got '9'"),
    ],
)
def test_an_argument_of_another_type_is_refused(
    pair: Pair, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        spark_channel.verify(None, *pair, **more)
