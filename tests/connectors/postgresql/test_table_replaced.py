"""A table that is swapped, altered or emptied between two statements of a limited read: the read ends by name."""

import pytest

from spark_channel.errors import SourceError
from tests.connectors.postgresql.pg import Pg
from tests.connectors.sql.changing import check_change, check_no_change, limited, rows_read

_MADE = """
DROP TABLE IF EXISTS t, other, old;
CREATE TABLE t (id int PRIMARY KEY, at timestamp, v text);
INSERT INTO t SELECT g, '2024-01-01', 'old' FROM generate_series(1, 60) g;
CREATE TABLE other (LIKE t INCLUDING ALL);
INSERT INTO other SELECT g, '2024-01-01', 'new' FROM generate_series(1, 60) g;
"""
_FILL = "INSERT INTO t SELECT g, '2024-01-01', 'new' FROM generate_series(1, 60) g"
CHANGES = {
    "swap": (
        "ALTER TABLE t RENAME TO old; ALTER TABLE other RENAME TO t",
        "another table took its name",
    ),
    "made again": ("DROP TABLE t; ALTER TABLE other RENAME TO t", "another table took its name"),
    "dropped": ("DROP TABLE t", "it was dropped or renamed"),
    "type": (
        "ALTER TABLE t ALTER at TYPE timestamptz",
        "the type of column 'at' was changed from timestamp without time zone to timestamp with time zone",
    ),
    "key's type": (
        "ALTER TABLE t ALTER id TYPE text",
        "the type of column 'id' was changed from integer to text",
    ),
    "column": ("ALTER TABLE t RENAME v TO w", "column 'v' was dropped or renamed"),
    "truncate": (f"TRUNCATE t; {_FILL}", "it was emptied by TRUNCATE"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_two_statements_ends_the_read(pg: Pg, change: str) -> None:
    act, says = CHANGES[change]
    check_change(
        lambda: pg.reader("t", statementSeconds="5"),
        lambda: pg.psql(_MADE),
        lambda: pg.psql(act),
        says,
    )


@pytest.mark.parametrize(
    "act",
    [
        "VACUUM FULL t",
        "CLUSTER t USING t_pkey",
        "VACUUM FREEZE t",
        "ALTER TABLE t ADD more int DEFAULT 1",
        "CREATE INDEX ON t (v); ANALYZE t; GRANT SELECT ON t TO public",
    ],
)
def test_what_keeps_the_rows_does_not_end_the_read(pg: Pg, act: str) -> None:
    check_no_change(
        lambda: pg.reader("t", statementSeconds="5"),
        lambda: pg.psql(_MADE),
        lambda: [pg.psql(each) for each in act.split(";")],
    )


def test_splits_of_one_job_read_one_table(pg: Pg) -> None:
    for native in (False, True):
        pg.psql(_MADE)
        reader = pg.reader("t")
        reader.schema()
        splits = reader.split(3)
        if native:
            assert reader.native_rows(splits) is not None
            reader.native = True
        with reader.reading() as read:
            assert list(read(splits[0]))
            pg.psql(CHANGES["swap"][0])
            with pytest.raises(SourceError, match="not the table any more"):
                list(read(splits[1]))


def test_the_check_costs_no_exchange(pg: Pg) -> None:
    """The server counts the statements that it runs; a short statement is one, with the check or without it."""
    pg.psql(_MADE)
    reader = limited(pg.reader("t", statementSeconds="5"))
    rows_read(reader)
    source = reader._source
    assert source is not None
    assert source.same_table is not None
    plan = pg.psql(f"EXPLAIN (ANALYZE, COSTS OFF) {source.sql(['1'], ['id > 20'])} ORDER BY id")
    assert "One-Time Filter" in plan
    assert "loops=60" not in plan
