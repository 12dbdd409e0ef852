"""Columns that the catalog calls NOT NULL, and that hold NULL: every row with one is read, however the read is cut."""

from collections.abc import Iterator

import pytest

from spark_channel.connectors.base.contract import FetchSize
from spark_channel.connectors.postgresql import PostgresReader
from tests.connectors.postgresql.pg import Pg
from tests.servers.postgres import PostgresServer


@pytest.fixture(scope="module", params=["", "18"])
def postgres_server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """Of Debian, and the first version in which NOT NULL may be NOT VALID."""
    server = PostgresServer.create(version=request.param)
    yield server
    server.close()


NOT_VALID = """
CREATE TABLE t (id int, ref int, v text);
INSERT INTO t SELECT g, CASE WHEN g % 5 = 0 THEN NULL ELSE g END, 'v' FROM generate_series(1, 500) g;
CREATE UNIQUE INDEX ON t (ref);
ALTER TABLE t ADD CONSTRAINT there NOT NULL ref NOT VALID;
"""
INHERITED = """
CREATE TABLE t (id int, ref int, v text);
CREATE TABLE child () INHERITS (t);
ALTER TABLE ONLY t ADD CONSTRAINT there CHECK (ref IS NOT NULL) NO INHERIT;
{declare}
CREATE UNIQUE INDEX ON t (ref);
INSERT INTO t SELECT g, g, 'v' FROM generate_series(1, 400) g;
INSERT INTO child SELECT g, NULL, 'v' FROM generate_series(401, 500) g;
"""
GRANDCHILD = """
CREATE TABLE t (id int, ref int NOT NULL, v text);
CREATE TABLE child () INHERITS (t);
CREATE TABLE grandchild () INHERITS (child);
CREATE UNIQUE INDEX ON t (ref);
ALTER TABLE grandchild ALTER ref DROP NOT NULL;
INSERT INTO t SELECT g, g, 'v' FROM generate_series(1, 400) g;
INSERT INTO grandchild SELECT g, NULL, 'v' FROM generate_series(401, 500) g;
"""
FOREIGN = """
CREATE EXTENSION IF NOT EXISTS file_fdw;
CREATE SERVER {schema} FOREIGN DATA WRAPPER file_fdw;
CREATE TABLE t (id int, ref int NOT NULL, v text) PARTITION BY RANGE (id);
CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (401);
CREATE FOREIGN TABLE t2 PARTITION OF t FOR VALUES FROM (401) TO (1000) SERVER {schema}
  OPTIONS (program 'seq 401 500 | sed s/$/,,v/', format 'csv');
CREATE INDEX ON t1 (ref);
INSERT INTO t1 SELECT g, g, 'v' FROM generate_series(1, 400) g;
"""


def made(pg: Pg, kind: str) -> None:
    """500 rows, of which 100 have no `ref`."""
    is_new = pg.server.version == "18"
    if kind == "not valid":
        if not is_new:
            pytest.skip("NOT NULL is always valid before version 18")
        pg.psql(NOT_VALID)
    elif kind == "inherited":
        no_inherit = "ALTER TABLE t ADD CONSTRAINT own NOT NULL ref NO INHERIT;"
        pg.psql(
            INHERITED.format(
                declare=no_inherit if is_new else "ALTER TABLE ONLY t ALTER ref SET NOT NULL;"
            )
        )
    elif kind == "grandchild":
        if is_new:
            pytest.skip("a constraint that is inherited cannot be dropped from version 18 on")
        pg.psql(GRANDCHILD)
    else:
        pg.psql(FOREIGN.format(schema=pg.schema))


def ids(reader: PostgresReader, advice: int) -> list[int]:
    reader.schema()
    with reader.reading() as read:
        return sorted(
            row["id"]
            for split in reader.split(advice)
            for batch in read(split)
            for row in batch.to_pylist()
        )


@pytest.mark.parametrize("kind", ["not valid", "inherited", "grandchild", "foreign"])
def test_rows_with_null_are_read_by_every_cut(pg: Pg, kind: str) -> None:
    made(pg, kind)
    wanted = list(range(1, 501))
    for advice in (1, 4):
        assert ids(pg.reader("t"), advice) == wanted
        assert ids(pg.reader("t", statementSeconds="1"), advice) == wanted
        assert ids(pg.reader("t", partitionColumn="ref"), advice) == wanted
        assert ids(pg.reader("t", partitionColumn="ref", statementSeconds="1"), advice) == wanted
        limited = pg.reader("t")
        limited.fetch_size = FetchSize(rows=50)
        assert ids(limited, advice) == wanted


@pytest.mark.parametrize("kind", ["not valid", "inherited", "foreign"])
def test_a_column_that_holds_null_is_not_followed(pg: Pg, kind: str) -> None:
    from spark_channel.connectors.base.feed import FeedOptions
    from spark_channel.errors import OptionError

    made(pg, kind)
    with pytest.raises(OptionError, match="'ref', which is read as NULL in at least one row"):
        pg.reader("t").feed(FeedOptions(cursor_column="ref"))


def test_a_constraint_that_was_validated_makes_a_key(pg: Pg) -> None:
    if pg.server.version != "18":
        pytest.skip("NOT NULL is always valid before version 18")
    pg.psql(NOT_VALID)
    pg.psql("UPDATE t SET ref = id WHERE ref IS NULL; ALTER TABLE t VALIDATE CONSTRAINT there")
    reader = pg.reader("t", statementSeconds="1")
    reader.schema()
    assert reader.may_be_finer(reader.split(2))  # in short statements
