"""Every row of the type table in docs/embedded.md: written, looked at with sqlite3, and read back."""

import datetime as dt
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from spark_channel.connectors.sql.catalog import Column
from spark_channel.connectors.sqlite.dialect import SqliteWriteDialect
from spark_channel.connectors.sqlite.types import affinity, declared_type, encode
from spark_channel.errors import SchemaError, SourceError, TargetError
from tests.connectors.sql.documented import PLANES, table_rows
from tests.connectors.sqlite.conftest import Db

D = Decimal
UTC = dt.UTC
INF = float("inf")

Kept = tuple[pa.DataType, list[Any], str, list[Any]]
ROUND_TRIPS: dict[str, list[Kept]] = {
    "bool": [
        (pa.bool_(), [True, False, None], "BOOLEAN", [1, 0, None]),
    ],
    "int8, int16, int32, int64": [
        (pa.int8(), [-128, 127, None], "INT1", [-128, 127, None]),
        (pa.int16(), [-(2**15), 2**15 - 1], "INT2", [-(2**15), 2**15 - 1]),
        (pa.int32(), [-(2**31), 2**31 - 1], "INT4", [-(2**31), 2**31 - 1]),
        (pa.int64(), [-(2**63), 2**63 - 1, 0, None], "BIGINT", [-(2**63), 2**63 - 1, 0, None]),
    ],
    "float32, float64": [
        (
            pa.float32(),
            [0.1, -INF, INF, 3.4028234663852886e38, None],
            "FLOAT4",
            [0.10000000149011612, -INF, INF, 3.4028234663852886e38, None],
        ),
        (
            pa.float64(),
            [0.1, -INF, INF, 5e-324, 1.7976931348623157e308, 2.0],
            "DOUBLE",
            [0.1, -INF, INF, 5e-324, 1.7976931348623157e308, 2.0],
        ),
    ],
    "decimal up to 15 digits; scale 0 up to 18": [
        (
            pa.decimal128(15, 2),
            [D("9999999999999.99"), D("-0.01"), D("0.00"), None],
            "DECIMAL(15,2)",
            [9999999999999.99, -0.01, 0, None],
        ),
        (
            pa.decimal128(18, 0),
            [D(10**18 - 1), D(-(10**18) + 1)],
            "DECIMAL(18,0)",
            [10**18 - 1, -(10**18) + 1],
        ),
    ],
    "larger decimals, up to 38 digits": [
        (
            pa.decimal128(38, 18),
            [
                D("12345678901234567890.123456789012345678"),
                D("0.000000000000000001"),
                D("-1.5"),
                None,
            ],
            "DECIMAL_TEXT(38,18)",
            [
                "12345678901234567890.123456789012345678",
                "0.000000000000000001",
                "-1.500000000000000000",
                None,
            ],
        ),
        (
            pa.decimal128(38, 0),
            [D(10**38 - 1), D(-(10**38) + 1)],
            "DECIMAL_TEXT(38,0)",
            [str(10**38 - 1), str(-(10**38) + 1)],
        ),
    ],
    "string": [
        (
            pa.string(),
            ["", PLANES, "007", "1e5", "a\0b", "'; --", None],
            "TEXT",
            ["", PLANES, "007", "1e5", "a\0b", "'; --", None],
        ),
    ],
    "binary": [
        (pa.binary(), [b"", b"\x00\xff", b"text", None], "BLOB", [b"", b"\x00\xff", b"text", None]),
    ],
    "date32, year 1 to 9999": [
        (
            pa.date32(),
            [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1969, 12, 31), None],
            "DATE",
            ["0001-01-01", "9999-12-31", "1969-12-31", None],
        ),
    ],
    "time64[us]": [
        (
            pa.time64("us"),
            [dt.time(0), dt.time(23, 59, 59, 999999), None],
            "TIME",
            ["00:00:00.000000", "23:59:59.999999", None],
        ),
    ],
    "timestamp[us] (timestamp_ntz), year 1 to 9999": [
        (
            pa.timestamp("us"),
            [
                dt.datetime(1, 1, 1),
                dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
                dt.datetime(2024, 2, 29, 1, 2, 3, 4),
            ],
            "TIMESTAMP",
            [
                "0001-01-01 00:00:00.000000",
                "9999-12-31 23:59:59.999999",
                "2024-02-29 01:02:03.000004",
            ],
        ),
    ],
    "timestamp[us, tz] (timestamp), year 1 to 9999": [
        (
            pa.timestamp("us", "UTC"),
            [
                dt.datetime(1, 1, 1, tzinfo=UTC),
                dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
                None,
            ],
            "TIMESTAMPTZ",
            ["0001-01-01 00:00:00.000000Z", "9999-12-31 23:59:59.999999Z", None],
        ),
    ],
}


KEPT = [case for cases in ROUND_TRIPS.values() for case in cases]


@pytest.mark.parametrize(
    ("kind", "values", "declared", "stored"), KEPT, ids=lambda value: str(value)[:24]
)
def test_a_type_comes_back_as_it_went(
    db: Db, kind: pa.DataType, values: list[Any], declared: str, stored: list[Any]
) -> None:
    table = pa.table({"n": pa.array(range(len(values)), pa.int64()), "v": pa.array(values, kind)})
    db.write(table)
    assert db.sql("SELECT type FROM pragma_table_info('t') WHERE name = 'v'") == [(declared,)]
    assert [value for (value,) in db.sql("SELECT v FROM t ORDER BY n")] == stored
    assert db.read() == table


WIDER: dict[str, list[tuple[pa.Array, str, pa.Array]]] = {
    "uint8, uint16, uint32, uint64": [
        (pa.array([255], pa.uint8()), "INT2", pa.array([255], pa.int16())),
        (pa.array([65535], pa.uint16()), "INT4", pa.array([65535], pa.int32())),
        (pa.array([2**32 - 1], pa.uint32()), "BIGINT", pa.array([2**32 - 1], pa.int64())),
        (
            pa.array([2**64 - 1, None], pa.uint64()),
            "DECIMAL_TEXT(20,0)",
            pa.array([D(2**64 - 1), None], pa.decimal128(20, 0)),
        ),
    ],
    "timestamp[ns]": [
        (pa.array([1000], pa.timestamp("ns")), "TIMESTAMP", pa.array([1], pa.timestamp("us"))),
    ],
    "others": [
        (pa.array(["a", "b", "a"]).dictionary_encode(), "TEXT", pa.array(["a", "b", "a"])),
        (pa.array([0.5], pa.float32()).cast(pa.float16()), "FLOAT4", pa.array([0.5], pa.float32())),
        (pa.array(["a"], pa.large_string()), "TEXT", pa.array(["a"])),
        (pa.array([b"ab"], pa.binary(2)), "BLOB", pa.array([b"ab"])),
        (pa.array([b"ab"], pa.large_binary()), "BLOB", pa.array([b"ab"])),
        (
            pa.array([86_400_000], pa.int64()).cast(pa.date64()),
            "DATE",
            pa.array([dt.date(1970, 1, 2)]),
        ),
        (pa.array([1], pa.time32("s")), "TIME", pa.array([dt.time(0, 0, 1)], pa.time64("us"))),
        (
            pa.array([1], pa.timestamp("s", "Asia/Tokyo")),
            "TIMESTAMPTZ",
            pa.array([10**6], pa.timestamp("us", "UTC")),
        ),
    ],
}


@pytest.mark.parametrize(
    ("given", "declared", "back"),
    [case for cases in WIDER.values() for case in cases],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_a_type_without_a_sqlite_name_comes_back_wider(
    db: Db, given: pa.Array, declared: str, back: pa.Array
) -> None:
    db.write(pa.table({"v": given}))
    assert db.sql("SELECT type FROM pragma_table_info('t')") == [(declared,)]
    assert db.read().column("v").combine_chunks() == back


@pytest.mark.parametrize(
    ("kind", "declared"), [(pa.string_view(), "TEXT"), (pa.binary_view(), "BLOB")], ids=str
)
def test_views_are_stored_as_their_values(kind: pa.DataType, declared: str) -> None:
    assert SqliteWriteDialect().created_type("v", kind, key=False) == declared
    batch = pa.record_batch(
        {
            "v": pa.array([b"a", None])
            .cast(pa.binary() if declared == "BLOB" else pa.string())
            .cast(kind)
        }
    )
    column = SqliteWriteDialect().write_column(pa.field("v", kind), Column("V", declared))
    encoded = encode(batch, [column])
    assert encoded.column("V").cast(pa.binary()).to_pylist() == [b"a", None]


REFUSED: dict[str, list[pa.DataType]] = {
    "list, struct, map": [
        pa.list_(pa.int64()),
        pa.struct([("a", pa.int64())]),
        pa.map_(pa.string(), pa.int64()),
    ],
    "interval, duration, null, decimal of more digits": [
        pa.month_day_nano_interval(),
        pa.duration("us"),
        pa.null(),
        pa.decimal256(60, 2),
    ],
}


def test_each_row_of_the_first_table_has_a_case() -> None:
    assert {*ROUND_TRIPS, *WIDER, *REFUSED} - {"others"} == set(
        table_rows("embedded", "Arrow (Spark)")
    )


@pytest.mark.parametrize("kind", [kind for kinds in REFUSED.values() for kind in kinds], ids=str)
def test_a_type_that_sqlite_cannot_hold_is_refused_by_column(db: Db, kind: pa.DataType) -> None:
    schema = pa.schema([("id", pa.int64()), ("tags", kind)])
    with pytest.raises(SchemaError, match="column 'tags' is "):
        db.writer().prepare(db.context(), schema)
    assert not db.path.exists()
    assert db.staged() == []


BAD_VALUES: list[tuple[pa.Array, str]] = [
    (pa.array([1.0, float("nan")]), r"column 'v', row 2 of task 0: 'nan' .* NaN as NULL"),
    (
        pa.array([0, 3_000_000], pa.int32()).cast(pa.date32()),
        r"column 'v', row 2 .* dates go from year 1 to 9999",
    ),
    (
        pa.array([0, -(10**18)], pa.timestamp("us")),
        r"column 'v', row 2 .* timestamps go from year 1 to 9999",
    ),
    (pa.array([1000, 1], pa.timestamp("ns")), r"column 'v', row 2 .* end at microseconds"),
    (pa.array([1000, 1], pa.time64("ns")), r"column 'v', row 2 .* end at microseconds"),
    (pa.array([0, 2**62], pa.timestamp("s", "UTC")), r"column 'v', row 2 .* year 1 to 9999"),
]


@pytest.mark.parametrize(("values", "message"), BAD_VALUES, ids=str)
def test_a_value_that_would_come_back_changed_is_refused_by_row(
    db: Db, values: pa.Array, message: str
) -> None:
    with pytest.raises(TargetError, match=message):
        db.write(pa.table({"v": values}))
    assert not db.path.exists()
    assert db.staged() == []


def test_a_row_is_counted_over_the_batches_of_its_task(db: Db) -> None:
    writer = db.writer()
    good, bad = pa.record_batch({"v": [1.0, 2.0]}), pa.record_batch({"v": [3.0, float("nan")]})
    plan = writer.prepare(db.context(), good.schema)
    attempt = writer.open(plan, 3, 1)
    attempt.write(good)
    with pytest.raises(TargetError, match="row 4 of task 3"):
        attempt.write(bad)
    attempt.rollback()
    writer.abort(plan, None)


def test_negative_zero_becomes_zero_as_sqlite_stores_it(db: Db) -> None:
    db.write(pa.table({"v": [-0.0]}))
    (value,) = db.read().column("v").to_pylist()
    assert str(value) == "0.0"


MISFITS = [
    ("INTEGER", "'12 apples'", "int64", "12 apples"),
    ("INTEGER", "2.5", "int64", "2.5"),
    ("INTEGER", "x'00'", "int64", "X'00'"),
    ("INT1", "128", "int8", "128"),
    ("REAL", "'N/A'", "double", "N/A"),
    ("FLOAT4", "0.1", "float", "0.1"),
    ("TEXT", "x'6162'", "string", "X'6162'"),
    ("BLOB", "'text'", "binary", "text"),
    ("BLOB", "5", "binary", "5"),
    ("DECIMAL(4,1)", "1.25", "decimal128", "1.25"),
    ("DECIMAL(4,1)", "12345.5", "decimal128", "12345.5"),
    ("DECIMAL(4,1)", "'abc'", "decimal128", "abc"),
    ("BOOLEAN", "2", "bool", "2"),
    ("BOOLEAN", "'true'", "bool", "true"),
    ("DATE", "'2024-02-30'", "date32", "2024-02-30"),
    ("DATE", "20240131", "date32", "20240131"),
    ("DATETIME", "1700000000", "timestamp", "1700000000"),
    ("DATETIME", "'2024-01-01 00:00:00Z'", "timestamp", "2024-01-01 00:00:00Z"),
    ("TIMESTAMPTZ", "'2024-01-01 00:00:00'", "timestamp", "2024-01-01 00:00:00"),
    ("TIME", "'24:00:00'", "time64", "24:00:00"),
]


@pytest.mark.parametrize("before", [0, 3, 5000], ids=lambda rows: f"after-{rows}-rows")
@pytest.mark.parametrize(("declared", "literal", "kind", "shown"), MISFITS)
def test_a_value_that_is_not_of_its_type_is_named(
    db: Db, declared: str, literal: str, kind: str, shown: str, before: int
) -> None:
    db.sql(f"CREATE TABLE t (id INTEGER PRIMARY KEY, v {declared})")
    db.many("INSERT INTO t VALUES (?, NULL)", [(number,) for number in range(1, before + 1)])
    db.sql(f"INSERT INTO t VALUES (70000, {literal})")
    with pytest.raises(SourceError) as caught:
        db.read(fetchsize="1000")
    message = str(caught.value)
    assert "column 'v'" in message
    assert "rowid 70000" in message
    assert shown in message
    assert kind in message
    assert "customSchema" in message


@pytest.mark.parametrize(
    ("declared", "kind"),
    [
        ("INTEGER", pa.int64()),
        ("INT", pa.int64()),
        ("BIGINT", pa.int64()),
        ("UNSIGNED BIG INT", pa.int64()),
        ("smallint", pa.int64()),
        ("MEDIUMINT", pa.int64()),
        ("TINYINT", pa.int64()),
        ("REAL", pa.float64()),
        ("DOUBLE PRECISION", pa.float64()),
        ("FLOAT", pa.float64()),
        ("VARCHAR(255)", pa.string()),
        ("NCHAR(55)", pa.string()),
        ("CLOB", pa.string()),
        ("JSON", pa.string()),
        ("STRING", pa.string()),
        ("NUMERIC(10, 5)", pa.decimal128(10, 5)),
        ("DECIMAL(9)", pa.decimal128(9, 0)),
        ("BIT(1)", pa.bool_()),
        ("TIMESTAMP(6) WITH TIME ZONE", pa.timestamp("us", "UTC")),
        ("timestamp without time zone", pa.timestamp("us")),
        ("DATETIME", pa.timestamp("us")),
        ("", None),
        ("NUMERIC", None),
        ("GEOMETRY", None),
        ("POINT", None),
        ("DECIMAL(99,2)", None),
    ],
)
def test_declared_types(declared: str, kind: pa.DataType | None) -> None:
    assert declared_type(declared) == kind


@pytest.mark.parametrize(
    "declared", [case[2] for case in KEPT] + ["STRING", "POINT", "", "VARBLOB", "x"]
)
def test_affinity_is_sqlites(db: Db, declared: str) -> None:
    """How SQLite stores the text of a number shows a column's affinity."""
    db.sql(f"CREATE TABLE a (v {declared})")
    db.sql("INSERT INTO a VALUES ('1.5'), ('7')")
    kinds = tuple(kind for (kind,) in db.sql("SELECT typeof(v) FROM a ORDER BY rowid"))
    expected = {
        "INTEGER": ("real", "integer"),
        "NUMERIC": ("real", "integer"),
        "REAL": ("real", "real"),
    }
    assert kinds == expected.get(affinity(declared), ("text", "text"))


OTHERS: dict[str, list[tuple[str, str, pa.DataType, Any]]] = {
    "INTEGER, INT, TINYINT, SMALLINT, MEDIUMINT, BIGINT, INT8, with or without UNSIGNED": [
        (f"{declared}{unsigned}", "-9223372036854775808", pa.int64(), -(2**63))
        for declared in ("INTEGER", "INT", "TINYINT", "SMALLINT", "MEDIUMINT", "BIGINT", "INT8")
        for unsigned in ("", " UNSIGNED")
    ],
    "REAL, DOUBLE, DOUBLE PRECISION, FLOAT": [
        (declared, "0.1", pa.float64(), 0.1)
        for declared in ("REAL", "DOUBLE", "DOUBLE PRECISION", "FLOAT")
    ],
    "DECIMAL(p,s), NUMERIC(p,s), NUMBER(p,s)": [
        (declared, "12.25", pa.decimal128(10, 2), D("12.25"))
        for declared in ("DECIMAL(10,2)", "NUMERIC(10, 2)", "NUMBER(10,2)")
    ],
    "anything with CHAR, CLOB or TEXT; STRING, JSON, UUID": [
        (declared, f"'{PLANES}'", pa.string(), PLANES)
        for declared in ("VARCHAR(3)", "NCHAR", "CLOB", "LONGTEXT", "STRING", "JSON", "UUID")
    ],
    "anything with BLOB; BINARY, VARBINARY, BYTEA": [
        (declared, "x'00ff'", pa.binary(), b"\0\xff")
        for declared in ("TINYBLOB", "BINARY(2)", "VARBINARY(9)", "BYTEA")
    ],
    "BOOLEAN, BOOL, BIT": [
        (declared, "1", pa.bool_(), True) for declared in ("BOOLEAN", "BOOL", "BIT")
    ],
    "DATE; TIME; DATETIME, TIMESTAMP; TIMESTAMPTZ, TIMESTAMP WITH TIME ZONE": [
        ("DATE", "'0001-01-01'", pa.date32(), dt.date(1, 1, 1)),
        ("TIME", "'23:59:59.999999'", pa.time64("us"), dt.time(23, 59, 59, 999999)),
        (
            "DATETIME",
            "'9999-12-31 23:59:59'",
            pa.timestamp("us"),
            dt.datetime(9999, 12, 31, 23, 59, 59),
        ),
        (
            "TIMESTAMP",
            "'2024-01-31T12:00:00.5'",
            pa.timestamp("us"),
            dt.datetime(2024, 1, 31, 12, 0, 0, 500000),
        ),
        (
            "TIMESTAMPTZ",
            "'2024-01-31 12:00:00+02:00'",
            pa.timestamp("us", "UTC"),
            dt.datetime(2024, 1, 31, 10, tzinfo=UTC),
        ),
        (
            "TIMESTAMP WITH TIME ZONE",
            "'2024-01-31 12:00:00Z'",
            pa.timestamp("us", "UTC"),
            dt.datetime(2024, 1, 31, 12, tzinfo=UTC),
        ),
    ],
    "no type, or any other": [
        ("", "7", pa.int64(), 7),
        ("GEOMETRY", "0.5", pa.float64(), 0.5),
        ("POINT", f"'{PLANES}'", pa.string(), PLANES),
        ("", "x'00'", pa.binary(), b"\0"),
    ],
}


def test_each_row_of_the_second_table_has_a_case() -> None:
    assert list(OTHERS) == table_rows("embedded", "declared in SQLite")


@pytest.mark.parametrize("row", OTHERS)
def test_a_table_that_others_made_is_read_and_written_as_it_is(db: Db, row: str) -> None:
    """A column per type of the row, read, and written into a table of the same types."""
    cases = OTHERS[row]
    columns = ", ".join(f"c{number} {declared}" for number, (declared, *_) in enumerate(cases))
    db.sql(f"CREATE TABLE t ({columns})")
    db.sql(f"CREATE TABLE copy ({columns})")
    db.sql(f"INSERT INTO t VALUES ({', '.join(literal for _, literal, *_ in cases)})")
    db.sql(f"INSERT INTO t VALUES ({', '.join('NULL' for _ in cases)})")
    back = db.read()
    for number, (declared, _, kind, value) in enumerate(cases):
        assert back.schema.field(f"c{number}").type == kind, declared
        assert back[f"c{number}"].to_pylist() == [value, None], declared
    db.write(back, dbtable="copy")
    assert db.read("copy") == back
    if "DATE" not in row:  # a time has several spellings
        shown = ", ".join(f"quote(c{number})" for number in range(len(cases)))
        expected = db.sql(f"SELECT {shown} FROM t ORDER BY rowid")
        assert db.sql(f"SELECT {shown} FROM copy ORDER BY rowid") == expected


def test_columns_without_a_type_are_typed_by_their_values(db: Db) -> None:
    db.sql("CREATE TABLE t (i, r, s, b, n, m NUMERIC, x)")
    db.sql("INSERT INTO t VALUES (1, 1, 'a', x'00', NULL, '12', 1)")
    db.sql("INSERT INTO t VALUES (2, 2.5, '007', x'01', NULL, 13, 'one')")
    table = db.read()
    assert table.schema.types == [
        pa.int64(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.string(),
        pa.int64(),
        pa.string(),
    ]
    assert table.to_pylist()[0] == {
        "i": 1,
        "r": 1.0,
        "s": "a",
        "b": b"\0",
        "n": None,
        "m": 12,
        "x": "1",
    }
    assert table.to_pylist()[1]["x"] == "one"


def test_blobs_beside_text_without_a_type_are_refused(db: Db) -> None:
    db.sql("CREATE TABLE t (v)")
    db.sql("INSERT INTO t VALUES ('a'), (x'00')")
    with pytest.raises(
        SchemaError, match="column 'v' declares no type, and holds blobs beside text"
    ):
        db.read()


def test_a_whole_number_beyond_a_double_is_not_rounded(db: Db) -> None:
    db.sql("CREATE TABLE t (v)")
    db.sql("INSERT INTO t VALUES (0.5), (9007199254740993)")
    with pytest.raises(SourceError, match=r"rowid 2 holds 9007199254740993 \(integer\)"):
        db.read()


@pytest.mark.parametrize(
    ("declared", "value"), [("DATE", "0000-01-01"), ("TIMESTAMP", "0000-12-31 23:59:59")]
)
def test_the_year_0_is_refused(db: Db, declared: str, value: str) -> None:
    db.sql(f"CREATE TABLE t (v {declared})")
    db.sql(f"INSERT INTO t VALUES ('0001-01-01'), ('{value}')")
    with pytest.raises(SourceError, match=rf"column 'v', .* rowid 2 holds '{value}'.*'where'"):
        db.read()


def test_invalid_utf8_is_named(db: Db) -> None:
    db.sql("CREATE TABLE t (v TEXT)")
    db.sql("INSERT INTO t VALUES ('fine'), (CAST(x'ff41' AS TEXT))")
    with pytest.raises(SourceError, match=r"column 'v'.* rowid 2 .*xffA"):
        db.read()


def test_custom_schema_reads_what_the_declaration_hides(db: Db) -> None:
    db.sql("CREATE TABLE t (code INTEGER, price REAL, day TEXT, flag INT)")
    db.sql("INSERT INTO t VALUES ('N/A', 12.5, '2024-01-31', 1), (5, 0.25, NULL, 0)")
    table = db.read(customSchema="CODE STRING, price DECIMAL(10, 2), day DATE, flag BOOLEAN")
    assert table.to_pylist() == [
        {"code": "N/A", "price": D("12.50"), "day": dt.date(2024, 1, 31), "flag": True},
        {"code": "5", "price": D("0.25"), "day": None, "flag": False},
    ]


def test_a_utf16_database_is_read_as_text(db: Db) -> None:
    db.sql("PRAGMA encoding = 'UTF-16le'")
    import sqlite3

    connection = sqlite3.connect(db.path)
    connection.execute("PRAGMA encoding = 'UTF-16le'")
    connection.execute("CREATE TABLE t (v TEXT)")
    connection.execute("INSERT INTO t VALUES ('漢字 🚀')")
    connection.commit()
    connection.close()
    assert db.read().column("v").to_pylist() == ["漢字 🚀"]


def _values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_decimal(kind):
        return st.decimals(
            allow_nan=False,
            allow_infinity=False,
            places=kind.scale,
            min_value=-(10 ** (kind.precision - kind.scale)) + 1,
            max_value=10 ** (kind.precision - kind.scale) - 1,
        )
    if kind == pa.timestamp("us"):
        return st.datetimes()
    if kind == pa.timestamp("us", "UTC"):
        return st.datetimes(timezones=st.just(UTC))
    return {
        pa.int64(): st.integers(-(2**63), 2**63 - 1),
        pa.float64(): st.floats(allow_nan=False).map(lambda value: value + 0.0),
        pa.string(): st.text(st.characters(codec="utf-8")),
        pa.binary(): st.binary(),
        pa.date32(): st.dates(),
    }[kind]


@pytest.mark.parametrize(
    "kind",
    [
        pa.int64(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.date32(),
        pa.timestamp("us"),
        pa.timestamp("us", "UTC"),
        pa.decimal128(15, 4),
        pa.decimal128(38, 18),
        pa.decimal128(20, 5),
    ],
    ids=str,
)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_value_comes_back(db: Db, kind: pa.DataType, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | _values(kind), min_size=1, max_size=20))
    table = pa.table({"v": pa.array(values, kind)})
    db.write(table, overwrite=True)
    assert db.read().to_pylist() == table.to_pylist()


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("0.1 + 0.2", "0.30"),
        ("12", "12.00"),
        ("1e3", "1000.00"),
        ("-0.07", "-0.07"),
        ("1.1 * 3", "3.30"),
        ("NULL", None),
    ],
)
def test_decimals_are_what_sqlite_shows_of_its_numbers(
    db: Db, literal: str, value: str | None
) -> None:
    db.sql("CREATE TABLE t (v DECIMAL(10,2))")
    db.sql(f"INSERT INTO t VALUES ({literal}), (5.25)")
    assert db.read().column("v").to_pylist() == [value and D(value), D("5.25")]


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(scale=st.integers(0, 15), data=st.data())
def test_any_decimal_of_15_digits_comes_back_from_a_real(
    db: Db, scale: int, data: st.DataObject
) -> None:
    whole = data.draw(st.lists(st.integers(-(10**15) + 1, 10**15 - 1), min_size=1, max_size=20))
    kind = pa.decimal128(15, scale)
    table = pa.table({"v": pa.array([D(number).scaleb(-scale) for number in whole], kind)})
    db.write(table, overwrite=True, truncate="false")
    assert db.read() == table


def test_the_name_of_a_type_is_read_as_that_type() -> None:
    for kind, _, declared, _ in KEPT:
        assert SqliteWriteDialect().created_type("v", kind, key=False) == declared
        assert declared_type(declared) == kind


REALS = [
    0.1,
    1 / 3,
    0.1234567890123456,
    0.30000000000000004,
    123456789.123456789,
    -2.5,
    4503599627370496.5,
    0.0,
]


def test_a_real_is_the_shortest_number_that_gives_it_back(db: Db) -> None:
    db.sql("CREATE TABLE t (id INTEGER PRIMARY KEY, d DECIMAL(38, 20), s)")
    db.many("INSERT INTO t (d, s) VALUES (?, ?)", [(each, each) for each in REALS])
    found = db.read(customSchema="s STRING")
    assert found["d"].to_pylist() == [Decimal(repr(each)) for each in REALS]
    assert found["s"].to_pylist() == [repr(each) for each in REALS]


@pytest.mark.parametrize(
    ("declared", "real"),
    [
        ("DECIMAL(15,15)", 0.1234567890123456),
        ("DECIMAL(15,2)", 1234567890123.4567),
        ("DECIMAL(18,2)", 0.125),
        ("DECIMAL(18,2)", 12345.678901234567),
        ("DECIMAL(20,16)", 0.12345678901234566),
    ],
)
def test_a_real_with_more_digits_than_its_column_is_refused(
    db: Db, declared: str, real: float
) -> None:
    db.sql(f"CREATE TABLE t (d {declared})")
    db.sql("INSERT INTO t VALUES (?)", real)
    with pytest.raises(SourceError, match=r"column 'd'.* holds"):
        db.read()


@pytest.mark.parametrize("declared", ["DECIMAL(10,2)", "DECIMAL(18,2)", "DECIMAL(38,2)"])
def test_a_sum_of_reals_is_the_decimal_that_it_stands_for(db: Db, declared: str) -> None:
    sums = [0.1 + 0.2, 0.1 * 3, 1.1 + 2.2, 100.1 + 200.2, -0.1 - 0.7]
    db.sql(f"CREATE TABLE t (d {declared})")
    db.many("INSERT INTO t VALUES (?)", [(each,) for each in sums])
    assert db.read()["d"].to_pylist() == [round(Decimal(each), 2) for each in sums]
