"""Two runs of one transaction, as a killed job and its rerun: the one whose write the other has published says so."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import Receipt, WriteContext, WritePlan, Writer, load_writer
from spark_channel.connectors.base.claims import HeldClaim, Identity, is_of_another_run

ROWS = pa.record_batch({"id": pa.array([1, 2, 3], pa.int64())})
TARGETS: dict[str, dict[str, Any]] = {
    "sqlite": {"path": "t.db", "dbtable": "t", "createTable": "true"},
    "duckdb": {"path": "t.duckdb", "dbtable": "t", "createTable": "true"},
    "parquet": {"path": "t", "writer": "parquet"},
    "delta": {"path": "t", "writer": "delta"},
}
NEEDS = {"duckdb": "duckdb", "delta": "deltalake"}


def staged(writer: Writer, job: str, version: int = 2) -> tuple[WritePlan, list[Receipt]]:
    plan = writer.prepare(WriteContext(job, txn=("nightly", version)), ROWS.schema)
    task = writer.open(plan, 0, 1)
    task.write(ROWS)
    return plan, [task.close()]


def rows(kind: str, options: Mapping[str, str]) -> int:
    if kind == "sqlite":
        with closing(sqlite3.connect(options["path"])) as connection:
            return int(connection.execute("SELECT count(*) FROM t").fetchone()[0])
    if kind == "duckdb":
        import duckdb

        with closing(duckdb.connect(options["path"])) as connection:
            (counted,) = connection.sql("SELECT count(*) FROM t").fetchall()
            return int(counted[0])
    if kind == "delta":
        from deltalake import DeltaTable

        return int(DeltaTable(options["path"]).to_pyarrow_table().num_rows)
    return int(sum(pa.parquet.read_metadata(path).num_rows for path in Path("t").glob("*.parquet")))


@pytest.mark.parametrize("kind", TARGETS)
def test_the_later_of_two_runs_adds_nothing_and_returns_so(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind in NEEDS and find_spec(NEEDS[kind]) is None:
        pytest.skip(f"{NEEDS[kind]} is not installed")
    monkeypatch.chdir(tmp_path)
    options = {**TARGETS[kind], "path": str(tmp_path / TARGETS[kind]["path"])}
    first, again = load_writer(options)[0], load_writer(options)[0]
    first.commit(*staged(first, "before", version=1))
    earlier, receipts = staged(first, "first")
    later, others = staged(again, "again")
    assert again.commit(later, others) is not False
    assert again.commit(later, others) is not False, "as after a lost answer: the rows are its own"
    assert first.commit(earlier, receipts) is False
    assert rows(kind, options) == 6


def test_a_batch_of_a_stream_is_of_each_run_of_its_name() -> None:
    held = HeldClaim(Identity("t", "stream", "q"), "stream-q-1", 1, 1)
    assert not is_of_another_run(None, held)
