"""A source under a limit sends at most 1.5 s of the limit ahead of the rows that were let through."""

import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from spark_channel.connectors import FetchSize, load_reader
from spark_channel.connectors.sql import SqlReader
from spark_channel.limits import RateLimiter
from spark_channel.options import CommonOptions
from spark_channel.pipeline import GroupRead
from spark_channel.planning import Split, assign_fairly, merge_tasks
from spark_channel.transfers.limits import JobLimits
from tests.servers.postgres import PostgresServer
from tests.servers.sockets import queued_bytes

pytestmark = pytest.mark.real_time

RATE = 20_000
SECONDS = 3.0
AHEAD = 1.5
COPY_ROW_BYTES = 32
"""Approximate size of these rows on the wire."""


class Watched:
    """A limited read of one group in this process, and how far the source was ahead, sampled while it ran."""

    def __init__(self, options: dict[str, str], channels: int) -> None:
        reader, _ = load_reader({**options, "rowsPerSecond": str(RATE)})
        common, _ = CommonOptions.parse({"rowsPerSecond": RATE})
        reader.fetch_size = JobLimits.from_options(common).fetch_size(channels)
        self._fetched = 0
        self._lock = threading.Lock()
        # Rows that left the source are counted here: rows of a database when they come, before the statement has ended.
        name = "short_batches" if isinstance(reader, SqlReader) else "read"
        plain = getattr(reader, name)

        def counted(*given: Any) -> Any:
            for batch in plain(*given):
                with self._lock:
                    self._fetched += batch.num_rows
                yield batch

        setattr(reader, name, counted)
        schema = reader.schema()
        (group,) = assign_fairly(merge_tasks(reader.split(channels)), channels, channels)
        self._group = GroupRead(
            reader,
            group,
            schema,
            limiter=RateLimiter(RATE),
            capacity_rows=1 << 20,
            capacity_bytes=64 << 20,
        )
        self.ahead = 0
        self.passed = 0

    def ahead_now(self) -> int:
        """Rows that were fetched, and not let through by the limit."""
        with self._lock:
            fetched = self._fetched
        return fetched - self._group.statistics().rows_pushed

    def run(self) -> None:
        end = time.monotonic() + SECONDS
        for batch in self._group.batches():
            self.ahead = max(self.ahead, self.ahead_now())
            self.passed += batch.num_rows
            if time.monotonic() > end:
                self._group.cancel()
                return


def table(rows: int) -> pa.Table:
    return pa.table({"id": range(rows), "text": [f"row number {row}" for row in range(rows)]})


def test_reads_that_spend_one_limit_share_what_is_fetched_ahead() -> None:
    common, _ = CommonOptions.parse({"rowsPerSecond": RATE, "bytesPerSecond": 100 * RATE})
    limits, split = JobLimits.from_options(common), Split({}, 1_000, 1_000_000)
    one, two = limits.fetch_size(4), limits.fetch_size(4, reads=2)
    assert (one.rows, one.nbytes) == (RATE // 8, 100 * RATE // 8)
    assert (two.rows, two.nbytes) == (RATE // 16, 100 * RATE // 16)
    assert two.rows_per_second == one.rows_per_second == RATE / 4
    assert two.lasts(split) == one.lasts(split)
    unlimited, _ = CommonOptions.parse({})
    assert JobLimits.from_options(unlimited).fetch_size(4, reads=2) == FetchSize()


@pytest.mark.parametrize("form", ["csv", "parquet", "arrow", "sqlite"])
@pytest.mark.parametrize("channels", [1, 4])
def test_a_source_is_at_most_a_second_and_a_half_ahead(
    tmp_path: Path, form: str, channels: int
) -> None:
    rows = 400_000
    options = {"path": str(tmp_path / f"source.{form}")}
    if form == "csv":
        pyarrow.csv.write_csv(table(rows), options["path"])
    elif form == "parquet":
        pyarrow.parquet.write_table(table(rows), options["path"])
    elif form == "arrow":
        with (
            pa.OSFile(options["path"], "wb") as sink,
            pa.ipc.new_file(sink, table(1).schema) as writer,
        ):
            writer.write_table(table(rows))
    else:
        import sqlite3

        with sqlite3.connect(options["path"]) as connection:
            connection.execute("create table t (id integer primary key, text text)")
            connection.executemany(
                "insert into t values (?, ?)", ((n, f"row {n}") for n in range(rows))
            )
        connection.close()
        options["dbtable"] = "t"
    watched = Watched(options, channels)
    watched.run()
    assert watched.passed > RATE, "the limit was reached"
    assert 0 < watched.ahead <= AHEAD * RATE


@pytest.mark.parametrize("channels", [1, 4])
def test_postgresql_and_its_sockets_are_at_most_that_far_ahead(
    postgres_server: PostgresServer, channels: int
) -> None:
    """Rows in the kernel's buffers have left the server, too."""
    postgres_server.psql(
        "create table ahead as select n as id, 'row number ' || n as text from generate_series(1, 400000) n;"
        "alter table ahead add primary key (id)"
    )
    options = {**postgres_server.login, "url": postgres_server.url, "dbtable": "ahead"}
    watched = Watched(options, channels)
    ahead: list[int] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.02):
            ahead.append(watched.ahead_now() + queued_bytes(postgres_server.port) // COPY_ROW_BYTES)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        watched.run()
    finally:
        ended.set()
        looking.join()
        postgres_server.psql("drop table ahead")
    assert watched.passed > RATE
    assert max(watched.ahead, *ahead) <= AHEAD * RATE
