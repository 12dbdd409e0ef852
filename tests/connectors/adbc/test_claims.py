"""Claims through ADBC drivers: of several jobs at once, and shared with the database's own connector."""

import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import Receipt, WriteContext, WritePlan, Writer, load_writer
from spark_channel.connectors.adbc.session import AdbcSession
from spark_channel.errors import SupersededError, TargetError
from spark_channel.options import CommitMode
from tests.connectors.adbc.test_database import Base, base
from tests.connectors.sql.one_database import run_task
from tests.servers.postgres import PostgresServer

__all__ = ["base"]

both = pytest.mark.parametrize("commit", ["job", "task"])
of_postgresql = pytest.mark.parametrize("base", ["postgresql"], indirect=True)
PAIR = ("nightly", 1)


def _rows(start: int, count: int = 10) -> pa.Table:
    return pa.table({"id": pa.array(range(start, start + count), pa.int64())})


SCHEMA = _rows(0).schema


def _context(
    commit: CommitMode, *, overwrite: bool = False, txn: tuple[str, int] | None = None
) -> WriteContext:
    return WriteContext(uuid.uuid4().hex, commit=commit, overwrite=overwrite, txn=txn)


def _job(writer: Writer, context: WriteContext, rows: pa.Table) -> WritePlan:
    plan = writer.prepare(context, rows.schema)
    writer.commit(plan, [run_task(writer, plan, 0, rows)])
    return plan


def _at_once(*calls: Callable[[], object]) -> list[BaseException]:
    start, errors = threading.Barrier(len(calls)), []

    def run(call: Callable[[], object]) -> None:
        start.wait(60)
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return errors


def _ids(base: Base) -> list[int]:
    return sorted(base.read()["id"].to_pylist())


@both
def test_two_first_jobs_in_one_moment_both_succeed(base: Base, commit: CommitMode) -> None:
    """Neither finds a claim table, nor the target."""
    jobs = [
        lambda start=start: _job(base.writer(), _context(commit), _rows(start))
        for start in (0, 100)
    ]
    assert _at_once(*jobs) == []
    assert _ids(base) == [*range(10), *range(100, 110)]
    assert base.staged() == []


def test_of_two_overwrites_in_one_moment_one_is_left(base: Base) -> None:
    base.write(_rows(500))

    def staged(start: int) -> Callable[[], object]:
        writer = base.writer()
        plan = writer.prepare(_context("job", overwrite=True), SCHEMA)
        receipt = run_task(writer, plan, 0, _rows(start))
        return lambda: writer.commit(plan, [receipt])

    for _ in range(4):
        assert _at_once(staged(0), staged(100)) == []
        assert _ids(base) in ([*range(10)], [*range(100, 110)])
    assert base.staged() == []


@both
def test_a_driver_that_wakes_up_adds_nothing(base: Base, commit: CommitMode) -> None:
    base.sql("CREATE TABLE t (id BIGINT)")
    writer = base.writer()
    sleeper = writer.prepare(_context(commit, txn=PAIR), SCHEMA)
    receipts: list[Receipt] = []
    early = writer.open(sleeper, 0, 1)
    if commit == "job":
        early.write(_rows(0).to_batches()[0])
        receipts.append(early.close())
    _job(base.writer(), _context(commit, txn=PAIR), _rows(0))
    if commit == "task":
        early.write(_rows(0).to_batches()[0])
        with pytest.raises(SupersededError, match="was published to"):
            early.close()
        early.rollback()
    with pytest.raises(SupersededError):
        writer.open(sleeper, 1, 2)
    writer.commit(sleeper, receipts)
    writer.abort(sleeper, None)
    assert _ids(base) == [*range(10)]
    assert base.staged() == []


@both
def test_a_driver_that_was_overtaken_is_told(base: Base, commit: CommitMode) -> None:
    base.sql("CREATE TABLE t (id BIGINT)")
    writer = base.writer()
    sleeper = writer.prepare(_context("job", txn=PAIR), SCHEMA)
    receipt = run_task(writer, sleeper, 0, _rows(0))
    successor = writer.prepare(_context(commit, txn=PAIR), SCHEMA)
    with pytest.raises(SupersededError, match=f"run '{successor.job}' took over"):
        writer.commit(sleeper, [receipt])
    writer.abort(sleeper, None)
    writer.commit(successor, [run_task(writer, successor, 0, _rows(0))])
    assert _ids(base) == [*range(10)]
    assert base.staged() == []


def test_two_attempts_of_one_task_commit_once(base: Base) -> None:
    base.sql("CREATE TABLE t (id BIGINT)")
    writer = base.writer()
    plan = writer.prepare(_context("task"), SCHEMA)
    receipts: list[Receipt] = []
    attempts = [
        lambda n=n: receipts.append(run_task(writer, plan, 0, _rows(0), attempt=n))
        for n in (1, 2, 3)
    ]
    assert _at_once(*attempts) == []
    assert len({receipt.attempt for receipt in receipts}) == 1
    writer.commit(plan, receipts[:1])
    assert _ids(base) == [*range(10)]


@of_postgresql
@both
def test_a_commit_without_an_answer_is_settled(
    base: Base, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch, commit: CommitMode
) -> None:
    """An administrator ends the session of a task, or of the publication, while its COMMIT is answered."""
    base.sql("CREATE TABLE t (id BIGINT)")
    writer = base.writer()
    plan = writer.prepare(_context(commit), SCHEMA)
    real, cut = AdbcSession.commit, [False]

    def lost(session: AdbcSession) -> None:
        real(session)
        if not cut[0]:
            cut[0] = True
            postgres_server.psql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
            session.rows("SELECT 'the answer'")

    with monkeypatch.context() as patch:
        if commit == "task":
            attempt = writer.open(plan, 0, 0)
            attempt.write(_rows(0).to_batches()[0])
            patch.setattr(AdbcSession, "commit", lost)
            receipt = attempt.close()
        else:
            receipt = run_task(writer, plan, 0, _rows(0))
            patch.setattr(AdbcSession, "commit", lost)
            writer.commit(plan, [receipt])
    assert cut == [True]
    writer.commit(plan, [receipt])
    assert _ids(base) == [*range(10)]
    assert base.staged() == []


@pytest.fixture
def own(base: Base, postgres_server: PostgresServer) -> Callable[..., Writer]:
    """The database's own connector, for the same table."""

    def writer(**more: Any) -> Writer:
        return load_writer(
            {**postgres_server.login, "currentschema": base.schema, "dbtable": "t", **more}
        )[0]

    return writer


@of_postgresql
@both
def test_claims_are_shared_with_the_own_connector(
    base: Base, own: Callable[..., Writer], commit: CommitMode
) -> None:
    """Either knows what the other has published, and takes over from it."""
    _job(base.writer(), _context(commit, txn=PAIR), _rows(0))
    assert _job(own(), _context(commit, txn=PAIR), _rows(0)).published_at is not None
    _job(own(), _context(commit, txn=("nightly", 2)), _rows(10))
    assert (
        _job(base.writer(), _context(commit, txn=("nightly", 2)), _rows(10)).published_at
        is not None
    )
    for one, other in ((base.writer(), own()), (own(), base.writer())):
        txn = (uuid.uuid4().hex, 3)
        sleeper = one.prepare(_context("job", txn=txn), SCHEMA)
        receipt = run_task(one, sleeper, 0, _rows(50))
        plan = other.prepare(_context(commit, txn=txn), SCHEMA)
        with pytest.raises(SupersededError):
            one.commit(sleeper, [receipt])
        other.abort(plan, None)
    assert _ids(base) == [*range(20)]
    assert base.staged() == []


def test_a_claim_table_with_a_trigger_is_not_used(base: Base) -> None:
    base.write(_rows(0))
    if base.schema:
        base.sql(
            "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NEW; END$$"
        )
        base.sql(
            "CREATE TRIGGER r BEFORE UPDATE ON spark_channel_claims FOR EACH ROW EXECUTE FUNCTION f()"
        )
    else:
        base.sql("CREATE TRIGGER r AFTER INSERT ON spark_channel_claims BEGIN DELETE FROM t; END")
    with pytest.raises(TargetError, match="cannot be trusted: it has a trigger"):
        base.write(_rows(10))
    assert _ids(base) == [*range(10)]


@of_postgresql
def test_whether_the_table_exists_is_asked_of_the_catalog(
    base: Base, postgres_server: PostgresServer
) -> None:
    """On the search path of the session, and without the privilege to read it."""
    other = f"{base.schema}_other"
    role = f"reader_{base.schema}"
    base.sql(
        f"CREATE SCHEMA {other}; CREATE ROLE {role} LOGIN PASSWORD 'x'; GRANT USAGE ON SCHEMA {base.schema} TO {role}"
    )
    try:
        path = f"?options=-csearch_path%3D{other},{base.schema}"
        uri = f"{base.options['uri']}{path}"
        found = Base({**base.options, "uri": uri}, base.sql)
        assert found.writer().exists() is False
        base.sql("CREATE TABLE t (id BIGINT)")
        assert found.writer().exists() is True
        uri = postgres_server.url.replace("//", f"//{role}:x@") + path
        assert Base({**base.options, "uri": uri}, base.sql).writer().exists() is True
        found.write(_rows(0))
        assert base.sql(f"SELECT count(*) FROM {base.schema}.t") == "10"
    finally:
        base.sql(f"DROP SCHEMA {other} CASCADE; DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_duplicate_key_of_the_user_is_told_and_not_tried_for_a_minute(base: Base) -> None:
    base.sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    begun = time.monotonic()
    for commit in ("job", "task"):
        with pytest.raises(TargetError, match=r"(?i)unique"):
            base.write(pa.table({"id": [1, 1]}), commit=commit)
    assert time.monotonic() - begun < 30
    assert base.staged() == []
