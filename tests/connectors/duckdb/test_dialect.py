"""docs/embedded.md's tables of types, row by row, against DuckDB's own text."""

import datetime as dt
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spark_channel
from spark_channel.connectors.duckdb.dialect import read_as
from spark_channel.errors import SchemaError, SourceError, TargetError
from tests.connectors.duckdb.conftest import Duck
from tests.connectors.sql.documented import PLANES, table_rows

UTC = dt.UTC
MAX38 = "99999999999999999999.999999999999999999"
HUGE38 = 38 * "9"
DAY = [dt.date(1, 1, 1), dt.date(9999, 12, 31)]
NESTED = pa.struct(
    [("UUID", pa.date32()), ("b c", pa.list_(pa.decimal128(5, 2))), ("d", pa.binary())]
)
Made = tuple[pa.DataType, str, list[object], list[str]]
WRITTEN: dict[str, list[Made]] = {
    "bool": [(pa.bool_(), "BOOLEAN", [True, False], ["true", "false"])],
    "int8, int16, int32, int64": [
        (pa.int8(), "TINYINT", [-128, 127], ["-128", "127"]),
        (pa.int16(), "SMALLINT", [-32768, 32767], ["-32768", "32767"]),
        (pa.int32(), "INTEGER", [-(2**31), 2**31 - 1], ["-2147483648", "2147483647"]),
        (
            pa.int64(),
            "BIGINT",
            [-(2**63), 2**63 - 1],
            ["-9223372036854775808", "9223372036854775807"],
        ),
    ],
    "uint8, uint16, uint32, uint64": [
        (pa.uint8(), "UTINYINT", [0, 255], ["0", "255"]),
        (pa.uint16(), "USMALLINT", [0, 65535], ["0", "65535"]),
        (pa.uint32(), "UINTEGER", [0, 2**32 - 1], ["0", "4294967295"]),
        (pa.uint64(), "UBIGINT", [0, 2**64 - 1], ["0", "18446744073709551615"]),
    ],
    "float32, float64": [
        (
            pa.float32(),
            "FLOAT",
            [1.5, float("inf"), -0.0, float("nan")],
            ["1.5", "inf", "-0.0", "nan"],
        ),
        (
            pa.float64(),
            "DOUBLE",
            [0.1, float("-inf"), 1e308, float("nan")],
            ["0.1", "-inf", "1e+308", "nan"],
        ),
    ],
    "decimal up to 15 digits; scale 0 up to 18": [
        (pa.decimal128(5, 2), "DECIMAL(5,2)", [Decimal("-999.99")], ["-999.99"]),
    ],
    "larger decimals, up to 38 digits": [
        (
            pa.decimal128(38, 18),
            "DECIMAL(38,18)",
            [Decimal(MAX38), Decimal("0E-18")],
            [MAX38, "0." + 18 * "0"],
        ),
        (pa.decimal128(38, 38), "DECIMAL(38,38)", [Decimal("-1E-38")], [f"-.{37 * '0'}1"]),
        (pa.decimal128(38, 0), "DECIMAL(38,0)", [Decimal(HUGE38)], [HUGE38]),
    ],
    "string": [
        (pa.string(), "VARCHAR", ["", PLANES, "a\0b", "'; --"], ["", PLANES, "a\0b", "'; --"]),
    ],
    "binary": [
        (pa.binary(), "BLOB", [b"", b"\x00\xff'"], ["", "\\x00\\xFF\\x27"]),
    ],
    "date32, year 1 to 9999": [(pa.date32(), "DATE", [*DAY], ["0001-01-01", "9999-12-31"])],
    "time64[us]": [
        (
            pa.time64("us"),
            "TIME",
            [dt.time(0), dt.time(23, 59, 59, 999999)],
            ["00:00:00", "23:59:59.999999"],
        ),
    ],
    "timestamp[us] (timestamp_ntz), year 1 to 9999": [
        (
            pa.timestamp("us"),
            "TIMESTAMP",
            [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)],
            ["0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"],
        ),
    ],
    "timestamp[us, tz] (timestamp), year 1 to 9999": [
        (
            pa.timestamp("us", "UTC"),
            "TIMESTAMP WITH TIME ZONE",
            [
                dt.datetime(1, 1, 1, tzinfo=UTC),
                dt.datetime(2024, 2, 29, 12, 0, 0, 1, UTC),
                dt.datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
            ],
            [
                "0001-01-01 00:00:00+00",
                "2024-02-29 12:00:00.000001+00",
                "9999-12-31 23:59:59.999999+00",
            ],
        ),
    ],
    "timestamp[ns]": [
        (
            pa.timestamp("ns"),
            "TIMESTAMP_NS",
            [dt.datetime(1677, 9, 22), dt.datetime(2262, 4, 11, 23)],
            ["1677-09-22 00:00:00", "2262-04-11 23:00:00"],
        ),
    ],
    "list, struct, map": [
        (pa.list_(pa.int32()), "INTEGER[]", [[1, None, 3], []], ["[1, NULL, 3]", "[]"]),
        (
            pa.list_(pa.timestamp("us", "UTC")),
            "TIMESTAMP WITH TIME ZONE[]",
            [[dt.datetime(2024, 2, 29, tzinfo=UTC)]],
            ["['2024-02-29 00:00:00+00']"],
        ),
        (pa.struct([("a b", pa.int32())]), 'STRUCT("a b" INTEGER)', [{"a b": 1}], ["{'a b': 1}"]),
        (
            NESTED,
            'STRUCT(UUID DATE, "b c" DECIMAL(5,2)[], d BLOB)',
            [{"UUID": DAY[0], "b c": [Decimal("1.50"), None], "d": b"x"}],
            ["{'UUID': 0001-01-01, 'b c': [1.50, NULL], 'd': x}"],
        ),
        (
            pa.map_(pa.string(), pa.int64()),
            "MAP(VARCHAR, BIGINT)",
            [[("k", 1)], []],
            ["{k=1}", "{}"],
        ),
    ],
}
UNWRITTEN: dict[str, list[pa.DataType]] = {
    "interval, duration, null, decimal of more digits": [
        pa.month_day_nano_interval(),
        pa.duration("us"),
        pa.null(),
        pa.decimal256(40, 0),
    ],
}


def test_each_row_of_the_first_table_has_a_case() -> None:
    assert [*WRITTEN, *UNWRITTEN] == table_rows("embedded", "Arrow (Spark)")


@pytest.mark.parametrize("row", WRITTEN)
def test_a_new_column_gives_back_what_it_was_given(duck: Duck, row: str) -> None:
    """A column per type of the row, written into a table that is made for it, and once more into the one there is."""
    cases = WRITTEN[row]
    height = max(len(values) for _, _, values, _ in cases) + 1
    table = pa.table(
        {
            f"c{number}": pa.array([*values, *[None] * (height - len(values))], kind)
            for number, (kind, _, values, _) in enumerate(cases)
        }
    )
    for copies in (1, 2):
        duck.write(table)
        back = duck.read()
        for number, (kind, declared, _, texts) in enumerate(cases):
            name = f"c{number}"
            found = duck.sql(
                "SELECT data_type FROM duckdb_columns() WHERE table_name = 't' AND column_name = ?",
                name,
            )
            assert found == [(declared,)]
            stored = duck.sql(
                f"SELECT CAST({name} AS VARCHAR) FROM t WHERE {name} IS NOT NULL ORDER BY rowid"
            )
            assert [text for (text,) in stored] == copies * texts
            assert len(back) == copies * height
            assert back.schema.field(name).type == kind
            assert repr(back[name].to_pylist()) == repr(copies * table[name].to_pylist())


READ: dict[str, list[tuple[str, str, pa.DataType, object]]] = {
    "HUGEINT, UHUGEINT": [
        ("HUGEINT", f"-{HUGE38}", pa.decimal128(38, 0), Decimal(-(10**38) + 1)),
        ("UHUGEINT", HUGE38, pa.decimal128(38, 0), Decimal(10**38 - 1)),
    ],
    "UUID, JSON, INTERVAL, BIT, BIGNUM, TIMETZ, ENUM": [
        (declared, f"'{text}'", pa.string(), text)
        for declared, text in [
            ("UUID", "123e4567-e89b-12d3-a456-426614174000"),
            ("JSON", '{"a" :1}'),
            ("INTERVAL", "-1 year 2 days 04:05:06.789"),
            ("INTERVAL", "-00:00:00.000001"),
            ("BIT", "0010101"),
            ("BIGNUM", f"-{HUGE38}{HUGE38}"),
            ("TIMETZ", "23:59:59.999999-15:59:59"),
            ("ENUM('a', 'x,y)[]')", "x,y)[]"),
        ]
    ],
    "TIMESTAMP_S, TIMESTAMP_MS": [
        (
            "TIMESTAMP_S",
            "'2024-01-31 12:00:01'",
            pa.timestamp("us"),
            dt.datetime(2024, 1, 31, 12, 0, 1),
        ),
        (
            "TIMESTAMP_MS",
            "'2024-01-31 12:00:01.5'",
            pa.timestamp("us"),
            dt.datetime(2024, 1, 31, 12, 0, 1, 500000),
        ),
    ],
}
FAR = "DATE or a timestamp that is an infinity, or outside the years 1 to 9999"
UNREAD: dict[str, list[str]] = {
    "UNION, GEOMETRY, VARIANT, nested types that contain a type of the first two rows": [
        "UNION(a INTEGER, b VARCHAR)",
        "HUGEINT[]",
        "STRUCT(a INTERVAL)",
        "MAP(VARCHAR, UUID)",
        "ENUM('a')[]",
        "JSON[2]",
        "GEOMETRY",
        "VARIANT",
    ],
}


def test_each_row_of_the_second_table_has_a_case() -> None:
    assert {*READ, FAR, *UNREAD} == set(table_rows("embedded", "declared in DuckDB"))


@pytest.mark.parametrize("row", READ)
def test_other_types_are_read_and_written_as_duckdb_shows_them(duck: Duck, row: str) -> None:
    """Read, and, where the documentation says so, written into a column of the same type."""
    cases = READ[row]
    columns = ", ".join(f"c{number} {declared}" for number, (declared, *_) in enumerate(cases))
    duck.sql(f"CREATE TABLE t ({columns})")
    duck.sql(f"CREATE TABLE copy ({columns})")
    duck.sql(f"INSERT INTO t VALUES ({', '.join(literal for _, literal, *_ in cases)})")
    duck.sql(f"INSERT INTO t VALUES ({', '.join('NULL' for _ in cases)})")
    back = duck.read()
    for number, (_, _, kind, value) in enumerate(cases):
        assert back.schema.field(f"c{number}").type == kind
        assert back[f"c{number}"].to_pylist() == [value, None]
    duck.write(back, dbtable="copy")
    shown = ", ".join(f"CAST(c{number} AS VARCHAR)" for number in range(len(cases)))
    expected = duck.sql(f"SELECT {shown} FROM t ORDER BY rowid")
    assert duck.sql(f"SELECT {shown} FROM copy ORDER BY rowid") == expected


def test_a_table_whose_name_has_quotes_and_dots_is_described(duck: Duck) -> None:
    name = """main."a""b.c'd\""""
    duck.sql(f"CREATE TABLE {name} (id INT PRIMARY KEY, v VARCHAR DEFAULT 'x')")
    duck.sql(f"INSERT INTO {name} (id) VALUES (1)")
    assert duck.read(name).to_pylist() == [{"id": 1, "v": "x"}]
    assert duck.reader(name).primary_key() == ("id",)


def test_an_array_of_fixed_length_is_read(duck: Duck) -> None:
    duck.sql("CREATE TABLE t (c INTEGER[2])")
    duck.sql("INSERT INTO t VALUES ([1, 2]), (NULL)")
    assert duck.read()["c"].to_pylist() == [[1, 2], None]


@pytest.mark.parametrize("declared", [each for types in UNREAD.values() for each in types])
def test_what_spark_cannot_hold_is_refused_by_column(duck: Duck, declared: str) -> None:
    duck.sql(f"CREATE TABLE t (c {declared}, d INTEGER)")
    with pytest.raises(SchemaError, match=r"column 'c' is .*omit it"):
        duck.read()
    assert duck.read(columns="d").schema.names == ["d"]


@pytest.mark.parametrize(
    "shape", ["{}[]", "STRUCT(x {})", "MAP(VARCHAR, {})", 'STRUCT("a b" STRUCT(DATE {})[])']
)
def test_the_names_inside_a_nested_type_are_no_types(shape: str) -> None:
    for kind in (
        "HUGEINT",
        "UHUGEINT",
        "UUID",
        "JSON",
        "INTERVAL",
        "BIT",
        "BIGNUM",
        "TIME WITH TIME ZONE",
        "ENUM('a', 'b')",
        "UNION(a INTEGER)",
        "GEOMETRY",
        "VARIANT",
        "TIME_NS",
    ):
        with pytest.raises(SchemaError):
            read_as("c", shape.format(kind), "c")
    assert read_as("c", shape.format('STRUCT(UUID INTEGER, "JSON" DATE, BIT TIME)'), "c") == "c"


def test_text_that_is_no_value_of_the_type_is_refused(duck: Duck) -> None:
    for declared, text in [
        ("UUID", "no"),
        ("BIT", "2"),
        ("ENUM('a')", "A"),
        ("INTERVAL", "x"),
        ("JSON", "{"),
    ]:
        duck.sql(f"CREATE OR REPLACE TABLE t (c {declared})")
        with pytest.raises(TargetError):
            duck.write(pa.table({"c": [text]}))
        assert duck.sql("SELECT count(*) FROM t") == [(0,)]


@pytest.mark.parametrize(
    ("declared", "literal"),
    [
        ("DATE", "'infinity'"),
        ("TIMESTAMP", "'-infinity'"),
        ("TIMESTAMPTZ", "'infinity'"),
        ("TIMESTAMP_S", "'infinity'"),
        ("TIMESTAMP_NS", "'infinity'"),
        ("DATE", "'10000-01-01'"),
        ("TIME", "'24:00:00'"),
        ("DATE", "'0001-01-01 (BC)'"),
        ("DATE[]", "['infinity'::DATE]"),
    ],
)
def test_infinities_and_far_dates_are_refused(duck: Duck, declared: str, literal: str) -> None:
    duck.sql(f"CREATE TABLE t (c {declared})")
    duck.sql(f"INSERT INTO t VALUES (NULL), ({literal})")
    with pytest.raises(SourceError, match=r"column 'c'.* (infinity|not timestamp)"):
        duck.read()


def test_a_hugeint_beyond_38_digits_is_refused(duck: Duck) -> None:
    duck.sql("CREATE TABLE t (c HUGEINT)")
    duck.sql("INSERT INTO t VALUES (170141183460469231731687303715884105727)")
    with pytest.raises(SourceError, match="DECIMAL"):
        duck.read()


@pytest.mark.parametrize(
    ("kind", "declared"),
    [
        (pa.int64(), "INTEGER"),
        (pa.string(), "INTEGER"),
        (pa.int32(), "VARCHAR"),
        (pa.float64(), "FLOAT"),
        (pa.decimal128(10, 3), "DECIMAL(10,2)"),
        (pa.timestamp("us"), "TIMESTAMPTZ"),
        (pa.uint64(), "BIGINT"),
        (pa.int8(), "UTINYINT"),
    ],
)
def test_a_type_that_does_not_fit_is_refused_before_any_task(
    duck: Duck, kind: pa.DataType, declared: str
) -> None:
    duck.sql(f"CREATE TABLE t (c {declared})")
    with pytest.raises(SchemaError, match="column 'c' is"):
        duck.write(pa.table({"c": pa.array([], kind)}))


@pytest.mark.parametrize("kind", [kind for kinds in UNWRITTEN.values() for kind in kinds], ids=str)
def test_a_type_that_duckdb_has_not_is_refused_by_column(duck: Duck, kind: pa.DataType) -> None:
    with pytest.raises(SchemaError, match="column 'c' is"):
        duck.write(pa.table({"c": pa.array([], kind)}))


def test_a_timestamp_beyond_year_9999_is_not_written(duck: Duck) -> None:
    with pytest.raises(TargetError, match="column 'c', row 2 of task 0"):
        duck.write(pa.table({"c": pa.array([0, 2**63 - 1], pa.timestamp("us"))}))
    assert not duck.path.exists()


@pytest.mark.parametrize("declared", ["TIMESTAMP_S", "TIMESTAMP_MS"])
def test_a_time_of_more_digits_than_the_column_keeps_is_refused(
    tmp_path: Path, declared: str
) -> None:
    path = tmp_path / "a.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(f"CREATE TABLE t (v {declared})")
    source = tmp_path / "a.parquet"
    whole = dt.datetime(2024, 1, 1, 1, 2, 3)
    target = {"writer": "duckdb", "url": f"jdbc:duckdb:{path}", "dbtable": "t"}
    for value in (whole, whole.replace(microsecond=1)):
        pq.write_table(pa.table({"v": [value]}), source)
        reader = {"reader": "parquet", "path": str(source)}
        if value == whole:
            spark_channel.transfer(None, reader, target)
        else:
            with pytest.raises(TargetError, match=f"more digits than {declared}"):
                spark_channel.transfer(None, reader, target)
    with duckdb.connect(str(path)) as connection:
        assert connection.execute("SELECT v FROM t").fetchall() == [(whole,)]
