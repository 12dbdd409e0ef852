"""Both halves keep the contract of every connector; kills, locks and other machines."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from spark_channel.connectors import Receipt, WritePlan
from spark_channel.connectors.sql import SqlWriter
from spark_channel.connectors.sql.write.claim_tables import CLAIMS
from spark_channel.errors import CommitError, OptionError, SourceError, TargetError
from spark_channel.testing import reader_conformance, writer_conformance
from tests.connectors.duckdb.conftest import Duck
from tests.connectors.sql.micro_batches import hold_to_once
from tests.connectors.sql.one_database import run_task

pytestmark = pytest.mark.real_server("DuckDB", "duckdb")

ROWS = pa.table({"id": range(20_000), "name": [str(number) for number in range(20_000)]})
PROCESSES = multiprocessing.get_context("forkserver")
SECONDS = 60.0


def test_the_reader_keeps_its_contract(duck: Duck) -> None:
    duck.sql("CREATE TABLE t AS SELECT range AS id, 'name ' || range AS name FROM range(150_000)")
    duck.sql("DELETE FROM t WHERE id % 7 = 0 OR id BETWEEN 60 AND 149_940")
    expected = pa.table(
        {
            "id": [n for n in range(150_000) if n % 7 and not 60 <= n <= 149_940],
        }
    )
    expected = expected.append_column(
        "name", pa.array([f"name {n}" for n in expected["id"].to_pylist()])
    )
    reader_conformance(duck.reader, expected=expected)
    reader_conformance(
        lambda: duck.reader(None, query="SELECT * FROM t WHERE id < 100", partitionColumn="name")
    )


@pytest.mark.parametrize("there", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_the_writer_keeps_its_contract(duck: Duck, there: bool) -> None:
    if there:
        duck.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR)")

    def read_back() -> pa.Table | None:
        try:
            return duck.read()
        except SourceError as error:
            if "does not exist" in str(error):
                return None
            raise

    writer_conformance(duck.writer, read_back=read_back, commits=["job"], leftovers=duck.staged)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _commit_and_die(
    writer: SqlWriter[Any], plan: WritePlan, receipts: list[Receipt], at: str
) -> None:
    """The driver's process, killed at one statement of its publish."""
    from spark_channel.connectors.duckdb.session import DuckdbSession

    real = DuckdbSession.rows

    def rows(self: DuckdbSession, sql: str, parameters: object = ()) -> object:
        if at == "before COMMIT" and sql == "COMMIT":
            _die()
        answer = real(self, sql, parameters)  # type: ignore[arg-type] # as it was called
        if (at == "after COMMIT" and sql == "COMMIT") or (
            at == "after DELETE" and sql.startswith("DELETE FROM")
        ):
            _die()
        return answer

    DuckdbSession.rows = rows  # type: ignore[method-assign,assignment]
    writer.commit(plan, receipts)


@pytest.mark.parametrize("at", ["after DELETE", "before COMMIT", "after COMMIT"])
def test_a_driver_killed_while_it_publishes(duck: Duck, at: str) -> None:
    duck.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR)")
    duck.sql("INSERT INTO t VALUES (-1, 'old')")
    writer = duck.writer()
    plan = writer.prepare(duck.context(overwrite=True, txn=("app", 1)), ROWS.schema)
    receipts = [run_task(writer, plan, 0, ROWS)]
    process = PROCESSES.Process(target=_commit_and_die, args=(writer, plan, receipts, at))
    process.start()
    process.join(SECONDS)
    assert process.exitcode == -signal.SIGKILL
    found = duck.sql("SELECT count(*), min(id) FROM t")
    assert found == ([(20_000, 0)] if at == "after COMMIT" else [(1, -1)])
    again = duck.writer()
    replan = again.prepare(duck.context(overwrite=True, txn=("app", 1)), ROWS.schema)
    assert (replan.published_at is not None) == (at == "after COMMIT")
    again.commit(replan, [run_task(again, replan, 0, ROWS)])
    assert duck.sql("SELECT count(*), count(DISTINCT id), min(id) FROM t") == [(20_000, 20_000, 0)]
    writer.abort(plan, None)
    assert duck.staged() == []


_HOLD = """
import sys, duckdb
connection = duckdb.connect(sys.argv[1])
print("held", flush=True)
sys.stdin.readline()
connection.close()
"""


def _hold(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_another_process_that_writes_is_waited_for(duck: Duck) -> None:
    duck.sql("CREATE TABLE t AS SELECT 1 AS id")
    with _hold(duck.path) as holder:
        assert holder.stdin is not None
        with pytest.raises(SourceError, match="lockTimeout"):
            duck.read(lockTimeout=0.1)
        release = threading.Timer(0.5, lambda: holder.communicate("\n"))
        release.start()
        assert duck.read(lockTimeout=30)["id"].to_pylist() == [1]
        release.join()


def test_a_file_that_changes_under_a_read_is_refused(duck: Duck) -> None:
    duck.sql("CREATE TABLE t AS SELECT range AS id FROM range(500_000)")
    reader = duck.reader()
    reader.schema()
    first, *rest = reader.split(4)
    assert rest
    duck.sql("DELETE FROM t WHERE id < 400_000")
    with pytest.raises(SourceError, match="was written since this read was planned"):
        list(reader.read(first))
    keyed = duck.reader(partitionColumn="id")
    keyed.schema()
    splits = keyed.split(4)
    duck.sql("DELETE FROM t WHERE id < 450_000")
    assert sum(batch.num_rows for split in splits for batch in keyed.read(split)) == 50_000


def test_a_task_on_another_disk_is_told(duck: Duck) -> None:
    writer = duck.writer()
    plan = writer.prepare(duck.context(), ROWS.schema)
    for path in duck.staged():
        if path.name == "token":
            path.unlink()
    with pytest.raises(TargetError, match=r"does not see .* use one machine"):
        writer.open(plan, 0, 0)
    writer.abort(plan, None)


def test_commit_task_is_refused(duck: Duck) -> None:
    with pytest.raises(OptionError, match="one process at a time"):
        duck.writer(commit="task")


def test_a_failing_post_sql_leaves_nothing(duck: Duck) -> None:
    with pytest.raises(
        CommitError, match=r"orders\.duckdb: DuckDB says.*Nothing of this job was written: no file"
    ):
        duck.write(ROWS, postSql="INSERT INTO nowhere VALUES (1)")
    assert not duck.path.exists()
    assert duck.staged() == []


def test_dropping_the_file_of_a_failed_first_write_keeps_other_tables(duck: Duck) -> None:
    duck.sql("CREATE TABLE other AS SELECT 1 AS a")
    with pytest.raises(CommitError):
        duck.write(ROWS, postSql="INSERT INTO nowhere VALUES (1)")
    assert duck.sql("SELECT * FROM other") == [(1,)]
    own = "table_name NOT LIKE 'spark_channel%'"
    assert duck.sql(f"SELECT table_name FROM duckdb_tables() WHERE {own}") == [("other",)]


def test_the_ledger_is_no_target(duck: Duck) -> None:
    duck.write(ROWS)
    with pytest.raises(TargetError, match="belongs to spark-channel"):
        duck.write(ROWS, dbtable=CLAIMS)
    assert isinstance(duckdb.__version__, str)


def test_a_batch_of_a_stream_is_published_once(duck: Duck) -> None:
    hold_to_once(
        duck.writer, lambda: [each for (each,) in duck.sql("SELECT id FROM t ORDER BY id")]
    )
    assert duck.staged() == []
