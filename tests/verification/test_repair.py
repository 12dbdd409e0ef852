"""What a repair writes and removes, what it leaves alone, and what it says then."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import spark_channel
from spark_channel.errors import TargetError, UnsupportedError
from spark_channel.local import local_engine
from spark_channel.planning import Endpoint, Split, TransferSpec
from spark_channel.verification import run as run_module
from spark_channel.verification import verify_with
from spark_channel.verification.forms import Form
from spark_channel.verification.report import RepairSettings, VerifySettings
from spark_channel.verification.tasks import OwnKeys
from tests.pipeline.fakes import MemoryReader

TABLE = "CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT, b TEXT)"


def sqlite(path: Path, rows: list[tuple[Any, ...]], table: str = TABLE) -> dict[str, Any]:
    with closing(sqlite3.connect(path)) as db:
        db.execute(table)
        for row in rows[:1]:
            db.executemany(f"INSERT INTO t VALUES ({', '.join('?' * len(row))})", rows)
        db.commit()
    return {"name": "sqlite", "path": str(path), "dbtable": "t"}


def rows_of(path: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute("SELECT * FROM t ORDER BY 1").fetchall()


def file(path: Path, **columns: list[Any]) -> dict[str, Any]:
    pq.write_table(pa.table(columns), path)
    return {"name": "parquet", "path": str(path)}


@pytest.mark.parametrize("delete", [False, True])
def test_a_database_is_repaired_from_a_file(tmp_path: Path, delete: bool) -> None:
    source = file(tmp_path / "a.parquet", id=[1, 2], a=["x", "y"], b=["p", None])
    target = sqlite(tmp_path / "b.db", [(1, "old", "p"), (3, "z", "r")])
    report = spark_channel.verify(None, source, target, confirm=0, repair=True, delete=delete)
    assert report.repaired["upserted"] == 2
    left = [] if delete else [(3, "z", "r")]
    assert rows_of(tmp_path / "b.db") == [(1, "x", "p"), (2, "y", None), *left]
    assert report.outcome == ("equal" if delete else "different")


def test_a_key_that_the_source_s_type_does_not_hold_is_named(tmp_path: Path) -> None:
    ids = pa.array([1], pa.int16())
    pq.write_table(pa.table({"id": ids, "a": ["x"], "b": ["p"]}), tmp_path / "a.parquet")
    source = {"name": "parquet", "path": str(tmp_path / "a.parquet")}
    target = sqlite(tmp_path / "b.db", [(1, "x", "p"), (70_000, "z", "r")])
    report = spark_channel.verify(None, source, target, confirm=0, repair=True, delete=True)
    assert report.outcome == "different"
    assert "column 'id': 70000 of type int64" in " ".join(report.notes)
    assert rows_of(tmp_path / "b.db") == [(1, "x", "p"), (70_000, "z", "r")]


def test_keys_beyond_those_in_memory_count_for_the_most_repairs_and_the_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "_MOST_CANDIDATES", 50)
    source = sqlite(tmp_path / "a.db", [(n, "a", "") for n in range(200)])
    target = sqlite(tmp_path / "b.db", [(n, "b", "") for n in range(200)])
    few = spark_channel.verify(None, source, target, confirm=0, repair=True, max_repairs=60)
    assert (few.outcome, few.repaired) == ("different", {})
    assert "200 rows differ, which is more than 60" in few.notes[1]
    some = spark_channel.verify(None, source, target, confirm=0, repair=True)
    assert (some.outcome, some.repaired["upserted"]) == ("different", 50)
    assert "150 more keys differ, which were not repaired" in some.notes[1]
    assert spark_channel.verify(None, source, target, confirm=0).different == 150


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_row_that_the_source_has_outside_of_where_is_not_deleted(
    tmp_path: Path, dry_run: bool
) -> None:
    source = sqlite(tmp_path / "a.db", [(1, "open", ""), (2, "closed", "")])
    target = sqlite(tmp_path / "b.db", [(1, "open", ""), (2, "open", ""), (3, "open", "")])
    where = {"where": "a = 'open'"}
    # Fmt: skip.
    report = spark_channel.verify(
        None,
        {**source, **where},
        {**target, **where},
        confirm=0,
        repair=True,
        delete=True,
        dry_run=dry_run,
    )
    assert report.outcome == "different"
    assert "1 extra rows are not deleted: the source has their keys" in report.notes[0]
    if dry_run:
        assert report.repairs == ({"repair": "delete", "id": 3},)
    else:
        assert rows_of(tmp_path / "b.db") == [(1, "open", ""), (2, "open", "")]


@pytest.mark.parametrize("delete", [False, True])
def test_nothing_is_repaired_by_a_key_that_several_rows_of_the_source_have(
    tmp_path: Path, delete: bool
) -> None:
    source = file(tmp_path / "a.parquet", id=[1, 1, 2], a=["x", "y", "z"], b=["", "", ""])
    before = [(1, "x", ""), (2, "z", "")]
    target = sqlite(tmp_path / "b.db", before)
    report = spark_channel.verify(None, source, target, confirm=0, repair=True, delete=delete)
    assert (report.outcome, report.repaired) == ("different", {})
    assert "several rows of the source have one key (id)" in report.notes[0]
    assert rows_of(tmp_path / "b.db") == before


def test_a_column_that_is_left_out_is_not_written_behind_transformers(tmp_path: Path) -> None:
    def cut(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.set_column(1, "a", pc.utf8_slice_codeunits(batch["a"], 0, 4))

    source = sqlite(tmp_path / "a.db", [(1, "secret", "new"), (2, "other", "new")])
    target = sqlite(tmp_path / "b.db", [(1, "sec", "own"), (3, "x", "own")])
    spec = TransferSpec(
        Endpoint.parse("reader", source),
        Endpoint.parse("writer", target),
        transformers=(cut,),
    )
    with local_engine(served=False) as engine:
        settings = VerifySettings(exclude=["b"], confirm=0)
        report = verify_with(engine, spec, {}, settings, RepairSettings(delete=True))
    assert report.outcome == "equal"
    assert rows_of(tmp_path / "b.db") == [(1, "secr", "own"), (2, "othe", None)]


def test_a_key_that_equal_rows_may_spell_otherwise_is_found_and_not_repaired(
    tmp_path: Path,
) -> None:
    table = "CREATE TABLE t (id TEXT PRIMARY KEY, a TEXT)"
    source = sqlite(tmp_path / "a.db", [("e\u0301", "x"), ("b", "y")], table)
    target = sqlite(tmp_path / "b.db", [("\u00e9", "z"), ("b", "y")], table)
    report = spark_channel.verify(None, source, target, confirm=0, text="nfc")
    assert (report.different, report.missing, report.columns) == (1, 0, {"a": 1})
    with pytest.raises(UnsupportedError, match="key column 'id' is compared as text, NFC"):
        spark_channel.verify(None, source, target, confirm=0, text="nfc", repair=True)


def test_a_dry_run_lists_all_keys_however_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "MOST_KEYS", 3)
    source = sqlite(tmp_path / "a.db", [(n, "a", "") for n in range(9)])
    target = sqlite(tmp_path / "b.db", [])
    report = spark_channel.verify(None, source, target, confirm=0, repair=True, dry_run=True)
    assert [each["id"] for each in report.repairs] == list(range(9))


def test_a_repair_that_fails_keeps_the_report(tmp_path: Path) -> None:
    source = sqlite(tmp_path / "a.db", [(1, "x", None), (2, "y", None)])
    checked = "CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT CHECK (a <> 'y'), b TEXT)"
    target = sqlite(tmp_path / "b.db", [(1, "x", None), (2, "z", None)], checked)
    report = spark_channel.verify(None, source, target, confirm=0, repair=True)
    assert (report.outcome, report.different, report.repaired) == ("different", 1, {})
    assert report.differences[0].key == {"id": 2}
    assert "the repair failed: " in report.notes[-1]
    assert "CHECK" in report.notes[-1]


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("delete", [False, True])
def test_a_target_without_the_key_is_refused_before_a_row_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delete: bool, dry_run: bool
) -> None:
    def read(*_: object) -> None:
        raise AssertionError("a row was read")

    source = sqlite(tmp_path / "a.db", [(1, "x", None)])
    keyless = "CREATE TABLE t (id INTEGER, a TEXT, b TEXT)"
    target = sqlite(tmp_path / "b.db", [(1, "z", None)], keyless)
    said = r'/b\.db t cannot be repaired: .*\((CREATE UNIQUE INDEX "t_id" ON "t" \("id"\))\)'
    repairs: dict[str, Any] = {"key": ["id"], "repair": True, "delete": delete}
    with monkeypatch.context() as patched:
        patched.setattr(run_module.Verification, "_run", read)
        with pytest.raises(TargetError, match=said) as refused:
            spark_channel.verify(None, source, target, dry_run=dry_run, **repairs)
    assert refused.value.is_of_input
    found = re.search(said, str(refused.value))
    assert found is not None
    with closing(sqlite3.connect(tmp_path / "b.db")) as db:
        db.execute(found[1])
    assert spark_channel.verify(None, source, target, confirm=0, **repairs).outcome == "equal"


def test_pauses_between_looks_are_named(tmp_path: Path) -> None:
    source = sqlite(tmp_path / "a.db", [(1, "x", None)])
    target = sqlite(tmp_path / "b.db", [(1, "z", None)])
    report = spark_channel.verify(None, source, target, confirm=1)
    assert report.pauses == 1
    assert "looked at 2 times, with pauses of 1 s" in str(report)


def test_tables_of_duckdb_are_looked_at_again_without_a_pause(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    for name, value in (("a", "x"), ("b", "z")):
        with duckdb.connect(str(tmp_path / f"{name}.duckdb")) as db:
            db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT)")
            db.execute("INSERT INTO t VALUES (1, ?), (2, 'y')", [value])
    sides = [{"path": str(tmp_path / f"{name}.duckdb"), "dbtable": "t"} for name in "ab"]
    report = spark_channel.verify(None, *sides)
    assert (report.different, report.equal, report.looks, report.pauses) == (1, 1, 2, 0)


@pytest.mark.parametrize("delete", [False, True])
@pytest.mark.parametrize("own", [[("a", "1")], [("a", "other")], [("a", "1"), ("c", "2")]])
def test_rows_whose_keys_the_target_does_not_tell_apart_are_left_alone(
    tmp_path: Path, own: list[tuple[str, str]], delete: bool
) -> None:
    table = "CREATE TABLE t (id TEXT{}, a TEXT, PRIMARY KEY (id))"
    source = sqlite(tmp_path / "a.db", [("a", "1"), ("A", "2")], table.format(""))
    target = sqlite(tmp_path / "b.db", own, table.format(" COLLATE NOCASE"))
    for dry_run in (True, False):
        report = spark_channel.verify(
            None, source, target, confirm=0, repair=True, delete=delete, dry_run=dry_run
        )
        if own[0][1] == "1":
            assert rows_of(tmp_path / "b.db") == own
            assert "the target finds 1 other rows by the keys to write" in report.notes[-1]
        assert (report.outcome, report.exit_code) == ("different", 3)


def test_an_extra_row_is_not_overwritten_by_one_of_another_key(tmp_path: Path) -> None:
    table = "CREATE TABLE t (id TEXT{}, a TEXT, PRIMARY KEY (id))"
    source = sqlite(tmp_path / "a.db", [("A", "2")], table.format(""))
    target = sqlite(tmp_path / "b.db", [("a", "own")], table.format(" COLLATE NOCASE"))
    where = {"where": "a <> 'own'"}
    for more in ({}, where):
        report = spark_channel.verify(
            None, {**source, **more}, {**target, **more}, confirm=0, repair=True
        )
        assert (report.outcome, report.missing, report.repaired) == ("different", 1, {})
        assert rows_of(tmp_path / "b.db") == [("a", "own")]


def test_a_row_that_two_statements_find_by_keys_that_differ_in_case_counts_once(
    tmp_path: Path,
) -> None:
    """A statement has 500 keys: those of the target's rows are in others than those of the source's."""
    table = "CREATE TABLE t (id TEXT{}, a TEXT, PRIMARY KEY (id))"
    rows = [(f"K{number}", "1") for number in range(700)]
    source = sqlite(tmp_path / "a.db", rows, table.format(" COLLATE NOCASE"))
    target = sqlite(tmp_path / "b.db", [(key.lower(), a) for key, a in rows], table.format(""))
    for confirm in (0, 1):
        report = spark_channel.verify(None, source, target, confirm=confirm)
        assert (report.missing, report.extra, report.changing) == (700, 700, 0)
    report = spark_channel.verify(
        None, source, target, confirm=0, repair=True, delete=True, max_repairs=1_400
    )
    assert report.repaired == {"upserted": 700, "deleted": 700, "differ after it": 0}, report
    assert rows_of(tmp_path / "b.db") == sorted(rows)


def test_a_split_has_the_rows_of_its_own_keys() -> None:
    keys = [[1, "a"], [2**64 - 1, "A"]]
    batch = pa.record_batch(
        {"n": pa.array([1, 1, 2**64 - 1, 2**64 - 1], pa.uint64()), "k": ["a", "A", "A", "a "]}
    )
    own = OwnKeys(MemoryReader(), ["n", "k"], [Form("unsigned integer"), Form("text")])
    read = own.rows(lambda _: (each for each in [batch]), Split({"kind": "keys", "values": keys}))
    assert [each for one in read for each in one.to_pylist()] == [
        {"n": number, "k": text} for number, text in keys
    ]


@pytest.mark.parametrize("delete", [False, True])
def test_a_column_that_the_target_computes_is_compared_and_not_written(
    tmp_path: Path, delete: bool
) -> None:
    table = "CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT, b TEXT {})"
    computed = table.format("GENERATED ALWAYS AS (a || '!') VIRTUAL")
    source = sqlite(tmp_path / "a.db", [(1, "x", "x!"), (2, "y", "y!")], table.format(""))
    target = sqlite(tmp_path / "b.db", [], computed)
    with closing(sqlite3.connect(tmp_path / "b.db")) as db:
        db.execute("INSERT INTO t (id, a) VALUES (1, 'x'), (2, 'z'), (3, 'w')")
        db.commit()
    report = spark_channel.verify(None, source, target, confirm=0, repair=True, delete=delete)
    assert report.columns == {"a": 1, "b": 1}
    assert report.repaired["upserted"] == 1
    left = [] if delete else [(3, "w", "w!")]
    assert rows_of(tmp_path / "b.db") == [(1, "x", "x!"), (2, "y", "y!"), *left]


@pytest.mark.parametrize("delete", [False, True])
def test_rows_with_null_in_the_key_are_left_alone(tmp_path: Path, delete: bool) -> None:
    table = "CREATE TABLE t (id INTEGER UNIQUE, a TEXT)"
    source = sqlite(tmp_path / "a.db", [(None, "x"), (None, "y"), (1, "a"), (2, "b")], table)
    before = [(None, "z"), (1, "a"), (2, "c"), (3, "d")]
    target = sqlite(tmp_path / "b.db", before, table)
    repairs: dict[str, Any] = {"key": ["id"], "confirm": 0, "repair": True, "delete": delete}
    planned = spark_channel.verify(None, source, target, dry_run=True, **repairs)
    assert [each["id"] for each in planned.repairs] == ([2, 3] if delete else [2])
    report = spark_channel.verify(None, source, target, **repairs)
    assert (report.outcome, report.repaired["upserted"]) == ("different", 1)
    assert "1 differing rows are not repaired: their key (id) holds NULL" in report.notes[0]
    assert (
        rows_of(tmp_path / "b.db")
        == [(None, "z"), (1, "a"), (2, "b"), (3, "d")][: 3 if delete else 4]
    )
    again = spark_channel.verify(None, source, target, **repairs)
    assert (again.outcome, again.repaired) == ("different", {})


@pytest.mark.parametrize("kind", ["TEXT", "INTEGER"])
def test_a_row_outside_of_where_is_not_written(tmp_path: Path, kind: str) -> None:
    rows = [("1", "new", "current"), ("1", "old", "gone"), ("3", "x", "gone")]
    source = sqlite(tmp_path / "a.db", rows, f"CREATE TABLE t (id {kind}, a TEXT, b TEXT)")
    target = sqlite(
        tmp_path / "b.db",
        [("1", "wrong", "current"), ("3", "x", "current"), ("4", "y", "current")],
        f"CREATE TABLE t (id {kind}, a TEXT, b TEXT, PRIMARY KEY (id))",
    )
    where = {"where": "b = 'current'"}
    report = spark_channel.verify(
        None, {**source, **where}, {**target, **where}, confirm=0, repair=True, delete=True
    )
    assert [row[1] for row in rows_of(tmp_path / "b.db")] == ["new", "x"]
    assert (report.outcome, report.repaired["upserted"], report.repaired["deleted"]) == (
        "different",
        1,
        1,
    )
