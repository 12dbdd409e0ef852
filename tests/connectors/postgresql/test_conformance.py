"""The PostgreSQL connector keeps the contract that every connector keeps."""

import pyarrow as pa
import pytest

from spark_channel.options import CommitMode
from spark_channel.testing import reader_conformance, writer_conformance
from tests.connectors.postgresql.pg import Pg
from tests.connectors.sql.micro_batches import hold_to_once

pytestmark = pytest.mark.real_server("PostgreSQL", "postgresql")

LIMITED = {"rowsPerSecond": "1M", "capacityBytes": "4KiB"}


def people() -> pa.Table:
    return pa.table(
        {"id": pa.array(range(60), pa.int64()), "name": [f"name {n}" for n in range(60)]}
    )


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(
            "keyed", marks=pytest.mark.soak
        ),  # as in tests/connectors/sql/read/test_reader.py
        "without_key",
        "view",
        "partitioned",
    ],
)
def test_the_reader_keeps_the_contract(pg: Pg, source: str) -> None:
    pg.psql(
        "CREATE TABLE keyed (id bigint PRIMARY KEY, name text);"
        "INSERT INTO keyed SELECT g, 'name ' || g FROM generate_series(0, 59) g;"
        "CREATE TABLE without_key AS SELECT * FROM keyed;"
        "CREATE VIEW view AS SELECT * FROM keyed;"
        "CREATE TABLE partitioned (id bigint PRIMARY KEY, name text) PARTITION BY RANGE (id);"
        "CREATE TABLE p1 PARTITION OF partitioned FOR VALUES FROM (0) TO (40);"
        "CREATE TABLE p2 PARTITION OF partitioned FOR VALUES FROM (40) TO (1000);"
        "INSERT INTO partitioned SELECT * FROM keyed"
    )
    reader_conformance(lambda: pg.reader(source), expected=people())
    assert pg.server.connections() == 0


def check_writer(pg: Pg, commit: CommitMode, *, there: bool, more: dict[str, str]) -> None:
    """Check that the writer of a table meets the contract; whether the table is there, and with more options."""
    if there:
        pg.psql("CREATE TABLE t (id bigint, name text); INSERT INTO t VALUES (-1, 'first')")

    def read_back() -> pa.Table | None:
        exists = pg.psql("SELECT to_regclass('t') IS NOT NULL") == "t"
        return pg.read("t") if exists else None

    writer_conformance(
        lambda: pg.writer("t", retryTimeout=5, **more),
        read_back=read_back,
        commits=[commit],
        leftovers=pg.staged,
    )
    assert pg.server.connections() == 0


@pytest.mark.parametrize(
    ("commit", "there", "more"),
    [
        pytest.param("job", True, {}, marks=pytest.mark.soak),
        ("job", False, {}),
        ("task", True, {}),
        pytest.param("task", False, {}, marks=pytest.mark.soak),
        ("task", True, LIMITED),
    ],
)
def test_the_writer_keeps_the_contract(
    pg: Pg, commit: CommitMode, there: bool, more: dict[str, str]
) -> None:
    check_writer(pg, commit, there=there, more=more)


def test_a_batch_of_a_stream_is_published_once(pg: Pg) -> None:
    hold_to_once(
        pg.writer, lambda: [int(each) for each in pg.psql("SELECT id FROM t ORDER BY id").split()]
    )
    assert pg.staged() == []
