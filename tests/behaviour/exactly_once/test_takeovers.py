"""Who holds a claim: a takeover that fails, long names of runs, and a table's name in several spellings."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from spark_channel.connectors import Receipt, WriteContext, WritePlan, Writer, load_writer
from spark_channel.connectors.postgresql.session import PgWriteSession
from spark_channel.connectors.sql.write.claims import Claims
from spark_channel.connectors.sql.write.sessions import Verdict
from spark_channel.errors import SupersededError, TargetError
from spark_channel.options import CommitMode
from tests.behaviour.exactly_once.targets import KINDS, Target, open_target

ROWS = pa.record_batch({"id": pa.array([1, 2], pa.int64())})
PAIR = ("n", 1)


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    for target in open_target(request.param, request, tmp_path):
        target.reset(True)
        yield target


def _task(writer: Writer, plan: WritePlan, attempt: int = 1) -> Receipt:
    task = writer.open(plan, 0, attempt)
    try:
        task.write(ROWS)
        return task.close()
    except BaseException:
        task.rollback()
        raise


def _context(job: str, mode: CommitMode = "job") -> WriteContext:
    return WriteContext(job, commit=mode, txn=PAIR)


@pytest.mark.parametrize("mode", ["job", "task"])
def test_a_takeover_that_fails_leaves_the_live_run_its_claim(
    target: Target, mode: CommitMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (target.kind, mode) == ("duckdb", "task"):
        pytest.skip("DuckDB has no commit=task")
    live, later = target.writer(), target.writer()
    plan = live.prepare(_context("live", mode), ROWS.schema)
    receipts = [_task(live, plan)] if mode == "job" else []

    def fail(*_: Any, **__: Any) -> None:
        raise TargetError("the disk is full")

    database = cast(Any, later).database
    if mode == "job":
        monkeypatch.setattr(database, "make_staging", fail)
    else:
        monkeypatch.setattr(database, "make_ready", fail)
    with pytest.raises(TargetError, match="the disk is full"):
        later.prepare(_context("later", mode), ROWS.schema)
    live.commit(plan, receipts or [_task(live, plan)])
    assert target.seen() == Counter([1, 2])
    assert target.staged() == []
    owner = f"SELECT owner, epoch FROM {target.claims} WHERE kind = 'txn'"
    assert target.sql(owner) == [("live", "1")]


def test_a_takeover_that_fails_leaves_the_next_run_its_staging(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives the claim back with its epoch: the run that begins then gets the same one, which names its staging."""
    live, later, next_one = target.writer(), target.writer(), target.writer()
    live.prepare(_context("live"), ROWS.schema)
    released: list[bool] = []
    begun: list[tuple[WritePlan, Receipt]] = []
    release = Claims.release

    def fail(_run: str) -> None:
        raise TargetError("the server has no room")

    def is_released(claims: Claims, *given: Any) -> list[Receipt]:
        released.append(True)
        return release(claims, *given)

    def begin() -> None:
        plan = next_one.prepare(_context("next"), ROWS.schema)
        begun.append((plan, _task(next_one, plan)))

    database = cast(Any, later).database
    staging_names = database.staging_names

    def begin_behind_the_claim(*given: Any) -> list[str]:
        if released and not begun:
            begin()
        names: list[str] = staging_names(*given)
        return names

    monkeypatch.setattr(database, "traits", replace(database.traits, ends_sessions=fail))
    monkeypatch.setattr(Claims, "release", is_released)
    monkeypatch.setattr(database, "staging_names", begin_behind_the_claim)
    with pytest.raises(TargetError, match="no room"):
        later.prepare(_context("later"), ROWS.schema)
    assert released
    if not begun:
        begin()
    ((plan, receipt),) = begun
    next_one.commit(plan, [receipt])
    assert target.seen() == Counter([1, 2])
    assert target.staged() == []


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
def test_a_takeover_whose_connection_is_lost_still_ends_the_sessions_of_the_other_run(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it tries again, the claim is its own, and says nothing of the run before."""
    live, later = target.writer(), target.writer()
    live.prepare(_context("live"), ROWS.schema)
    ended: list[str] = []
    release = Claims.release

    def end_sessions(run: str) -> str | None:
        ended.append(run)
        if len(ended) == 1:
            raise TargetError("the connection was lost")
        return None

    def lost_at_first(claims: Claims, *given: Any) -> list[Receipt]:
        if len(ended) == 1:
            raise TargetError("the connection was lost")
        return release(claims, *given)

    database = cast(Any, later).database
    monkeypatch.setattr(database, "traits", replace(database.traits, ends_sessions=end_sessions))
    monkeypatch.setattr(database, "verdict", lambda _error: Verdict.LOST)
    monkeypatch.setattr(Claims, "release", lost_at_first)
    plan = later.prepare(_context("later"), ROWS.schema)
    assert ended == ["live", "live"]
    later.commit(plan, [_task(later, plan)])
    assert target.seen() == Counter([1, 2])


@pytest.mark.parametrize("target", ["postgresql"], indirect=True)
def test_a_task_whose_session_was_ended_before_its_transaction_says_who_took_over(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not only, as the server does, that an administrator ended its session."""
    first, later = target.writer(), target.writer()
    plan = first.prepare(_context("first", "task"), ROWS.schema)
    start = PgWriteSession.start

    def start_late(session: PgWriteSession, begin: str) -> None:
        monkeypatch.undo()
        later.prepare(_context("later", "task"), ROWS.schema)
        start(session, begin)

    monkeypatch.setattr(PgWriteSession, "start", start_late)
    with pytest.raises(SupersededError, match="run 'later' took over"):
        first.open(plan, 0, 1)


def test_names_of_runs_may_have_any_length(target: Target) -> None:
    """The claim distinguishes two runs whose names differ only after the length that a column holds."""
    first, second = target.writer(), target.writer()
    older = first.prepare(_context("j" * 400 + "1"), ROWS.schema)
    receipt = _task(first, older)
    later = second.prepare(_context("j" * 400 + "2"), ROWS.schema)
    with pytest.raises(SupersededError):
        first.commit(older, [receipt])
    second.commit(later, [_task(second, later)])
    again = second.prepare(_context("j" * 400 + "3"), ROWS.schema)
    assert again.published_at is not None
    assert target.seen() == Counter([1, 2])
    assert target.staged() == []


@pytest.mark.parametrize("there", [False, True], ids=["new", "empty"])
@pytest.mark.parametrize("kind", ["sqlite", "duckdb", "adbc"])
def test_two_spellings_of_a_new_table_are_one_write(kind: str, there: bool, tmp_path: Path) -> None:
    path = tmp_path / "shop"

    def writer(name: str) -> Writer:
        options = {"writer": kind, "path": str(path), "dbtable": name}
        if kind == "adbc":
            options = {"writer": kind, "driver": "sqlite", "uri": f"file:{path}", "dbtable": name}
        return load_writer(options)[0]

    if there:
        other = writer("other")
        plan = other.prepare(WriteContext("other"), ROWS.schema)
        other.commit(plan, [_task(other, plan)])
    first, second = writer("Orders"), writer("oRDERS")
    older = first.prepare(_context("older"), ROWS.schema)
    receipt = _task(first, older)
    later = second.prepare(_context("later"), ROWS.schema)
    second.commit(later, [_task(second, later)])
    try:
        first.commit(older, [receipt])
    except SupersededError:
        pass
    third = writer("ORDERS")
    plan = third.prepare(WriteContext("third"), ROWS.schema)
    third.commit(plan, [_task(third, plan)])
    assert writer("orders").prepare(_context("again"), ROWS.schema).published_at is not None
    assert _count(kind, path) == 4


def test_letters_that_a_database_tells_apart_are_two_tables(tmp_path: Path) -> None:
    """SQLite folds A to Z and no other letters."""
    for name in ("\u00c4", "\u00e4"):
        writer = load_writer({"path": str(tmp_path / "shop.db"), "dbtable": name})[0]
        plan = writer.prepare(_context("job"), ROWS.schema)
        assert plan.published_at is None
        writer.commit(plan, [_task(writer, plan)])


def _count(kind: str, path: Path) -> int:
    if kind == "duckdb":
        import duckdb

        with duckdb.connect(str(path)) as connection:
            (count,) = connection.execute("SELECT count(*) FROM orders").fetchall()[0]
            return int(count)
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT count(*) FROM orders").fetchall()[0][0])
