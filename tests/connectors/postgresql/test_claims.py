"""Which claims are trusted, and what a run that was overtaken may still do."""

import multiprocessing
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import WritePlan
from spark_channel.connectors.postgresql import PostgresDatabase
from spark_channel.connectors.postgresql.options import PostgresWriteOptions
from spark_channel.connectors.postgresql.session import PgSession, PgWriteSession
from spark_channel.connectors.postgresql.write.dialect import PostgresPlan
from spark_channel.connectors.sql import SqlWriter
from spark_channel.connectors.sql.write.claims import Claims
from spark_channel.connectors.sql.write.in_session import show_life
from spark_channel.errors import SupersededError, TargetError
from spark_channel.options import CommitMode
from tests.connectors.postgresql.pg import Pg
from tests.connectors.sql.one_database import run_task

BOTH = pytest.mark.parametrize("commit", ["job", "task"])
PAIR = ("nightly", 1)


def _rows(count: int = 1000, start: int = 0) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(range(start, start + count), pa.int64())})


SCHEMA = _rows(0).schema


def _prepare(pg: Pg, writer: SqlWriter[Any], **what: Any) -> PostgresPlan:
    plan = writer.prepare(pg.context(**what), SCHEMA)
    assert isinstance(plan, PostgresPlan)
    return plan


def _count(pg: Pg) -> str:
    return pg.psql("SELECT count(*), count(DISTINCT id) FROM t")


@BOTH
def test_a_driver_that_wakes_up_after_its_pair_was_published_adds_nothing(
    pg: Pg, commit: CommitMode
) -> None:
    pg.psql("CREATE TABLE t (id bigint)")
    writer = pg.writer("t")
    sleeper = _prepare(pg, writer, commit=commit, txn=PAIR)
    early = writer.open(sleeper, 0, 1)
    early.write(_rows())
    pg.write(pa.Table.from_batches([_rows()]), commit=commit, txn=PAIR)
    with pytest.raises(
        SupersededError, match=r"was published to .*, while run .* was still writing"
    ):
        early.close()
    early.rollback()
    with pytest.raises(SupersededError):
        writer.open(sleeper, 0, 2)
    writer.commit(sleeper, [])
    writer.abort(sleeper, None)
    assert _count(pg) == "1000|1000"
    assert pg.staged() == []


@BOTH
def test_a_driver_that_was_overtaken_publishes_nothing(
    pg: Pg, commit: CommitMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds out in one try, and the error names the run that took over."""
    pg.psql("CREATE TABLE t (id bigint)")
    writer = pg.writer("t")
    sleeper = _prepare(pg, writer, job="sleeper", commit="job", txn=PAIR)
    receipt = run_task(writer, sleeper, 0, _rows())
    successor = _prepare(pg, writer, job="successor", commit=commit, txn=PAIR)
    assert sleeper.staging not in pg.staged(), "staging of a run that was overtaken goes at once"
    sessions: list[str] = []
    real = PgWriteSession.__init__

    def counted(session: PgWriteSession, *arguments: Any, **named: Any) -> None:
        sessions.append(named["purpose"])
        real(session, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(PgWriteSession, "__init__", counted)
        with pytest.raises(SupersededError, match="run 'successor' took over") as raised:
            writer.commit(sleeper, [receipt])
    assert (raised.value.owner, raised.value.successor) == ("sleeper", "successor")
    assert sessions == ["publish sleeper"] * 2, "one that finds out, one that removes its staging"
    writer.abort(sleeper, None)
    writer.commit(successor, [run_task(writer, successor, 0, _rows())])
    assert _count(pg) == "1000|1000"
    assert pg.staged() == []


def _write_for_ever(writer: SqlWriter[Any], plan: WritePlan, begun: Any) -> None:
    attempt = writer.open(plan, 0, 1)
    number = 0
    while True:
        attempt.write(_rows(100, number * 100))
        attempt.flush()
        begun.set()
        number += 1


@BOTH
def test_a_rerun_beside_the_workers_of_a_killed_driver(pg: Pg, commit: CommitMode) -> None:
    """The worker of the first run writes on, all the while."""
    pg.psql("CREATE TABLE t (id bigint)")
    writer = pg.writer("t")
    plan = _prepare(pg, writer, commit=commit, txn=PAIR)
    context = multiprocessing.get_context("forkserver")
    begun = context.Event()
    worker = context.Process(target=_write_for_ever, args=(writer, plan, begun))
    worker.start()
    try:
        assert begun.wait(60)
        pg.write(pa.Table.from_batches([_rows()]), commit=commit, txn=PAIR)
        if commit == "job":
            worker.join(60)
            assert worker.exitcode == 1, "it fails because its staging is gone"
    finally:
        worker.kill()
        worker.join()
    assert _count(pg) == "1000|1000"
    assert pg.staged() == []


def test_staging_of_a_live_run_stays_and_that_of_a_dead_one_goes(pg: Pg) -> None:
    """A dead one's process has ended; of a run elsewhere, a day without a beat raises a doubt, and not more."""
    pg.psql("CREATE TABLE t (id bigint)")
    writer = pg.writer("t")
    plans = {}
    for job in ("live", "dead", "elsewhere"):
        plans[job] = _prepare(pg, writer, job=job, commit="job")
    plans["late"] = _prepare(pg, writer, job="late", commit="job")
    pg.psql(
        "UPDATE spark_channel_claims SET beat_at = '2001-01-01T00:00:00Z';"
        'UPDATE spark_channel_claims SET process = regexp_replace(process, \'"started":"\\d+"\', \'"started":"1"\') '
        "WHERE name = 'dead';"
        "UPDATE spark_channel_claims SET process = '{}' WHERE name IN ('elsewhere', 'late')"
    )
    pg.psql("CREATE TABLE spark_channel_stage_of_a_user (id int)")
    show_life(writer.database, plans["late"])
    own = _prepare(pg, writer, commit="job")
    kept = {plans[job].staging for job in ("live", "elsewhere", "late")}
    assert set(pg.staged()) == {*kept, own.staging, "spark_channel_stage_of_a_user"}
    doubted = "SELECT name FROM spark_channel_claims WHERE doubted_at <> '' ORDER BY name"
    assert pg.psql(doubted) == "elsewhere"
    pg.psql(
        "UPDATE spark_channel_claims SET doubted_at = '2001-02-02T00:00:00Z' WHERE name = 'elsewhere'"
    )
    writer.abort(own, None)
    again = _prepare(pg, writer, commit="job")
    assert plans["elsewhere"].staging not in pg.staged()
    for plan in (*plans.values(), again):
        writer.abort(plan, None)
    assert pg.staged() == ["spark_channel_stage_of_a_user"]


def test_an_attempt_shows_that_its_run_lives(pg: Pg) -> None:
    pg.psql("CREATE TABLE t (id bigint)")
    writer = pg.writer("t")
    plan = _prepare(pg, writer, commit="job")
    pg.psql("UPDATE spark_channel_claims SET beat_at = '2001-01-01T00:00:00Z'")
    writer.open(plan, 0, 1).rollback()
    assert pg.psql("SELECT beat_at > '2020' FROM spark_channel_claims WHERE kind = 'job'") == "t"
    writer.abort(plan, None)


def test_staging_in_use_is_not_waited_for(pg: Pg) -> None:
    """A task of a run that was overtaken hangs in the middle of a chunk."""
    pg.psql("CREATE TABLE t (id bigint)")
    writer = pg.writer("t")
    sleeper = _prepare(pg, writer, commit="job", txn=PAIR)
    with PgWriteSession(writer.options, failure=TargetError, purpose="hangs") as hanging:
        hanging.execute("BEGIN")
        hanging.execute(f"INSERT INTO {sleeper.staging} VALUES (1)")
        begun = time.monotonic()
        pg.write(pa.Table.from_batches([_rows()]), commit="job", txn=PAIR)
        assert time.monotonic() - begun < 30
        assert pg.staged() == [sleeper.staging]
        hanging.execute("ROLLBACK")
    pg.write(pa.Table.from_batches([_rows(0)]), commit="job")
    assert pg.staged() == []
    assert _count(pg) == "1000|1000"


@BOTH
def test_a_task_that_hangs_does_not_hold_its_successor_up(pg: Pg, commit: CommitMode) -> None:
    """The overwrite of the later run needs a lock that the paused process of the earlier one has."""
    pg.psql("CREATE TABLE t (id bigint); INSERT INTO t VALUES (-1)")
    writer = pg.writer("t", batchSize="10")
    sleeper = _prepare(pg, writer, commit="task", txn=PAIR)
    hanging = writer.open(sleeper, 0, 1)
    hanging.write(_rows(10))
    begun = time.monotonic()
    pg.write(pa.Table.from_batches([_rows()]), commit=commit, overwrite=True, txn=PAIR)
    assert time.monotonic() - begun < 30
    with pytest.raises(SupersededError):
        hanging.close()
    hanging.rollback()
    assert _count(pg) == "1000|1000"


def test_an_attempt_that_hangs_does_not_hold_the_publish_up(pg: Pg) -> None:
    """Its process is paused in the middle of a chunk, and another attempt has staged the task's rows."""
    pg.psql("CREATE TABLE t (id bigint)")
    writer = pg.writer("t")
    plan = _prepare(pg, writer, commit="job")
    with PgWriteSession(
        writer.options, failure=TargetError, purpose=f"write {plan.job}"
    ) as hanging:
        hanging.execute("BEGIN")
        hanging.execute(f"INSERT INTO {plan.staging} VALUES (1)")
        receipt = run_task(writer, plan, 0, _rows())
        begun = time.monotonic()
        writer.commit(plan, [receipt])
        assert time.monotonic() - begun < 20
        with pytest.raises(TargetError, match="terminating connection"):
            hanging.execute("COMMIT")
    assert _count(pg) == "1000|1000"
    assert pg.staged() == []


def test_a_commit_of_a_task_is_settled_when_its_old_session_has_ended(
    pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is lost, and the server still works on its COMMIT: the new session waits for that."""
    pg.psql("CREATE TABLE t (id bigint)")
    writer = pg.writer("t")
    plan = _prepare(pg, writer, commit="task")
    real = PgSession.rows
    old: list[PgWriteSession] = []
    late: list[threading.Timer] = []

    def rows(session: PgWriteSession, sql: str) -> list[tuple[Any, ...]]:
        if sql != "COMMIT" or old:
            return real(session, sql)
        old.append(session)
        late.append(threading.Timer(1.0, lambda: real(session, "COMMIT")))
        late[0].start()
        raise TargetError("no answer") from OSError("server closed the connection unexpectedly")

    close = PgWriteSession.close
    with monkeypatch.context() as patch:
        patch.setattr(PgSession, "rows", rows)
        patch.setattr(
            PgWriteSession, "close", lambda session: None if session in old else close(session)
        )
        receipt = run_task(writer, plan, 0, _rows())
    assert (receipt.rows, receipt.attempt) == (1000, 0)
    late[0].join()
    close(old[0])
    writer.commit(plan, [receipt])
    assert _count(pg) == "1000|1000"


@BOTH
def test_a_published_pair_is_a_no_op_whatever_became_of_the_table(
    pg: Pg, commit: CommitMode
) -> None:
    pg.write(pa.Table.from_batches([_rows()]), commit=commit, txn=PAIR)
    pg.psql("ALTER TABLE t RENAME COLUMN id TO number")
    assert (
        pg.write(pa.Table.from_batches([_rows()]), commit=commit, txn=PAIR).published_at is not None
    )
    assert pg.psql("SELECT count(*) FROM t") == "1000"


def test_a_table_made_meanwhile_is_named_as_that(pg: Pg) -> None:
    """With `commit=task` the rows that the other job has committed stay, too."""
    writer = pg.writer("t")
    first, second = (_prepare(pg, writer, commit="job") for _ in range(2))
    receipts = [
        run_task(writer, plan, 0, _rows(10, start)) for plan, start in ((first, 0), (second, 10))
    ]
    writer.commit(first, receipts[:1])
    with pytest.raises(
        TargetError, match=r"another job created table .*\.t meanwhile.*Run this job again"
    ):
        writer.commit(second, receipts[1:])
    writer.abort(second, None)
    assert _count(pg) == "10|10"
    assert pg.staged() == []


@BOTH
def test_two_jobs_that_make_one_table_in_one_moment(pg: Pg, commit: CommitMode) -> None:
    """Neither sees the other's table. One of them fails, and no row of the other is lost."""
    errors: list[str] = []
    done: list[int] = []
    start = threading.Barrier(3)

    def run(number: int) -> None:
        start.wait(30)
        try:
            pg.write(pa.Table.from_batches([_rows(100, number * 100)]), commit=commit)
            done.append(number)
        except TargetError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(done) + len(errors) == 3
    assert all("created table" in each and "meanwhile" in each for each in errors), errors
    assert _count(pg) == f"{len(done) * 100}|{len(done) * 100}"
    assert pg.staged() == []


@pytest.fixture
def stranger(pg: Pg) -> Iterator[str]:
    """A role that may create tables in the schema, as the loader may."""
    name = f"stranger_{pg.schema}"
    loader = f"loader_{pg.schema}"
    for role in (name, loader):
        pg.psql(
            f"CREATE ROLE {role} LOGIN PASSWORD 'x'; GRANT USAGE, CREATE ON SCHEMA {pg.schema} TO {role}"
        )
    yield name
    for role in (name, loader):
        pg.psql(f"DROP OWNED BY {role}; DROP ROLE {role}")


CLAIMS = (
    "claim varchar(64) PRIMARY KEY, target text, kind text, name text, version bigint, owner text, epoch bigint, "
    "state text, batch bigint, published_at text, row_count bigint, byte_count bigint, process text, beat_at text, "
    "doubted_at text, generation bigint"
)


@pytest.mark.parametrize(
    "table", ["spark_channel_claims", "spark_channel_tasks", "spark_channel_transfers"]
)
def test_a_table_that_a_stranger_planted_is_not_used(pg: Pg, stranger: str, table: str) -> None:
    """Neither its trigger, which would run as the loader, nor its row, by which tomorrow's version were published."""
    loader = {"user": f"loader_{pg.schema}", "password": "x"}
    pg.psql(
        f"SET ROLE {stranger}; CREATE TABLE {table} ({CLAIMS}); GRANT ALL ON {table} TO PUBLIC;"
        "CREATE FUNCTION planted() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$BEGIN EXECUTE 'ALTER ROLE {loader['user']} SET work_mem = ''1MB'''; RETURN NEW; END$$;"
        f"CREATE TRIGGER planted BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION planted()"
    )
    writer = pg.writer("t", **loader)

    def begin() -> None:
        writer.keep(_prepare(pg, writer, commit="task", txn=PAIR), "a plan")

    with pytest.raises(
        TargetError, match=rf'{table}.*cannot be trusted: role "{stranger}" owns it'
    ):
        begin()
    assert pg.psql(f"SELECT count(*) FROM {table}") == "0"
    assert pg.psql(f"SELECT rolconfig FROM pg_roles WHERE rolname = '{loader['user']}'") == "\\N"


_FUNCTION = "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NEW; END$$;"


@pytest.mark.parametrize(
    ("planted", "why"),
    [
        ("CREATE RULE r AS ON UPDATE TO spark_channel_claims DO INSTEAD NOTHING", "it has a rule"),
        (
            _FUNCTION
            + "CREATE TRIGGER r BEFORE UPDATE ON spark_channel_claims FOR EACH ROW EXECUTE FUNCTION f()",
            "it has a trigger",
        ),
        ("ALTER TABLE spark_channel_claims ENABLE ROW LEVEL SECURITY", "it has row security"),
        ("CREATE TABLE more () INHERITS (spark_channel_claims)", "a table inherits from it"),
        ("ALTER TABLE spark_channel_claims SET UNLOGGED", "not an ordinary table"),
        (
            "ALTER TABLE spark_channel_claims RENAME TO x; CREATE VIEW spark_channel_claims AS SELECT * FROM x",
            "not an ordinary table",
        ),
    ],
)
def test_a_claim_table_on_which_something_else_acts_is_not_used(
    pg: Pg, planted: str, why: str
) -> None:
    pg.write(pa.Table.from_batches([_rows(1)]), txn=PAIR)
    pg.psql(planted)
    with pytest.raises(TargetError, match=f"cannot be trusted: .*{why}"):
        pg.write(pa.Table.from_batches([_rows(1)]), txn=PAIR)
    assert _count(pg) == "1|1"


def test_roles_of_one_group_share_claims(pg: Pg, stranger: str) -> None:
    """Not so a superuser, who is a member of every role only by name."""
    pg.psql("CREATE TABLE t (id bigint); GRANT ALL ON t TO PUBLIC")
    pg.write(pa.Table.from_batches([_rows(1)]), txn=PAIR, user=f"loader_{pg.schema}", password="x")
    with pytest.raises(TargetError, match="cannot be trusted"):
        pg.write(pa.Table.from_batches([_rows(1)]), txn=PAIR)
    login: dict[str, Any] = {"user": stranger, "password": "x"}
    with pytest.raises(TargetError, match="cannot be trusted"):
        pg.write(pa.Table.from_batches([_rows(1)]), txn=PAIR, **login)
    pg.psql(f"GRANT loader_{pg.schema} TO {stranger}")
    assert pg.write(pa.Table.from_batches([_rows(1)]), txn=PAIR, **login).published_at is not None
    assert _count(pg) == "1|1"


def test_whether_the_table_exists_is_asked_in_the_session_of_the_write(
    pg: Pg, stranger: str
) -> None:
    """On its search path, and without the privilege to read it."""
    login = {"user": stranger, "password": "x"}
    assert pg.writer("t").exists() is False
    pg.psql("CREATE TABLE t (id bigint)")
    assert pg.writer("t").exists() is True
    assert pg.writer("t", **login).exists() is True
    assert pg.writer("t", currentSchema="pg_catalog").exists() is False
    assert pg.writer("t", currentSchema=f"pg_catalog, {pg.schema}").exists() is True
    statement = f"SET search_path = {pg.schema}"
    options = pg.options(dbtable="t", sessionInitStatement=statement)
    del options["currentschema"]
    assert SqlWriter(PostgresDatabase(PostgresWriteOptions.parse(options)[0])).exists() is True


@BOTH
def test_a_role_whose_transactions_are_serializable_writes_all_the_same(
    pg: Pg, stranger: str, commit: CommitMode
) -> None:
    """A claim that changed while a task wrote (a sign of life) does not fail the task."""
    pg.psql("CREATE TABLE t (id bigint); GRANT ALL ON t TO PUBLIC")
    pg.psql(f"ALTER ROLE {stranger} SET default_transaction_isolation = serializable")
    writer = pg.writer("t", user=stranger, password="x")
    plan = _prepare(pg, writer, commit=commit)
    attempt = writer.open(plan, 0, 1)
    attempt.write(_rows())
    attempt.flush()
    show_life(writer.database, plan)
    writer.commit(plan, [attempt.close()])
    assert _count(pg) == "1000|1000"


def test_staging_that_its_own_run_removes_meanwhile_is_no_orphan(
    pg: Pg, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Tables are copied side by side, and one has just published."""
    stage = f'"{pg.schema}"."spark_channel_stage_{"0" * 16}_1_rows"'
    pg.psql(f"CREATE TABLE {stage} (id bigint)")
    found = Claims.orphans

    def meanwhile(self: Claims, *given: Any, **more: Any) -> list[str]:
        orphans = found(self, *given, **more)
        assert orphans
        pg.psql(f"DROP TABLE {stage}")
        return orphans

    monkeypatch.setattr(Claims, "orphans", meanwhile)
    pg.write(pa.Table.from_batches([_rows()]), commit="job")
    assert "orphaned" not in caplog.text
