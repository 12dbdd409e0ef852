"""A job that runs for days keeps its staging; that of a killed driver goes: each connector, two days later."""

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import Receipt, WriteContext, WritePlan, Writer, load_reader, load_writer
from spark_channel.connectors.sql import life
from spark_channel.connectors.sql.life import ORPHAN_SECONDS, SignOfLife
from spark_channel.errors import CommitError, TargetError
from spark_channel.testing import VirtualClock
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "v": ["a", "b", "c"]})
DAYS = 2 * ORPHAN_SECONDS


@dataclass
class Place:
    """`age` makes all that a job has recorded of itself two days older; `later` are options of who comes then."""

    options: dict[str, Any]
    age: Callable[[WritePlan], None]
    is_aged: Callable[[WritePlan], bool]
    is_gone: Callable[[WritePlan], bool]
    later: dict[str, Any] = field(default_factory=dict)

    def writer(self, **more: Any) -> Writer:
        return load_writer({**self.options, **more})[0]

    def ids(self) -> list[int]:
        reader = load_reader({("reader" if k == "writer" else k): v for k, v in self.options.items()})[0]
        reader.schema()
        batches = [batch for split in reader.split(1) for batch in reader.read(split)]
        return sorted(n for batch in batches for n in batch.column("id").to_pylist())

    def another_job_comes(self) -> None:
        other = self.writer(**self.later)
        other.abort(other.prepare(WriteContext("another", commit="job"), ROWS.schema), None)


def _in_files(plan: Any) -> list[Path]:
    staging = Path(plan.staging)
    return [staging, *staging.iterdir()] if staging.exists() else []


def _age_files(plan: Any) -> None:
    past = time.time() - DAYS
    for path in _in_files(plan):
        os.utime(path, (past, past))


def _files_are_aged(plan: Any) -> bool:
    return max(path.stat().st_mtime for path in _in_files(plan)) < time.time() - ORPHAN_SECONDS


@pytest.fixture(params=["sqlite", "duckdb", "adbc", "postgresql", "mysql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    kind, path = request.param, tmp_path / "shop.db"
    if kind in ("sqlite", "duckdb"):
        options = {"writer": kind, "path": str(path), "dbtable": "t"}
        yield Place(options, _age_files, _files_are_aged, lambda plan: not any(_in_files(plan)))
    elif kind in ("adbc", "postgresql"):
        server: PostgresServer = request.getfixturevalue("postgres_server")
        server.psql("CREATE SCHEMA life")
        yield _adbc(server) if kind == "adbc" else _postgresql(server)
        server.psql("SET client_min_messages = error; DROP SCHEMA life CASCADE")
    else:
        shop: MariadbServer = request.getfixturevalue("mariadb_server")
        shop.sql("CREATE DATABASE life")
        yield _mysql(shop)
        shop.sql("DROP DATABASE life")


def _adbc(server: PostgresServer) -> Place:
    """Through PostgreSQL's driver, by its name alone: the connector takes no lock there."""

    def age(plan: Any) -> None:
        server.psql(
            "UPDATE life.spark_channel_ledger SET published_at = '2020-01-01T00:00:00Z' "
            f"WHERE job = '{plan.job}'"
        )

    def is_aged(plan: Any) -> bool:
        return (
            server.psql(f"SELECT published_at FROM life.spark_channel_ledger WHERE job = '{plan.job}'")
            < "2021"
        )

    def is_gone(plan: Any) -> bool:
        found = f"SELECT 1 FROM pg_tables WHERE schemaname = 'life' AND tablename LIKE '{plan.staging}%'"
        return not server.psql(found)

    uri = server.url.replace("//", f"//{server.user}:{server.password}@")
    options = {"writer": "adbc", "driver": "postgresql", "uri": uri, "dbtable": "life.t"}
    return Place(options, age, is_aged, is_gone)


def _postgresql(server: PostgresServer) -> Place:
    def age(plan: Any) -> None:
        note = f'{{"job": "{plan.job}", "batch": null, "at": {round(time.time() - DAYS)}}}'
        server.psql(f"COMMENT ON TABLE life.{plan.stage} IS '{note}'")

    def is_aged(plan: Any) -> bool:
        note = server.psql(f"SELECT obj_description('life.{plan.stage}'::regclass, 'pg_class')")
        return str(round(time.time() - DAYS))[:5] in note

    def is_gone(plan: Any) -> bool:
        return server.psql(f"SELECT to_regclass('life.{plan.stage}') IS NULL") == "t"

    return Place({**server.login, "currentschema": "life", "dbtable": "t"}, age, is_aged, is_gone)


def _mysql(server: MariadbServer) -> Place:
    """The times at which the server made its tables cannot be changed: who comes later has a later clock."""
    login = {"url": f"mysql://127.0.0.1:{server.port}/life", "user": server.user, "password": server.password}

    def is_aged(plan: Any) -> bool:
        shown = server.sql(f"SELECT MAX(alive) FROM {plan.staging}job", database="life")
        return not shown.strip().isdigit() or int(shown) < time.time() + ORPHAN_SECONDS

    def age(_plan: Any) -> None: ...

    def is_gone(plan: Any) -> bool:
        return not server.sql(f"SHOW TABLES LIKE '{plan.staging}%'", database="life")

    later = {"sessioninitstatement": f"SET timestamp = {round(time.time() + DAYS)}"}
    return Place({**login, "dbtable": "t"}, age, is_aged, is_gone, later)


def _run(writer: Writer, plan: WritePlan, task: int) -> Receipt:
    attempt = writer.open(plan, task, task)
    attempt.write(ROWS.to_batches()[0])
    return attempt.close()


def test_tasks_that_run_days_later_keep_the_jobs_staging(place: Place) -> None:
    plan = place.writer().prepare(WriteContext("long", commit="job"), ROWS.schema)
    writer = place.writer(**place.later)
    place.age(plan)
    first = writer.open(plan, 0, 0)
    first.write(ROWS.to_batches()[0])
    first.flush()
    place.another_job_comes()  # while it runs
    place.age(plan)
    receipts = [first.close()]
    place.another_job_comes()  # and when it has ended, before the next begins
    receipts.append(_run(writer, plan, 1))
    place.another_job_comes()
    writer.commit(plan, receipts)
    assert place.ids() == [1, 1, 2, 2, 3, 3]


def test_an_attempt_without_rows_for_days_shows_life(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that is paused over a weekend, or a source that stalls."""
    plan = place.writer().prepare(WriteContext("paused", commit="job"), ROWS.schema)
    monkeypatch.setattr(life, "BEAT_SECONDS", 0.05)
    writer = place.writer(**place.later)
    attempt = writer.open(plan, 0, 0)
    place.age(plan)
    if "currentschema" not in place.options:  # it holds a lock instead
        deadline = time.monotonic() + 60
        while place.is_aged(plan):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    place.another_job_comes()
    attempt.write(ROWS.to_batches()[0])
    writer.commit(plan, [attempt.close()])
    assert place.ids() == [1, 2, 3]


def test_what_a_killed_driver_left_goes(place: Place) -> None:
    writer = place.writer()
    plan = writer.prepare(WriteContext("killed", commit="job"), ROWS.schema)
    receipt = _run(writer, plan, 0)
    assert not place.is_gone(plan)
    place.age(plan)
    place.another_job_comes()
    assert place.is_gone(plan)
    with pytest.raises(CommitError):
        writer.commit(plan, [receipt])
    writer.abort(plan, None)


def _thread() -> threading.Thread:
    return [each for each in threading.enumerate() if each.name == "spark-channel-life"][-1]


def test_life_is_shown_at_every_beat_until_the_end() -> None:
    clock = VirtualClock()
    shown: list[float] = []

    def show() -> None:
        shown.append(clock.now())
        if len(shown) == 2:
            raise TargetError("the database is away")

    sign = SignOfLife(show, seconds=3600, clock=clock)
    thread = _thread()
    clock.wait_until_blocked(thread)
    for _ in range(3):
        clock.advance(3600)
        clock.wait_until_blocked(thread)
    sign.end()
    sign.end()
    assert not thread.is_alive()
    clock.advance(7200)
    assert shown == [3600, 7200, 10800]


def test_an_attempt_that_is_forgotten_shows_no_life() -> None:
    sign = SignOfLife(lambda: None, seconds=3600)
    thread = _thread()
    del sign
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()
