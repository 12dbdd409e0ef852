"""Rows arrive once: retries, speculation, reruns, kills, and what is left behind."""

import pickle
import time
from pathlib import Path

import pyarrow as pa
import pytest

from spark_channel.cli.exit_codes import exit_code
from spark_channel.connectors import Receipt, load_writer
from spark_channel.connectors.sql.write.claim_tables import CLAIMS, TASKS
from spark_channel.connectors.sql.write.file_database import FilePlan
from spark_channel.connectors.sqlite.session import SqliteSession
from spark_channel.errors import CommitError, SourceError, TargetError
from spark_channel.options import CommitMode
from spark_channel.testing import writer_conformance
from tests.connectors.sql.micro_batches import hold_to_once
from tests.connectors.sql.one_database import run_task
from tests.connectors.sqlite.conftest import AsNobody, Db

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", None]})
MORE = pa.table({"id": [4], "name": ["d"]})
MODES: list[CommitMode] = ["job", "task"]


def ids(db: Db) -> list[int]:
    return sorted(id_ for (id_,) in db.sql("SELECT id FROM t"))


def test_the_writer_keeps_its_contract(db: Db) -> None:
    def read_back() -> pa.Table | None:
        try:
            return db.read()
        except SourceError as error:
            if "does not exist" in str(error):
                return None
            raise

    writer_conformance(db.writer, read_back=read_back, leftovers=db.staged)


def test_the_writer_keeps_its_contract_on_a_table_with_a_key_and_a_trigger(db: Db) -> None:
    db.sql(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT NOT NULL, at TEXT DEFAULT current_timestamp)"
    )
    db.sql(
        "CREATE TRIGGER tr AFTER INSERT ON t BEGIN UPDATE t SET at = 'now' WHERE id = new.id; END"
    )
    db.sql("PRAGMA journal_mode = WAL")
    writer_conformance(db.writer, read_back=db.read, leftovers=db.staged)
    assert db.sql("SELECT count(*) FROM t WHERE at <> 'now'") == [(0,)]


@pytest.mark.parametrize("commit", MODES)
def test_the_claims_say_what_was_published(db: Db, commit: CommitMode) -> None:
    db.write(ROWS, MORE, commit=commit, txn=("app", 3))
    columns = "owner, epoch, state, target, name, version, row_count"
    rows = db.sql(f"SELECT {columns} FROM {CLAIMS} WHERE kind = 'txn'")
    assert rows == [("job-1", 1, "published", "t", "app", 3, 4)]
    (published,) = db.sql(f"SELECT published_at FROM {CLAIMS} WHERE kind = 'txn'")
    assert time.strptime(published[0], "%Y-%m-%dT%H:%M:%SZ")
    assert db.sql(f"SELECT count(*) FROM {TASKS}") == [(0,)], "they are needed until the publish"


def test_a_pair_is_known_per_table(db: Db) -> None:
    for table in ("t", "u", "t", "u"):
        db.write(ROWS, dbtable=table, txn=("app", 1))
    assert ids(db) == [1, 2, 3]
    assert db.read("u").num_rows == 3


def test_a_rerun_before_the_table_is_emptied_writes_nothing(db: Db) -> None:
    db.write(ROWS, txn=("app", 1))
    plan = db.write(MORE, txn=("app", 1), overwrite=True, preSql="DELETE FROM t")
    assert plan.published_at is not None
    assert ids(db) == [1, 2, 3]
    assert db.staged() == []


def test_two_jobs_of_one_pair_at_once_publish_one(db: Db) -> None:
    writer = db.writer()
    plans = [
        writer.prepare(db.context(txn=("app", 1), commit="job"), ROWS.schema) for _ in range(2)
    ]
    receipts = [run_task(writer, plan, 0, ROWS) for plan in plans]
    for plan, receipt in zip(plans, receipts, strict=True):
        writer.commit(plan, [receipt])
    assert ids(db) == [1, 2, 3]
    assert db.staged() == []


def test_a_task_that_committed_is_not_written_again(db: Db) -> None:
    writer = db.writer()
    plan = writer.prepare(db.context(commit="task"), ROWS.schema)
    first = run_task(writer, plan, 0, ROWS, attempt=10)
    assert ids(db) == [1, 2, 3]
    again = run_task(writer, plan, 0, ROWS, attempt=11)
    assert (again.attempt, again.rows, again.nbytes) == (10, first.rows, first.nbytes)
    writer.commit(plan, [again])
    late = run_task(writer, plan, 0, ROWS, attempt=12) if db.staged() else None
    assert late is None
    assert ids(db) == [1, 2, 3]


def test_an_attempt_after_the_end_of_its_job_writes_nothing(db: Db) -> None:
    """A speculative copy that Spark did not kill in time."""
    db.sql("CREATE TABLE t (id INTEGER, name TEXT)")
    writer = db.writer()
    plan = writer.prepare(db.context(commit="task"), ROWS.schema)
    late, unknown = writer.open(plan, 0, 1), writer.open(plan, 7, 2)
    late.write(ROWS.to_batches()[0])
    unknown.write(MORE.to_batches()[0])
    writer.commit(plan, [run_task(writer, plan, 0, ROWS, attempt=3)])
    for attempt in (late, unknown):
        with pytest.raises(TargetError):
            attempt.close()
        attempt.rollback()
    assert ids(db) == [1, 2, 3]


def test_a_half_done_task_version_is_refused_with_the_reason(db: Db) -> None:
    db.sql("CREATE TABLE t (id INTEGER, name TEXT)")
    writer = db.writer()
    plan = writer.prepare(db.context(job="first", txn=("app", 1), commit="task"), ROWS.schema)
    run_task(writer, plan, 0, ROWS)
    writer.abort(plan, None)
    with pytest.raises(
        TargetError,
        match=r"transaction id 'app:1' is partially committed: run 'first' committed 1 tasks with 3 rows",
    ):
        writer.prepare(db.context(job="second", txn=("app", 1)), ROWS.schema)
    writer.prepare(db.context(job="second", txn=("app", 2)), ROWS.schema)


def test_the_same_job_goes_on_where_it_stopped(db: Db) -> None:
    db.sql("CREATE TABLE t (id INTEGER, name TEXT)")
    context = db.context(job="copy", txn=("app", 1), commit="task", overwrite=True)
    options = {"preSql": "INSERT INTO t VALUES (0, 'pre')"}
    writer = db.writer(**options)
    plan = writer.prepare(context, ROWS.schema)
    run_task(writer, plan, 0, ROWS)
    writer.abort(plan, None)
    again = db.writer(**options)
    plan = again.prepare(context, ROWS.schema)
    again.commit(plan, [run_task(again, plan, 0, ROWS), run_task(again, plan, 1, MORE)])
    assert ids(db) == [1, 2, 3, 4]


def test_a_stream_is_told_apart_by_batch(db: Db) -> None:
    writer = db.writer()
    for batch in (0, 1, 1):
        context = db.context(job=f"query-{batch}", stream=("query", batch))
        plan = writer.prepare(context, ROWS.schema)
        receipt = run_task(writer, plan, 0, pa.table({"id": [batch], "name": ["x"]}))
        fresh = db.writer()
        fresh.commit(fresh.prepare(context, ROWS.schema), [pickle.loads(pickle.dumps(receipt))])
    assert ids(db) == [0, 1]


def test_two_receipts_of_one_task_are_refused(db: Db) -> None:
    writer = db.writer()
    plan = writer.prepare(db.context(), ROWS.schema)
    receipts = [run_task(writer, plan, 0, ROWS, attempt) for attempt in (1, 2)]
    with pytest.raises(CommitError, match="two receipts of task 0"):
        writer.commit(plan, receipts)
    writer.abort(plan, receipts)
    assert not db.path.exists()


@pytest.mark.parametrize("commit", MODES)
def test_a_receipt_without_its_rows_is_refused(db: Db, commit: CommitMode) -> None:
    db.write(MORE)
    writer = db.writer()
    plan = writer.prepare(db.context(commit=commit), ROWS.schema)
    run_task(writer, plan, 0, ROWS)
    made_up = Receipt(5, 5, 3, 100, {"file": "5-5-00000000.arrow"})
    with pytest.raises(CommitError, match="of task 5"):
        writer.commit(plan, [made_up])
    wrong = Receipt(0, 0, 2, 100, {"file": None})
    if commit == "job":
        with pytest.raises(CommitError, match="0 rows are staged, and the receipts say 2"):
            writer.commit(plan, [wrong])
        assert ids(db) == [4]


def test_a_failed_commit_can_be_tried_again(db: Db) -> None:
    db.write(MORE)
    writer = db.writer(lockTimeout="0.1")
    plan = writer.prepare(db.context(commit="job"), ROWS.schema)
    receipt = run_task(writer, plan, 0, ROWS)
    with SqliteSession(db.path, "rw", lock_timeout=1, failure=TargetError) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(
            CommitError, match=r"lockTimeout \(0.1 s\).*Nothing of this job is in table 't'"
        ):
            writer.commit(plan, [receipt])
    writer.commit(plan, [receipt])
    assert ids(db) == [1, 2, 3, 4]


def test_an_abort_after_the_publish_keeps_the_rows(db: Db) -> None:
    """When `commit` raises on its way back, Spark calls abort with all receipts."""
    writer = db.writer()
    plan = writer.prepare(db.context(), ROWS.schema)
    receipts = [run_task(writer, plan, 0, ROWS)]
    writer.commit(plan, receipts)
    for known in (receipts, [None], None):
        writer.abort(plan, known)
    assert ids(db) == [1, 2, 3]


def test_a_task_that_does_not_see_the_drivers_disk_is_told(db: Db, tmp_path: Path) -> None:
    writer = db.writer()
    plan = writer.prepare(db.context(), ROWS.schema)
    assert isinstance(plan, FilePlan)
    (Path(plan.staging) / "token").write_text("f" * 32)
    with pytest.raises(TargetError, match=r"does not see .*use one machine"):
        writer.open(plan, 0, 0)
    writer.abort(plan, None)
    with pytest.raises(TargetError, match="the job was aborted"):
        writer.open(plan, 0, 0)


def test_nothing_is_written_where_this_user_may_not(db: Db, as_nobody: AsNobody) -> None:
    db.sql("CREATE TABLE t (id INTEGER, name TEXT)")
    with (
        as_nobody(),
        pytest.raises(
            TargetError, match=f"may not write {db.path.parent}; SQLite needs the file and its"
        ) as met,
    ):
        db.write(ROWS)
    assert exit_code(met.value) == 2
    db.path.parent.chmod(0o777)
    db.path.chmod(0o444)
    with as_nobody(), pytest.raises(TargetError, match=f"may not write {db.path}"):
        db.write(ROWS)
    assert db.staged() == []


def test_a_missing_directory_is_told(tmp_path: Path) -> None:
    writer, _ = load_writer({"path": str(tmp_path / "no" / "such" / "a.db"), "dbtable": "t"})
    with pytest.raises(
        TargetError, match=f"directory {tmp_path / 'no' / 'such'} does not exist; make it"
    ):
        writer.prepare(Db(tmp_path).context(), ROWS.schema)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database_is_left_alone(db: Db) -> None:
    db.path.write_bytes(b"something else, and precious")
    with pytest.raises(TargetError, match="is not a SQLite database"):
        db.write(ROWS)
    assert db.path.read_bytes() == b"something else, and precious"
    assert db.staged() == []


def test_a_new_file_is_not_seen_before_its_rows(db: Db) -> None:
    writer = db.writer()
    plan = writer.prepare(db.context(), ROWS.schema)
    receipt = run_task(writer, plan, 0, ROWS)
    assert not db.path.exists()
    with pytest.raises(CommitError):
        writer.commit(plan, [receipt, Receipt(1, 1, 1, 1, {"file": "gone.arrow"})])
    assert not db.path.exists()
    writer.commit(plan, [receipt])
    assert ids(db) == [1, 2, 3]


def test_claims_of_jobs_without_a_pair_are_forgotten_after_a_month(db: Db) -> None:
    db.write(ROWS)
    db.write(MORE, txn=("app", 1))
    db.sql(f"UPDATE {CLAIMS} SET published_at = '2020-01-01T00:00:00Z' WHERE kind <> 'table'")
    db.write(MORE)
    kinds = [kind for (kind,) in db.sql(f"SELECT kind FROM {CLAIMS} ORDER BY kind")]
    assert kinds == ["job", "table", "versions"]
    assert db.write(MORE, txn=("app", 1)).published_at is not None


def test_a_batch_of_a_stream_is_published_once(db: Db) -> None:
    hold_to_once(db.writer, lambda: [each for (each,) in db.sql("SELECT id FROM t ORDER BY id")])
    assert db.staged() == []
