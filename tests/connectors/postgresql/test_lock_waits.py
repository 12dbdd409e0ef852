"""An overwrite needs the whole table for itself, and waits for that so shortly that no application queues for long."""

import threading
import time
from contextlib import suppress

import pyarrow as pa
import pytest

from spark_channel.errors import ChannelError
from spark_channel.options import CommitMode
from tests.connectors.postgresql.pg import Pg

BOTH = pytest.mark.parametrize("commit", ["job", "task"])
ROWS = pa.table({"id": pa.array([7, 8], pa.int64())})


class _Reader:
    """A session that reads the table in a transaction of so many seconds, or until it is ended."""

    def __init__(self, pg: Pg, seconds: float) -> None:
        self._pg = pg
        self._held = threading.Thread(target=self._read, args=(seconds,))
        self._held.start()
        deadline = time.monotonic() + 10
        while pg.psql("SELECT count(*) FROM pg_locks WHERE relation = 't'::regclass") == "0":
            assert time.monotonic() < deadline

    def _read(self, seconds: float) -> None:
        with suppress(RuntimeError):  # it was ended
            self._pg.psql(f"BEGIN; SELECT count(*) FROM t; SELECT pg_sleep({seconds}); COMMIT")

    def end(self) -> None:
        self._pg.psql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(%' "
            "AND pid <> pg_backend_pid()"
        )
        self._held.join()

    def join(self) -> None:
        self._held.join()


@BOTH
def test_queries_of_the_application_wait_no_longer_than_the_lock_is_waited_for(
    pg: Pg, commit: CommitMode
) -> None:
    pg.psql("CREATE TABLE t (id bigint); INSERT INTO t VALUES (1)")
    held = _Reader(pg, 7)
    longest, ended = 0.0, threading.Event()

    def query() -> None:
        nonlocal longest
        while not ended.wait(0.05):
            begun = time.monotonic()
            pg.psql("SELECT count(*) FROM t")
            longest = max(longest, time.monotonic() - begun)

    application = threading.Thread(target=query)
    application.start()
    try:
        pg.write(ROWS, overwrite=True, commit=commit)
    finally:
        ended.set()
        application.join()
        held.join()
    assert pg.psql("SELECT id FROM t ORDER BY id") == "7\n8"
    assert longest < 4.5  # 2 s, and what this machine takes to start psql


@BOTH
@pytest.mark.parametrize("truncate", ["true", "false"])
def test_a_lock_that_is_never_had_is_an_error_that_says_what_to_do(
    pg: Pg, commit: CommitMode, truncate: str
) -> None:
    pg.psql("CREATE TABLE t (id bigint); INSERT INTO t VALUES (1)")
    held = _Reader(pg, 60)
    try:
        with pytest.raises(
            ChannelError, match=r"could not be locked, which an overwrite needs.*'retryTimeout'"
        ):
            pg.write(ROWS, overwrite=True, commit=commit, truncate=truncate, retryTimeout=3)
    finally:
        held.end()
    assert pg.psql("SELECT id FROM t ORDER BY id") == "1"


def test_a_shorter_timeout_of_the_dbas_is_kept(pg: Pg) -> None:
    """And is what holds after the lock was had."""
    from spark_channel.connectors.postgresql.write.staged_rows import patient_lock
    from spark_channel.connectors.sql.catalog import TargetTable

    writer = pg.writer("t")
    with writer.database.connect(ChannelError, "test", patient=False) as session:  # type: ignore[arg-type] # any will do
        for before, within in (("0", "2s"), ("500ms", "500ms"), ("10s", "2s")):
            session.execute(f"SET lock_timeout = '{before}'")
            session.execute("BEGIN")
            with patient_lock(session, TargetTable("s", "t", "s.t", "t")):
                assert session.value("SELECT current_setting('lock_timeout')") == within
            assert session.value("SELECT current_setting('lock_timeout')") == before
            session.execute("COMMIT")
            assert session.value("SELECT current_setting('lock_timeout')") == before
