"""Two runs of one write: one of them writes. What MySQL adds to that: DDL, locks that wait, and deadlocks."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

import pyarrow as pa
import pymysql
import pytest

from spark_channel.connectors import Receipt, WriteContext, WritePlan
from spark_channel.connectors.mysql.dialect import MysqlDialect
from spark_channel.connectors.mysql.session import LostConnectionError, MysqlSession
from spark_channel.connectors.sql import SqlWriter
from spark_channel.connectors.sql.catalog.rights import Right
from spark_channel.errors import ChannelError, CommitError, SupersededError, TargetError
from spark_channel.options import CommitMode
from tests.connectors.mysql.shop import Shop, until_a_lock_waits
from tests.connectors.sql.one_database import run_task
from tests.servers.mariadb import MariadbServer

ROWS = pa.table({"id": range(1000), "name": [str(number) for number in range(1000)]})
PAIR = ("nightly", 1)
SECONDS = 60.0
CLAIMS = "spark_channel_claims"
BOTH = pytest.mark.parametrize("commit", ["job", "task"])


@pytest.fixture
def keyed(shop: Shop) -> Shop:
    shop.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(50))")
    return shop


@pytest.fixture
def heap(shop: Shop) -> Shop:
    """Without a key: a row that comes twice is there twice."""
    shop.sql("CREATE TABLE t (id BIGINT, name VARCHAR(50))")
    return shop


def counted(shop: Shop) -> tuple[int, int]:
    found = shop.rows("SELECT COUNT(*), COUNT(DISTINCT id) FROM t")[0]
    return int(found[0]), int(found[1])


def ready(shop: Shop, commit: CommitMode, **context: Any) -> tuple[SqlWriter[Any], WritePlan]:
    writer = shop.writer(batchSize="100")
    return writer, writer.prepare(
        shop.context(commit=commit, **({"txn": PAIR} | context)), ROWS.schema
    )


def finish(writer: SqlWriter[Any], plan: WritePlan, *, attempt: int = 0) -> None:
    writer.commit(plan, [run_task(writer, plan, 0, ROWS, attempt=attempt)])


@contextmanager
def soon(seconds: float = 20.0) -> Iterator[None]:
    """Without a wait for a lock of the server, which is 50 s or more."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


@BOTH
def test_a_run_that_hangs_before_its_tasks_and_wakes_up(heap: Shop, commit: CommitMode) -> None:
    first, plan = ready(heap, commit)
    second, replan = ready(heap, commit)
    finish(second, replan)
    with pytest.raises(SupersededError, match=r"was published .*Nothing of this run was added"):
        finish(first, plan)
    first.commit(plan, [])  # published, whoever did it
    first.abort(plan, None)
    assert counted(heap) == (1000, 1000)
    assert heap.staged() == []


@BOTH
def test_a_run_that_was_overtaken_before_its_successor_published(
    heap: Shop, commit: CommitMode
) -> None:
    first, plan = ready(heap, commit)
    second, replan = ready(heap, commit)
    with pytest.raises(SupersededError, match=r"run 'job-2' took over"):
        run_task(first, plan, 0, ROWS)
    assert heap.staged() == []
    finish(second, replan)
    assert counted(heap) == (1000, 1000)
    assert heap.staged() == []


def test_a_run_that_hangs_with_all_its_receipts(heap: Shop) -> None:
    first, plan = ready(heap, "job")
    receipt = run_task(first, plan, 0, ROWS)
    second, replan = ready(heap, "job")
    assert heap.staged() == []  # the successor has dropped what the first one staged
    with pytest.raises(SupersededError, match=r"run 'job-2' took over"):
        first.commit(plan, [receipt])
    finish(second, replan)
    with pytest.raises(SupersededError, match="was published") as raised:
        run_task(first, plan, 0, ROWS, attempt=5)
    assert raised.value.successor == "job-2"
    first.commit(plan, [receipt])  # published, whoever did it
    assert counted(heap) == (1000, 1000)
    assert heap.staged() == []


@BOTH
def test_workers_that_outlive_their_driver(keyed: Shop, commit: CommitMode) -> None:
    """Their rows are at the server; the job is run again at once, with the same keys."""
    first, plan = ready(keyed, commit)
    tasks = [first.open(plan, number, number) for number in range(2)]
    for number, task in enumerate(tasks):
        for batch in ROWS.slice(number * 500, 500).to_batches():
            task.write(batch)
        task.flush()
    with soon():
        second, replan = ready(keyed, commit)
        receipts = [
            run_task(second, replan, n, ROWS.slice(n * 500, 500), attempt=n) for n in range(2)
        ]
    for task in tasks:
        with pytest.raises(SupersededError):
            task.close()
        task.rollback()
    second.commit(replan, receipts)
    assert counted(keyed) == (1000, 1000)
    assert keyed.staged() == []


@BOTH
def test_a_task_that_is_overtaken_after_it_sent_its_rows(heap: Shop, commit: CommitMode) -> None:
    """The fence is in the transaction that commits: a look when the task began would say that all is well."""
    first, plan = ready(heap, commit)
    task = first.open(plan, 0, 0)
    for batch in ROWS.to_batches():
        task.write(batch)
    task.flush()
    second, replan = ready(heap, commit)
    with pytest.raises(SupersededError, match=r"run 'job-2' took over"):
        task.close()
    task.rollback()
    assert counted(heap) == (0, 0)
    finish(second, replan)
    assert counted(heap) == (1000, 1000)
    assert heap.staged() == []


def test_a_run_that_continues_inherits_what_committed(keyed: Shop) -> None:
    first, plan = ready(keyed, "task")
    run_task(first, plan, 0, ROWS.slice(0, 500))
    first.keep(plan, "the plan")
    late = first.open(plan, 1, 1)
    late.write(ROWS.slice(500).to_batches()[0])
    late.flush()
    second = keyed.writer()
    found = second.unfinished(keyed.context(commit="task", txn=PAIR))
    assert found is not None
    assert (found.plan, [each.rows for each in found.receipts]) == ("the plan", [500])
    replan = second.prepare(keyed.context(commit="task", txn=PAIR, resume=found.epoch), ROWS.schema)
    assert second.committed(replan, 0) == found.receipts[0]
    with soon():
        receipts = [
            run_task(second, replan, n, ROWS.slice(n * 500, 500), attempt=9) for n in range(2)
        ]
    assert [each.attempt for each in receipts] == [0, 9]
    with pytest.raises(SupersededError):
        late.close()
    late.rollback()
    second.commit(replan, receipts)
    assert counted(keyed) == (1000, 1000)
    assert second.unfinished(keyed.context(commit="task", txn=PAIR)) is None


def test_a_client_that_is_silent_while_it_holds_the_claim(
    heap: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is paused between its fence and its COMMIT: the server ends its session, and nothing is there."""
    monkeypatch.setattr(
        "spark_channel.connectors.mysql.session.write_connection._SILENT_SECONDS", 2
    )
    first, plan = ready(heap, "task")
    paused, go_on = threading.Event(), threading.Event()
    real = MysqlSession.rows

    def rows(self: MysqlSession, sql: str, parameters: Any = ()) -> Any:
        if sql == "COMMIT" and threading.current_thread() is not threading.main_thread():
            paused.set()
            assert go_on.wait(SECONDS)
        return real(self, sql, parameters)

    monkeypatch.setattr(MysqlSession, "rows", rows)
    with ThreadPoolExecutor(1) as pool:
        sleeper = pool.submit(run_task, first, plan, 0, ROWS)
        assert paused.wait(SECONDS)
        with soon():
            second, replan = ready(heap, "task")
        finish(second, replan)
        go_on.set()
        with pytest.raises(SupersededError):
            sleeper.result(SECONDS)
    assert counted(heap) == (1000, 1000)


def test_a_connection_lost_after_ddl_of_pre_sql(
    keyed: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DDL commits what its transaction has done so far: that must not say that the table was emptied."""
    keyed.sql("INSERT INTO t VALUES (-1, 'old'); CREATE TABLE log (a INT)")
    real, lost = MysqlSession.rows, [0]

    def rows(self: MysqlSession, sql: str, parameters: Any = ()) -> Any:
        if sql.startswith("DELETE FROM") and sql.endswith(".`t`") and not lost[0]:
            lost[0] += 1
            keyed.sql(f"KILL {self.id}")
        return real(self, sql, parameters)

    monkeypatch.setattr(MysqlSession, "rows", rows)
    keyed.write(
        ROWS,
        commit="task",
        overwrite=True,
        preSql="TRUNCATE TABLE log",
        postSql="ANALYZE TABLE t",
        txn=PAIR,
    )
    assert lost[0] == 1
    assert counted(keyed) == (1000, 1000)
    assert keyed.rows("SELECT MIN(id) FROM t") == [("0",)]


def test_two_attempts_at_once_without_the_servers_lock(
    heap: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where GET_LOCK does not hold (another node of a cluster), the claims' own key lets one win."""
    monkeypatch.setattr(
        "spark_channel.connectors.mysql.write.loader.take_over", lambda session, name: None
    )
    writer, plan = ready(heap, "task")
    attempts = [writer.open(plan, 0, number) for number in range(2)]
    for task in attempts:
        task.write(ROWS.to_batches()[0])
        task.flush()
    with ThreadPoolExecutor(2) as pool:
        receipts = list(pool.map(lambda task: task.close(), attempts))
    assert receipts[0] == receipts[1]
    writer.commit(plan, receipts[:1])
    assert counted(heap) == (1000, 1000)


@BOTH
def test_a_connection_killed_at_its_commit(
    heap: Shop, monkeypatch: pytest.MonkeyPatch, commit: CommitMode
) -> None:
    """The server ends the session in which COMMIT is about to run; a task is tried again, as Spark does."""
    killed, real = [0], MysqlSession.rows

    def rows(self: MysqlSession, sql: str, parameters: Any = ()) -> Any:
        if sql == "COMMIT" and killed[0] < 3:
            killed[0] += 1
            heap.sql(f"KILL {self.id}")
        return real(self, sql, parameters)

    writer, plan = ready(heap, commit)
    monkeypatch.setattr(MysqlSession, "rows", rows)
    receipt: Receipt | None = None
    for attempt in range(5):
        try:
            receipt = run_task(writer, plan, 0, ROWS, attempt=attempt)
            break
        except TargetError as error:
            assert "were not committed" in str(error)  # noqa: PT017 - it may or may not be raised
    assert receipt is not None
    writer.commit(plan, [receipt])
    assert killed[0] == 3
    assert counted(heap) == (1000, 1000)
    assert heap.staged() == []


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (
            f"CREATE TRIGGER planted BEFORE UPDATE ON {CLAIMS} FOR EACH ROW SET NEW.state = 'published'",
            "it has the trigger 'planted'",
        ),
        (
            "CREATE TRIGGER planted AFTER INSERT ON spark_channel_tasks FOR EACH ROW DELETE FROM t",
            "it has the trigger 'planted'",
        ),
        (f"ALTER TABLE {CLAIMS} ENGINE=MyISAM", "its engine is MyISAM, not InnoDB"),
        (
            f"RENAME TABLE {CLAIMS} TO other; CREATE VIEW {CLAIMS} AS SELECT * FROM other",
            "it is a view",
        ),
    ],
)
def test_claims_that_cannot_be_trusted(heap: Shop, fault: str, reason: str) -> None:
    heap.write(ROWS.slice(0, 1))
    writer, plan = ready(heap, "task")
    heap.sql(fault)
    attempts: list[Callable[[], object]] = [
        lambda: heap.write(ROWS),
        lambda: run_task(writer, plan, 0, ROWS),
        lambda: writer.commit(plan, []),
    ]
    for attempt in attempts:
        with pytest.raises(TargetError, match=rf"cannot be trusted: {reason}\. Write with"):
            attempt()
    assert counted(heap) == (1, 1)


def test_staging_of_the_dead_goes_and_of_the_living_stays(
    heap: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    living, plan = ready(heap, "job", txn=None)
    receipt = run_task(living, plan, 0, ROWS)
    dead, dead_plan = ready(heap, "job", txn=None)
    run_task(dead, dead_plan, 0, ROWS)
    heap.sql(
        f"UPDATE {CLAIMS} SET beat_at = '2020-01-01T00:00:00Z', doubted_at = '2021-01-01T00:00:00Z'"
    )
    heap.sql(
        f"UPDATE {CLAIMS} SET process = REPLACE(process, '\"pid\":', '\"pid\":9') WHERE owner = 'job-2'"
    )
    third, _ = ready(heap, "job", txn=None)
    # No clock says that the first one, whose process runs here, is dead.
    assert len(heap.staged()) == 1
    living.commit(plan, [receipt])
    assert counted(heap) == (1000, 1000)
    assert heap.staged() == []
    assert third is not living


def test_staging_that_is_in_use_is_left_for_the_next_job(
    heap: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    first, plan = ready(heap, "job")
    run_task(first, plan, 0, ROWS)
    (stage,) = heap.staged()
    with MysqlSession(first.options, TargetError) as user:
        user.execute("START TRANSACTION")
        user.rows(f"SELECT * FROM {stage} LIMIT 1")
        with caplog.at_level(logging.WARNING), soon():
            second, replan = ready(heap, "job")
        assert heap.staged() == [stage]
        assert f".`{stage}` stays until a later job removes it" in caplog.text
    finish(second, replan)
    heap.write(ROWS.slice(0, 1))
    assert counted(heap) == (1001, 1000)
    assert heap.staged() == []


def test_an_attempt_whose_staging_was_dropped_says_who_took_over(heap: Shop) -> None:
    first, plan = ready(heap, "job")
    task = first.open(plan, 0, 0)
    task.write(ROWS.slice(0, 500).to_batches()[0])
    task.flush()
    second, replan = ready(heap, "job")
    with pytest.raises(SupersededError, match=r"run 'job-2' took over"):
        task.write(ROWS.slice(500).to_batches()[0])
    task.rollback()
    finish(second, replan)
    assert counted(heap) == (1000, 1000)
    assert heap.staged() == []


def test_exists_asks_the_catalog(heap: Shop) -> None:
    """A role that may insert, and not select, sees the table that it would write."""
    server = heap.server
    server.sql(
        f"CREATE OR REPLACE USER inserter@'127.0.0.1' IDENTIFIED BY 'x'; GRANT INSERT ON {heap.database}.t TO "
        "inserter@'127.0.0.1'"
    )
    try:
        assert heap.writer(user="inserter", password="x").exists() is True
    finally:
        server.sql("DROP USER inserter@'127.0.0.1'")
    url = heap.login["url"].rpartition("/")[0]
    assert heap.writer(f"{heap.database}.t", url=url).exists() is True
    assert heap.writer("nothing").exists() is False


@pytest.mark.parametrize(
    ("grants", "lacks"),
    [
        (
            ["USAGE ON *.* TO `u`@`%` IDENTIFIED BY PASSWORD '*1F'"],
            "SELECT s, CREATE s, INSERT s.t",
        ),
        (["SELECT, CREATE ON `s`.* TO `u`@`%`", "USAGE ON *.* TO `u`@`%`"], "INSERT s.t"),
        (["ALL PRIVILEGES ON `s`.* TO `u`@`%` WITH GRANT OPTION"], ""),
        (["ALL PRIVILEGES ON `a\\_b`.* TO `u`@`%`"], "SELECT s, CREATE s, INSERT s.t"),
        (["SELECT, INSERT, CREATE ON `%`.* TO `u`@`%`"], ""),
        (["SELECT (`a`, `b`), INSERT (`a`) ON `s`.`t` TO `u`@`%`"], "SELECT s, CREATE s"),
        (
            ["SELECT ON *.* TO 'u'@'%'", "EXECUTE ON PROCEDURE `s`.`p` TO 'u'@'%'"],
            "CREATE s, INSERT s.t",
        ),
        (
            ["USAGE ON *.* TO `u`@`%`", "`boss` TO `u`@`%`"],
            "",
        ),  # the rights of the role are not listed
    ],
)
def test_rights_are_those_of_show_grants(grants: list[str], lacks: str) -> None:
    class Grants:
        """A server that denies what is asked of it beside them."""

        def rows(self, sql: str) -> list[tuple[str]]:
            if sql == "SHOW GRANTS":
                return [(f"GRANT {each}",) for each in grants]
            if sql.startswith("EXPLAIN"):
                denied = pymysql.err.OperationalError(1142, "denied")
                raise TargetError("denied") from denied
            return []

    asked = [Right("s", "", "SELECT"), Right("s", "", "CREATE"), Right("s", "t", "INSERT")]
    found = MysqlDialect().lacking(cast(Any, Grants()), asked)
    said = ", ".join(f"{word} {'.'.join(filter(None, (a, b)))}" for a, b, word, _ in found.rights)
    assert said == lacks
    assert not lacks or found.role in ("`u`@`%`", "'u'@'%'")


def test_two_jobs_that_create_one_table(shop: Shop) -> None:
    def job(rows: pa.Table, **options: Any) -> Callable[[], None]:
        writer = shop.writer(**options)
        plan = writer.prepare(shop.context(), rows.schema)
        receipt = run_task(writer, plan, 0, rows)

        def commit() -> None:
            try:
                writer.commit(plan, [receipt])
            except BaseException:
                writer.abort(plan, None)
                raise

        return commit

    same = job(ROWS)
    other = job(ROWS.rename_columns(["id", "title"]))
    key = job(ROWS.slice(0, 1), writeMode="upsert", keyColumns="id")
    job(ROWS)()
    same()
    assert counted(shop) == (2000, 1000)
    message = r"another job created table 'shop_\w+\.t' while this one wrote its rows, with other columns: it has id "
    with pytest.raises(
        CommitError,
        match=message + r"bigint.*, name longtext, and this job would have created .*title",
    ):
        other()
    with pytest.raises(CommitError, match=r"does not hold \(id\) unique, as this job needs"):
        key()
    assert counted(shop) == (2000, 1000)
    assert shop.staged() == []


def test_a_publish_that_fails_drops_the_table_it_made_only_while_it_is_empty(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(CommitError, match="Nothing of this job is in table"):
        shop.write(ROWS, postSql="DELETE FROM nowhere")
    assert shop.rows("SHOW TABLES LIKE 't'") == []
    with pytest.raises(CommitError, match="Nothing of this job is in table"):
        # A statement that a user runs meanwhile: another session's row is in the table when the publish fails.
        _write_beside(shop)
    assert shop.rows("SELECT * FROM t") == [("-1", "kept")]


def _write_beside(shop: Shop) -> None:
    real = MysqlSession.rows

    def rows(self: MysqlSession, sql: str, parameters: Any = ()) -> Any:
        if sql == "DELETE FROM nowhere":
            shop.sql("INSERT INTO t VALUES (-1, 'kept')")
        return real(self, sql, parameters)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MysqlSession, "rows", rows)
        shop.write(ROWS, postSql="DELETE FROM nowhere")


def _overwrite_in_tasks(shop: Shop, size: int, tasks: int) -> None:
    schema = pa.schema({"id": pa.int64(), "code": pa.int64()})
    writer = shop.writer(batchSize="250")
    plan = writer.prepare(shop.context(overwrite=True, commit="task"), schema)
    together = threading.Barrier(tasks)

    def task(number: int) -> Receipt:
        attempt = writer.open(plan, number, number)
        try:
            together.wait(SECONDS)
            ids = range(1 + number, size + 1, tasks)
            for start in range(0, len(ids), 250):
                part = ids[start : start + 250]
                attempt.write(
                    pa.record_batch({"id": part, "code": [_code(each) for each in part]}, schema)
                )
            return attempt.close()
        except BaseException:
            attempt.rollback()
            raise

    with ThreadPoolExecutor(tasks) as pool:
        writer.commit(plan, list(pool.map(task, range(tasks))))


def _code(number: int) -> int:
    return number * 7919 % 20_011


def test_tasks_meet_the_rows_that_their_overwrite_deleted(shop: Shop) -> None:
    """InnoDB keeps deleted rows of a second unique key for a while, and locks them: the tasks deadlock on them."""
    size = 20_000
    shop.sql(
        "CREATE TABLE t (id BIGINT PRIMARY KEY, code BIGINT UNIQUE); "
        f"INSERT INTO t SELECT seq, seq * 7919 % 20011 FROM seq_1_to_{size}"
    )
    for _ in range(2):
        _overwrite_in_tasks(shop, size, 4)
        assert shop.rows("SELECT COUNT(*), COUNT(DISTINCT code), SUM(id) FROM t") == [
            (str(size), str(size), str(size * (size + 1) // 2))
        ]


def test_a_deadlocked_task_whose_rows_are_not_kept_is_told(
    heap: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_channel.connectors.mysql.write.loader._REPLAYED_BYTES", 0)
    heap.sql("ALTER TABLE t ADD PRIMARY KEY (id)")
    writer, plan = ready(heap, "task")
    task = writer.open(plan, 0, 0)
    task.write(ROWS.slice(0, 500).to_batches()[0])
    task.flush()
    with MysqlSession(writer.options, TargetError) as other, ThreadPoolExecutor(1) as pool:
        other.execute("START TRANSACTION")
        other.execute("INSERT INTO t SELECT seq, 'x' FROM seq_900_to_20000")  # the heavier one wins
        waiting = pool.submit(other.rows, "INSERT INTO t VALUES (1, 'x')")
        until_a_lock_waits(heap)
        with pytest.raises(
            TargetError,
            match=r"Deadlock.*are not kept to be sent again .*Spark runs the task again",
        ):
            task.write(ROWS.slice(900).to_batches()[0])
        task.rollback()
        waiting.result(SECONDS)
        other.execute("ROLLBACK")
    finish(writer, plan, attempt=1)
    assert counted(heap) == (1000, 1000)


def test_an_overwrite_and_the_tasks_of_an_append(keyed: Shop) -> None:
    """Each waits for the other's locks: the server ends one of them, which tries again. No row of the task is left."""
    append, plan = ready(keyed, "task", txn=None)
    task = append.open(plan, 0, 0)
    task.write(ROWS.to_batches()[0])
    task.flush()
    other = keyed.writer()
    replan = other.prepare(keyed.context(overwrite=True, commit="job"), ROWS.schema)
    receipt = run_task(other, replan, 0, ROWS.slice(0, 10))
    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(other.commit, replan, [receipt])
        try:
            until_a_lock_waits(keyed)
            with contextlib.suppress(SupersededError):  # the server chooses whom it ends
                task.close()
        finally:
            task.rollback()
        publishing.result(SECONDS)
    assert counted(keyed) == (10, 10)


@pytest.mark.parametrize("at", ["the first statement", "the work"])
def test_a_connection_that_is_always_lost_is_tried_with_pauses(
    heap: Shop, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    writer = heap.writer(retryTimeout="1")
    plan = writer.prepare(heap.context(commit="job"), ROWS.schema)
    receipt = run_task(writer, plan, 0, ROWS)
    real, lost = MysqlSession.rows, [0]

    def rows(self: MysqlSession, sql: str, parameters: Any = ()) -> Any:
        if at == "the first statement" or "GET_LOCK" in sql:
            lost[0] += 1
            raise LostConnectionError("the wire was cut")
        return real(self, sql, parameters)

    with monkeypatch.context() as patch:
        patch.setattr(MysqlSession, "rows", rows)
        with pytest.raises(ChannelError, match="the wire was cut"):
            writer.commit(plan, [receipt])
    assert 2 <= lost[0] <= 20
    writer.commit(plan, [receipt])
    assert counted(heap) == (1000, 1000)


@pytest.fixture(
    params=[{"lower_case_table_names": "1"}, {"log_bin": "b", "binlog_format": "STATEMENT"}],
    ids=str,
)
def odd_server(
    request: pytest.FixtureRequest, server_class: type[MariadbServer]
) -> Iterator[MariadbServer]:
    server = server_class.create(**request.param)
    yield server
    server.close()


def test_servers_that_are_set_up_otherwise(odd_server: MariadbServer) -> None:
    """One that knows tables by small letters, and one that refuses READ COMMITTED."""
    shop = Shop(odd_server, "shop")
    if "log_bin" not in odd_server.settings:
        shop.write(ROWS, dbtable="Orders", txn=PAIR)
        assert shop.write(ROWS, dbtable="orders", txn=PAIR).published_at is not None
        assert shop.rows("SELECT COUNT(*) FROM orders") == [("1000",)]
        return
    shop.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(50))")
    for commit in ("job", "task"):
        shop.write(ROWS.slice(0, 500), ROWS.slice(500), commit=commit, overwrite=True)
        assert counted(shop) == (1000, 1000)
    first, plan = ready(shop, "task", overwrite=True)
    second, replan = ready(shop, "task", overwrite=True)
    finish(second, replan)
    with pytest.raises(SupersededError):
        finish(first, plan)
    assert counted(shop) == (1000, 1000)


def test_batches_of_a_stream_wait_for_their_server(own_server: MariadbServer) -> None:
    """A job that starts fails immediately if no server answers; a query that runs tries for `retryTimeout`."""
    shop = Shop(own_server, "shop")
    shop.sql("CREATE TABLE t (id BIGINT, name VARCHAR(50))")
    own_server.stop()
    with pytest.raises(TargetError, match=r"127\.0\.0\.1"):
        shop.writer().prepare(WriteContext("j"), ROWS.schema)
    restart = threading.Timer(1.0, own_server.start)
    restart.start()
    writer = shop.writer()
    plan = writer.prepare(WriteContext("j", commit="job", stream=("query", 0)), ROWS.schema)
    restart.join()
    finish(writer, plan)
    assert counted(shop) == (1000, 1000)


@pytest.fixture
def own_server(server_class: type[MariadbServer]) -> Iterator[MariadbServer]:
    server = server_class.create()
    yield server
    server.close()
