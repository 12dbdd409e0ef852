"""The SQL of short statements: each row once, in the order of its key, whatever the key is made of."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_channel.connectors import FetchSize
from spark_channel.connectors.sql import Column, Dialect, ReadColumn, ReadSource, Session, Table
from spark_channel.connectors.sql.catalog import KeyColumn
from spark_channel.connectors.sql.read.keyset import Keyset, keyset_of
from spark_channel.planning import Split
from tests.connectors.mysql.shop import (
    Shop,
)
from tests.connectors.postgresql.pg import (
    Pg,
)

_FIXTURES = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


class _Standard(Dialect):
    """The defaults, and nothing else."""

    product = "a database"
    ordered_keys: tuple[tuple[KeyColumn, ...], ...] = ()
    index: tuple[str, ...] = ()

    def find_table(self, session: Session, text: str) -> Table | None:
        raise NotImplementedError

    def table_names(self, session: Session) -> list[str]:
        raise NotImplementedError

    def describe(self, session: Session, query: str) -> tuple[Column, ...]:
        raise NotImplementedError

    def arrow_type(self, column: Column) -> pa.DataType:
        return pa.int64() if column.declared == "int" else pa.string()

    def keys(self, table: Table) -> Sequence[tuple[KeyColumn, ...]]:
        return self.ordered_keys or super().keys(table)

    def finds(self, table: Table, columns: Sequence[str]) -> bool:
        return tuple(columns) == self.index


class _RowValues(_Standard):
    row_values = True


def _source(dialect: _Standard, *, unique: Sequence[tuple[str, ...]] = (("a", "b"),)) -> ReadSource:
    columns = (
        Column("a", "int", not_null=True),
        Column("b", "text", not_null=True),
        Column("c", "int"),
    )
    table = Table("", "t", columns, unique=tuple(unique), primary=unique[0] if unique else ())
    read = tuple(
        ReadColumn(each.name, each.declared, dialect.arrow_type(each), f'"t"."{each.name}"')
        for each in columns
    )
    return ReadSource(dialect, '"t"', "t", table, columns, read)


def _keyset(dialect: _Standard, params: dict[str, Any] | None = None) -> Keyset:
    found = keyset_of(_source(dialect), Split(params or {"kind": "all"}))
    assert found is not None
    return found


def test_a_key_of_one_index_range_is_one_condition() -> None:
    assert _keyset(_RowValues()).steps([5, "x'y"]) == [['("t"."a", "t"."b") > (5, \'x\'\'y\')']]


def test_elsewhere_each_step_is_a_range_of_the_index() -> None:
    assert _keyset(_Standard()).steps([5, "x"]) == [
        ['"t"."a" = 5', '"t"."b" > \'x\''],
        ['"t"."a" > 5'],
    ]


def test_an_index_that_goes_down_is_read_down() -> None:
    dialect = _RowValues()
    dialect.ordered_keys = ((KeyColumn("a", descending=True), KeyColumn("b", descending=True)),)
    keyset = _keyset(dialect)
    assert keyset.order == '"t"."a" DESC, "t"."b" DESC'
    assert keyset.steps([5, "x"]) == [['("t"."a", "t"."b") < (5, \'x\')']]


def test_an_index_up_and_down_is_read_in_steps() -> None:
    dialect = _RowValues()
    dialect.ordered_keys = ((KeyColumn("a"), KeyColumn("b", descending=True)),)
    keyset = _keyset(dialect)
    assert keyset.order == '"t"."a", "t"."b" DESC'
    assert keyset.steps([5, "x"]) == [
        ['"t"."a" = 5', '"t"."b" < \'x\''],
        ['"t"."a" > 5'],
    ]


def test_the_bound_that_was_passed_goes_and_the_other_stays() -> None:
    params = {"kind": "range", "key": ["a"], "lower": [1], "upper": [9]}
    assert _keyset(_RowValues(), params).steps(None) == [['"t"."a" >= 1', '"t"."a" < 9']]
    assert _keyset(_RowValues(), params).steps([5, "x"]) == [
        ['"t"."a" < 9', '("t"."a", "t"."b") > (5, \'x\')']
    ]
    down = _RowValues()
    down.ordered_keys = ((KeyColumn("a", descending=True),),)
    assert _keyset(down, params).steps([5]) == [['"t"."a" >= 1', '"t"."a" < 5']]


def test_a_key_that_may_be_null_is_no_key() -> None:
    assert keyset_of(_source(_Standard(), unique=[("a", "c")]), Split({"kind": "all"})) is None
    assert keyset_of(_source(_Standard(), unique=[]), Split({"kind": "all"})) is None


def test_ranges_of_another_column_need_an_index_of_it() -> None:
    params = {"kind": "range", "key": ["c"], "lower": [1], "upper": None}
    assert keyset_of(_source(_Standard()), Split(params)) is None
    dialect = _Standard()
    dialect.index = ("c", "a", "b")
    found = keyset_of(_source(dialect), Split(params))
    assert found is not None
    assert [each.name for each in found.key] == ["c", "a", "b"]
    changes = {"kind": "all", "cursor": {"column": "c", "after": 3, "upto": 9}}
    assert keyset_of(_source(_Standard()), Split(changes)) is None
    found = keyset_of(_source(dialect), Split(changes))
    assert found is not None
    assert found.steps([7, 5, "x"])[-1] == ['"t"."c" <= 9', '"t"."c" > 7']


def test_a_query_and_a_view_have_no_key() -> None:
    source = _source(_Standard())
    for table in (None, Table("", "v", source.all_columns, True, (("a", "b"),))):
        other = ReadSource(_Standard(), "x", "x", table, source.all_columns, source.columns)
        assert keyset_of(other, Split({"kind": "all"})) is None


_TEXTS = st.text(st.sampled_from("aAbB 'é\\%_-"), max_size=3)


@pytest.mark.parametrize("dialect", [_Standard, _RowValues])
@given(
    rows=st.sets(st.tuples(st.integers(-3, 3), _TEXTS), max_size=40),
    down=st.tuples(st.booleans(), st.booleans()),
    most=st.integers(1, 7),
    bounds=st.tuples(st.none() | st.integers(-3, 3), st.none() | st.integers(-3, 3)),
)
def test_steps_visit_each_row_once_in_order(
    dialect: type[_Standard],
    rows: set[tuple[int, str]],
    down: tuple[bool, bool],
    most: int,
    bounds: tuple[int | None, int | None],
) -> None:
    made = dialect()
    made.ordered_keys = ((KeyColumn("a", down[0]), KeyColumn("b", down[1])),)
    lower, upper = ([each] if each is not None else None for each in bounds)
    keyset = _keyset(made, {"kind": "range", "key": ["a"], "lower": lower, "upper": upper})
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute(
            "CREATE TABLE t (a INTEGER NOT NULL, b TEXT NOT NULL, c INTEGER, UNIQUE (a, b))"
        )
        database.executemany("INSERT INTO t VALUES (?, ?, 0)", rows)
        found = list(_visited(database, keyset, most))
    inside = [
        row
        for row in rows
        if (not lower or row[0] >= lower[0]) and (not upper or row[0] < upper[0])
    ]
    by_text = sorted(inside, key=lambda row: row[1].encode(), reverse=down[1])
    assert found == sorted(by_text, key=lambda row: row[0], reverse=down[0])


def _visited(database: sqlite3.Connection, keyset: Keyset, most: int) -> Iterator[tuple[int, str]]:
    steps = keyset.steps(None)
    while steps:
        query = keyset.source.sql(['"t"."a"', '"t"."b"'], steps[0])
        rows = database.execute(f"{query} ORDER BY {keyset.order} LIMIT {most}").fetchall()
        yield from rows
        steps = keyset.steps(rows[-1]) if len(rows) == most else steps[1:]


def _same(reader: Any, whole: pa.Table, rows: int, advice: int) -> None:
    """Short statements bring what one statement does."""
    schema = reader.schema()
    reader.fetch_size = FetchSize(rows=rows)
    splits = reader.split(advice)
    assert reader.remarks(splits) == []
    found = pa.Table.from_batches(
        [batch for split in splits for batch in reader.read(split)], schema
    )
    order = [(name, "ascending") for name in schema.names]
    assert found.sort_by(order).equals(whole.sort_by(order))


_COLUMNS: tuple[dict[str, Any], ...] = ({}, {"columns": "v"})
_VALUES = {
    "text": _TEXTS,
    'text COLLATE "en-x-icu"': _TEXTS,
    'text COLLATE "C"': _TEXTS,
    "varchar(5)": _TEXTS,
    "uuid": st.uuids().map(str),
    "timestamptz": st.datetimes(timezones=st.timezones()).map(
        lambda value: value.replace(year=min(max(value.year, 1900), 2100)).isoformat()
    ),
    "timestamp": st.datetimes().map(lambda value: value.isoformat()),
    "date": st.dates().map(lambda value: value.isoformat()),
    "numeric": st.decimals(-1000, 1000, places=5).map(str),
    "numeric(20,3)": st.decimals(-1000, 1000, places=3).map(str),
    "smallint": st.integers(-(2**15), 2**15 - 1).map(str),
    "bigint": st.integers(-(2**63), 2**63 - 1).map(str),
    "bytea": st.binary(max_size=4).map(lambda value: "\\x" + value.hex()),
    "boolean": st.booleans().map(str),
}


@pytest.mark.parametrize("kind", _VALUES)
def test_every_key_of_postgresql_is_read_once(pg: Pg, kind: str) -> None:
    """Composite, first up and then up and down; the key is among what is read, and is not."""
    _VALUES_OF = st.lists(st.tuples(_VALUES[kind], st.integers(-3, 3)), max_size=60)  # noqa: N806 - a table, as those of the module

    @settings(_FIXTURES, max_examples=3)
    @given(
        _VALUES_OF, st.integers(1, 9), st.integers(1, 4), st.booleans(), st.sampled_from(_COLUMNS)
    )
    def check(
        rows: list[tuple[str, int]], most: int, advice: int, down: bool, columns: dict[str, Any]
    ) -> None:
        values = ", ".join(
            f"({_quoted(value)}, {n}, {place})" for place, (value, n) in enumerate(rows)
        )
        order = "k DESC, n" if down else "k, n"
        pg.psql(
            "SET client_min_messages = error; DROP TABLE IF EXISTS t; "
            f"CREATE TABLE t (k {kind} NOT NULL, n int NOT NULL, v int); CREATE UNIQUE INDEX ON t ({order});"
            + (f"INSERT INTO t VALUES {values} ON CONFLICT DO NOTHING" if rows else "")
        )
        _same(pg.reader(**columns), pg.read(**columns), most, advice)

    check()


_MYSQL = {
    "VARCHAR(5)": _TEXTS,
    "VARCHAR(5) COLLATE utf8mb4_bin": _TEXTS,
    "CHAR(5) CHARACTER SET latin1": _TEXTS,
    "VARBINARY(4)": st.binary(max_size=4),
    "UUID": st.uuids().map(str),
    "TIMESTAMP(6)": st.datetimes(
        min_value=datetime(1990, 1, 1),
        max_value=datetime(2030, 1, 1),
    ).map(lambda value: value.isoformat(sep=" ")),
    "DATETIME(3)": st.datetimes(min_value=datetime(1000, 1, 1)).map(
        lambda value: value.isoformat(sep=" ", timespec="milliseconds")
    ),
    "DATE": st.dates(min_value=date(1000, 1, 1)).map(lambda value: value.isoformat()),
    "DECIMAL(30,5)": st.decimals(-1000, 1000, places=5).map(str),
    "BIGINT UNSIGNED": st.integers(0, 2**64 - 1).map(str),
    "TINYINT(1)": st.integers(0, 1).map(str),
    "BIGINT": st.integers(-(2**63), 2**63 - 1).map(str),
}


@pytest.mark.parametrize("kind", _MYSQL)
def test_every_key_of_mysql_is_read_once(shop: Shop, kind: str) -> None:
    @settings(_FIXTURES, max_examples=4)
    @given(
        st.lists(st.tuples(_MYSQL[kind], st.integers(-3, 3)), max_size=60),
        st.integers(1, 9),
        st.integers(1, 4),
        st.booleans(),
        st.sampled_from(_COLUMNS),
    )
    def check(
        rows: list[tuple[Any, int]], most: int, advice: int, down: bool, columns: dict[str, Any]
    ) -> None:
        values = ", ".join(
            f"({_quoted(value)}, {n}, {place})" for place, (value, n) in enumerate(rows)
        )
        order = "k DESC, n" if down else "k, n"
        shop.sql(
            f"DROP TABLE IF EXISTS t; CREATE TABLE t (k {kind} NOT NULL, n INT NOT NULL, v INT, UNIQUE ({order}));"
            + (
                f"SET sql_mode = 'NO_BACKSLASH_ESCAPES'; INSERT IGNORE INTO t VALUES {values}"
                if rows
                else ""
            )
        )
        _same(shop.reader(**columns), shop.read(**columns), most, advice)

    check()


def _quoted(value: str | bytes) -> str:
    return f"X'{value.hex()}'" if isinstance(value, bytes) else "'" + value.replace("'", "''") + "'"


def test_keys_of_postgresql_that_do_not_hold_are_not_used(pg: Pg) -> None:
    """Indexes of a parent, of some rows, an expression, in an order other than the column's, and loose ones."""
    pg.psql(
        """CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child () INHERITS (parent);
        INSERT INTO parent VALUES (1), (2); INSERT INTO child VALUES (1), (2);
        CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
        CREATE TABLE other (k text COLLATE loose NOT NULL);
        CREATE UNIQUE INDEX ON other (k COLLATE "C"); INSERT INTO other VALUES ('a'), ('A'), ('b');
        CREATE TABLE partial (k int NOT NULL); CREATE UNIQUE INDEX ON partial (k) WHERE k > 0;
        INSERT INTO partial VALUES (-1), (-1), (1);
        CREATE TABLE made (k int NOT NULL); CREATE UNIQUE INDEX ON made ((k + 1));
        CREATE TABLE nulls (k int UNIQUE); INSERT INTO nulls VALUES (NULL), (NULL), (1);
        CREATE TABLE floats (k float8 PRIMARY KEY); INSERT INTO floats VALUES (0.1), (0.2)"""
    )
    for table, rows in (
        ("parent", 4),
        ("other", 3),
        ("partial", 3),
        ("made", 0),
        ("nulls", 3),
        ("floats", 2),
    ):
        reader = pg.reader(table)
        reader.schema()
        reader.fetch_size = FetchSize(rows=1)
        splits = reader.split(1)
        assert all(keyset_of(reader._source, split) is None for split in splits)  # type: ignore[arg-type] # the source is there
        assert sum(batch.num_rows for split in splits for batch in reader.read(split)) == rows


def test_decimals_of_mysql_without_a_literal_are_no_key(shop: Shop) -> None:
    """Of more digits than are read as decimals: a text is compared with them as a float."""
    shop.sql("CREATE TABLE t (k DECIMAL(60,0) PRIMARY KEY, v INT); INSERT INTO t VALUES (1, 1)")
    reader = shop.reader(columns="v")
    reader.schema()
    assert reader._source is not None
    assert keyset_of(reader._source, Split({"kind": "all"})) is None


def test_an_index_of_the_partition_column_alone_is_not_enough_on_postgresql(pg: Pg) -> None:
    """Of many rows with one value, each statement would look at those that were read before."""
    pg.psql("CREATE TABLE t (id int PRIMARY KEY, c int, e text UNIQUE); CREATE INDEX ON t (c)")
    reader = pg.reader()
    reader.schema()
    assert reader._source is not None

    def names(column: str) -> list[str]:
        assert reader._source is not None
        params = {"kind": "range", "key": [column], "lower": None, "upper": None}
        found = keyset_of(reader._source, Split(params))
        return [] if found is None else [each.name for each in found.key]

    assert names("c") == []
    assert names("e") == ["e", "id"]
    pg.psql("CREATE INDEX ON t (c, id)")
    reader.schema()
    assert names("c") == ["c", "id"]
    pg.psql("CREATE TABLE u (id int NOT NULL); CREATE UNIQUE INDEX ON u (id DESC NULLS LAST)")
    other = pg.reader("u")
    other.schema()
    assert other._source is not None
    assert keyset_of(other._source, Split({"kind": "all"})) is None, "ORDER BY id would sort"


def test_an_index_of_innodb_ends_with_the_primary_key(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (a INT, id INT, c INT, PRIMARY KEY (a, id)); CREATE INDEX i ON t (c)")
    reader = shop.reader()
    reader.schema()
    assert reader._source is not None
    for column, names in (("c", ["c", "a", "id"]), ("id", []), ("a", ["a", "id"])):
        params = {"kind": "range", "key": [column], "lower": None, "upper": None}
        found = keyset_of(reader._source, Split(params))
        assert ([] if found is None else [each.name for each in found.key]) == names


def test_times_that_are_none_are_refused_as_a_key(shop: Shop) -> None:
    """Behind a literal that MySQL takes for NULL there would be no row."""
    shop.sql(
        "CREATE TABLE t (k DATE NOT NULL PRIMARY KEY, v INT); SET sql_mode = ''; "
        "INSERT INTO t VALUES ('0000-00-00', 1), ('2024-01-01', 2), ('2024-01-02', 3)"
    )
    reader = shop.reader(columns="v")
    reader.schema()
    reader.fetch_size = FetchSize(rows=1)
    with pytest.raises(
        Exception, match=r"holds '0000-00-00', which is not a time.*statementSeconds=0"
    ):
        list(reader.read(reader.split(1)[0]))
    assert sum(shop.read(columns="v", statementSeconds=0)["v"].to_pylist()) == 6
