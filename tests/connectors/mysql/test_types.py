"""docs/mysql.md's tables of types, row by row, against the server's own text."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from spark_channel.errors import SchemaError, SourceError, TargetError
from tests.connectors.mysql.shop import Shop
from tests.connectors.sql.documented import PLANES, table_rows

UTC = dt.UTC
FLOAT_MAX = 2.0**128 - 2.0**104
LARGE = "12345678901234567890.123456789012345678"
ODD = 'a,"b"\'c\\d\n\r\t\0e`; -- NULL'
Made = tuple[str, pa.DataType, str, list[object], list[str]]
WRITTEN: dict[str, list[Made]] = {
    "bool": [("bool", pa.bool_(), "tinyint(1)", [True, False], ["1", "0"])],
    "int8, int16, int32, int64": [
        ("int8", pa.int8(), "tinyint(4)", [-128, 127], ["-128", "127"]),
        ("int16", pa.int16(), "smallint(6)", [-32768, 32767], ["-32768", "32767"]),
        ("int32", pa.int32(), "int(11)", [-(2**31), 2**31 - 1], ["-2147483648", "2147483647"]),
        (
            "int64",
            pa.int64(),
            "bigint(20)",
            [-(2**63), 2**63 - 1],
            ["-9223372036854775808", "9223372036854775807"],
        ),
    ],
    "uint8, uint16, uint32, uint64": [
        ("uint8", pa.uint8(), "tinyint(3) unsigned", [0, 255], ["0", "255"]),
        ("uint16", pa.uint16(), "smallint(5) unsigned", [0, 65535], ["0", "65535"]),
        ("uint32", pa.uint32(), "int(10) unsigned", [0, 2**32 - 1], ["0", "4294967295"]),
        (
            "uint64",
            pa.uint64(),
            "bigint(20) unsigned",
            [0, 2**64 - 1],
            ["0", "18446744073709551615"],
        ),
    ],
    "float32, float64": [
        (
            "float32",
            pa.float32(),
            "float",
            [1.5, 16777216.0, 2.0**-126, FLOAT_MAX],
            ["1.5", "16777200", "1.17549e-38", "3.40282e38"],
        ),
        (
            "float64",
            pa.float64(),
            "double",
            [0.1, 1 / 3, 1e308, 5e-324],
            ["0.1", "0.3333333333333333", "1e308", "5e-324"],
        ),
    ],
    "decimal up to 38 digits, scale up to 30": [
        (
            "decimal(38,18)",
            pa.decimal128(38, 18),
            "decimal(38,18)",
            [Decimal(LARGE), Decimal("-1E-18")],
            [LARGE, "-0.000000000000000001"],
        ),
        ("decimal(5,2)", pa.decimal128(5, 2), "decimal(5,2)", [Decimal("-999.99")], ["-999.99"]),
        (
            "decimal(38,30)",
            pa.decimal128(38, 30),
            "decimal(38,30)",
            [Decimal("-1E-30")],
            [f"-0.{29 * '0'}1"],
        ),
        ("decimal(38,0)", pa.decimal128(38, 0), "decimal(38,0)", [Decimal(38 * "9")], [38 * "9"]),
    ],
    "string": [("string", pa.string(), "longtext", ["", PLANES, ODD, "NULL"], [])],
    "binary": [("binary", pa.binary(), "longblob", [b"", bytes(range(256)), b"NULL"], [])],
    "date32, year 1 to 9999": [
        (
            "date",
            pa.date32(),
            "date",
            [dt.date(1, 1, 1), dt.date(9999, 12, 31)],
            ["0001-01-01", "9999-12-31"],
        ),
    ],
    "time64[us]": [
        (
            "time",
            pa.time64("us"),
            "time(6)",
            [dt.time(0), dt.time(23, 59, 59, 999999)],
            ["00:00:00.000000", "23:59:59.999999"],
        ),
    ],
    "timestamp[us] (timestamp_ntz), year 1 to 9999": [
        (
            "timestamp_ntz",
            pa.timestamp("us"),
            "datetime(6)",
            [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)],
            ["0001-01-01 00:00:00.000000", "9999-12-31 23:59:59.999999"],
        ),
    ],
    "timestamp[us, tz] (timestamp)": [
        (
            "timestamp",
            pa.timestamp("us", "UTC"),
            "timestamp(6)",
            [
                dt.datetime(1970, 1, 1, 0, 0, 1, 0, UTC),
                dt.datetime(2038, 1, 19, 3, 14, 7, 999999, UTC),
            ],
            ["1970-01-01 00:00:01.000000", "2038-01-19 03:14:07.999999"],
        ),
    ],
    "dictionary": [
        (
            "dictionary",
            pa.dictionary(pa.int8(), pa.string()),
            "longtext",
            ["a", "b", "a"],
            ["a", "b", "a"],
        )
    ],
}
UNWRITTEN: dict[str, list[pa.DataType]] = {
    "list, struct, map, interval, duration, null": [
        pa.list_(pa.int32()),
        pa.struct([("a", pa.int32())]),
        pa.map_(pa.string(), pa.int32()),
        pa.month_day_nano_interval(),
        pa.duration("us"),
        pa.null(),
        pa.decimal128(38, 31),
        pa.decimal256(40, 0),
    ],
}


def test_each_row_of_the_first_table_has_a_case() -> None:
    assert [*WRITTEN, *UNWRITTEN] == table_rows("mysql", "Arrow (Spark)")


@pytest.mark.parametrize("local", [None, "false"], ids=["load", "insert"])
def test_new_columns_give_back_what_they_were_given(shop: Shop, local: str | None) -> None:
    """All types in one table: a row per value, so that each meets NULLs too."""
    written = [case for cases in WRITTEN.values() for case in cases]
    height = max(len(values) for _, _, _, values, _ in written) + 1
    table = pa.table(
        {
            name: pa.array([*values, *[None] * (height - len(values))], kind)
            for name, kind, _, values, _ in written
        }
    ).append_column("id", pa.array(range(height), pa.int32()))
    shop.write(table, localInfile=local)
    about = shop.rows(
        "SELECT column_name, column_type FROM information_schema.columns "
        "WHERE table_schema = DATABASE() AND table_name = 't'"
    )
    declared = {row[0]: row[1] for row in about}
    back = shop.read().sort_by("id")
    for name, kind, wanted, values, texts in written:
        assert declared[name] == wanted
        assert back.schema.field(name).type == (
            pa.string() if pa.types.is_dictionary(kind) else kind
        )
        assert back[name].to_pylist() == table[name].to_pylist(), name
        if texts:
            stored = [
                text
                for (text,) in shop.rows(
                    f"SELECT `{name}` FROM t WHERE `{name}` IS NOT NULL ORDER BY id"
                )
            ]
            assert stored == texts, name
        assert shop.sql(f"SELECT COUNT(*) FROM t WHERE `{name}` IS NULL") == str(
            height - len(values)
        )
    hexed = [
        text
        for (text,) in shop.rows(
            "SELECT HEX(`string`) FROM t WHERE `string` IS NOT NULL ORDER BY id"
        )
    ]
    assert hexed == [text.encode().hex().upper() for text in ("", PLANES, ODD, "NULL")]
    assert shop.sql("SELECT HEX(`binary`) FROM t WHERE id = 1") == bytes(range(256)).hex().upper()


Shown = tuple[str, str, pa.DataType, object]
MEMBERS = "'x','y''z','a,b \\\\ c','é','1'"
READ: dict[str, list[Shown]] = {
    "mediumint, mediumint unsigned; year": [
        ("MEDIUMINT", "-8388608", pa.int32(), -8388608),
        ("MEDIUMINT UNSIGNED", "16777215", pa.uint32(), 16777215),
        ("YEAR", "2024", pa.int16(), 2024),
        ("YEAR", "0", pa.int16(), 0),
        ("YEAR", "2155", pa.int16(), 2155),
    ],
    "bit(1); bit(n); bit(64)": [
        ("BIT(1)", "b'1'", pa.bool_(), True),
        ("BIT(9)", "b'101010101'", pa.int64(), 341),
        ("BIT(63)", "0x7FFFFFFFFFFFFFFF", pa.int64(), 2**63 - 1),
        ("BIT(64)", "0xFFFFFFFFFFFFFFFF", pa.uint64(), 2**64 - 1),
    ],
    "enum, set, json, uuid, inet4, inet6, any text in any character set": [
        ("ENUM('x','y''z')", "'y''z'", pa.string(), "y'z"),
        (f"ENUM({MEMBERS})", "'a,b \\\\ c'", pa.string(), "a,b \\ c"),
        (f"ENUM({MEMBERS})", "'1'", pa.string(), "1"),
        (f"ENUM({MEMBERS})", "'é'", pa.string(), "é"),
        ("ENUM('a','A') COLLATE utf8mb4_bin", "'A'", pa.string(), "A"),
        ("SET('a','b')", "'a,b'", pa.string(), "a,b"),
        ("SET('a','b')", "''", pa.string(), ""),
        ("JSON", '\'{"a" :  "é"}\'', pa.string(), '{"a" :  "é"}'),
        (
            "UUID",
            "'123e4567-e89b-12d3-a456-426614174000'",
            pa.string(),
            "123e4567-e89b-12d3-a456-426614174000",
        ),
        ("INET4", "'1.2.3.4'", pa.string(), "1.2.3.4"),
        ("INET6", "'::1'", pa.string(), "::1"),
        ("CHAR(5)", "'ab'", pa.string(), "ab"),
        ("TINYTEXT", f"'{PLANES}'", pa.string(), PLANES),
        ("VARCHAR(5) CHARACTER SET latin1", "'é€'", pa.string(), "é€"),
        ("VARCHAR(5) CHARACTER SET ucs2", "'é€'", pa.string(), "é€"),
        ("VARCHAR(40) CHARACTER SET utf16", f"'{PLANES}'", pa.string(), PLANES),
        ("TEXT CHARACTER SET utf32", f"'{PLANES}'", pa.string(), PLANES),
        ("TEXT CHARACTER SET sjis", "'日本'", pa.string(), "日本"),
    ],
    "the first table's types as others declare them": [
        ("BINARY(3)", "x'010203'", pa.binary(), b"\x01\x02\x03"),
        ("TINYBLOB", "x'00ff'", pa.binary(), b"\x00\xff"),
        (
            "DATETIME",
            "'2024-01-31 12:00:01'",
            pa.timestamp("us"),
            dt.datetime(2024, 1, 31, 12, 0, 1),
        ),
        (
            "TIMESTAMP(3)",
            "'2024-01-31 12:00:01.5'",
            pa.timestamp("us", "UTC"),
            dt.datetime(2024, 1, 31, 12, 0, 1, 500000, UTC),
        ),
        ("TIME", "'12:00:01'", pa.time64("us"), dt.time(12, 0, 1)),
        ("DOUBLE", "2.2250738585072014e-308", pa.float64(), 2.2250738585072014e-308),
        ("DECIMAL(10,2) UNSIGNED", "99999999.99", pa.decimal128(10, 2), Decimal("99999999.99")),
        ("INT(10) ZEROFILL", "42", pa.uint32(), 42),
        ("DECIMAL(10,2) ZEROFILL", "1.5", pa.decimal128(10, 2), Decimal("1.50")),
        ("DOUBLE ZEROFILL", "1.5", pa.float64(), 1.5),
    ],
}
REFUSED: dict[str, list[tuple[str, str, str]]] = {
    "0000-00-00 and dates with a zero inside": [
        ("DATE", "'0000-00-00'", "0000-00-00"),
        ("DATETIME", "'0000-00-00'", "0000-00-00"),
        ("TIMESTAMP NULL", "'0000-00-00'", "0000-00-00"),
        ("DATE", "'2024-00-10'", "2024-00-10"),
        ("DATE", "'0000-01-01'", "0000-01-01"),
        ("DATETIME(6)", "'0000-12-31 23:59:59.5'", "0000-12-31 23:59:59.5"),
    ],
    "time below 0, or of 24 hours or more": [
        ("TIME", "'-12:00:00'", "-12:00:00"),
        ("TIME", "'838:59:59'", "838:59:59"),
        ("TIME", "'24:00:00'", "24:00:00"),
    ],
    "bool": [("TINYINT(1)", "7", "neither 0 nor 1")],
}
UNREAD: dict[str, list[str]] = {
    "decimal of more than 38 digits": ["DECIMAL(65,30)", "DECIMAL(39,0)"],
    "spatial types": ["POINT", "GEOMETRY", "LINESTRING", "POLYGON"],
}


def test_each_row_of_the_second_table_has_a_case() -> None:
    assert set(table_rows("mysql", "declared")) - {*READ, *REFUSED, *UNREAD} == set()


@pytest.mark.parametrize("row", READ)
def test_other_types_are_read_and_written_as_the_server_has_them(shop: Shop, row: str) -> None:
    """A column per type of the row, by table and by query; then written into a table of the same types."""
    cases = READ[row]
    columns = ", ".join(f"c{number} {declared} NULL" for number, (declared, *_) in enumerate(cases))
    values, nulls = ", ".join(literal for _, literal, *_ in cases), ", ".join("NULL" for _ in cases)
    shop.sql(
        f"CREATE TABLE t (id INT, {columns}); CREATE TABLE loaded LIKE t; CREATE TABLE inserted LIKE t;"
        f"INSERT INTO t VALUES (1, {values}), (2, {nulls})"
    )
    back = shop.read(columns=",".join(f"c{number}" for number in range(len(cases))))
    for read in (back, shop.read(None, query="SELECT * FROM t")):
        for number, (declared, _, kind, value) in enumerate(cases):
            assert read.schema.field(f"c{number}").type == kind, declared
            assert read[f"c{number}"].to_pylist() == [value, None], declared
    shown = ", ".join(
        f"{'HEX' if declared.startswith(('BI', 'TINYBLOB')) else 'CONCAT'}(c{number})"
        for number, (declared, *_) in enumerate(cases)
    )
    expected = shop.sql(f"SELECT {shown} FROM t ORDER BY id")
    for copy, local in (("loaded", None), ("inserted", "false")):
        shop.write(shop.read(), dbtable=copy, localInfile=local)
        assert shop.sql(f"SELECT {shown} FROM {copy} ORDER BY id") == expected


@pytest.mark.parametrize("local", [None, "false"], ids=["load", "insert"])
def test_a_float_in_a_column_of_doubles_is_the_same_number(shop: Shop, local: str | None) -> None:
    shop.sql("CREATE TABLE t (c DOUBLE)")
    given = pa.array([0.1, 1 / 3, None], pa.float32())
    shop.write(pa.table({"c": given}), localInfile=local)
    assert shop.read()["c"].to_pylist() == given.to_pylist()


def test_a_value_of_more_than_16_mib_comes_whole(shop: Shop) -> None:
    server = shop.server
    server.sql("SET GLOBAL max_allowed_packet = 1073741824")
    try:
        shop.sql("CREATE TABLE t (id INT PRIMARY KEY, c LONGTEXT)")
        shop.sql(
            "SET SESSION max_statement_time = 0; INSERT INTO t VALUES (1, REPEAT('x', 40000000)), (2, 'y')"
        )
        back = shop.read()
        assert [len(text) for text in back["c"].to_pylist()] == [40_000_000, 1]
    finally:
        server.sql("SET GLOBAL max_allowed_packet = DEFAULT")


@pytest.mark.parametrize(
    ("declared", "literal", "why"), [case for cases in REFUSED.values() for case in cases]
)
def test_what_spark_cannot_hold_is_refused_by_column(
    shop: Shop, declared: str, literal: str, why: str
) -> None:
    shop.sql(
        f"SET sql_mode = ''; CREATE TABLE t (id INT, c {declared}); INSERT INTO t VALUES (1, NULL), (2, {literal})"
    )
    with pytest.raises(SourceError, match=rf"column 'c', declared .*{why}.*customSchema"):
        shop.read()
    shown = shop.sql("SELECT CONCAT(c) FROM t WHERE id = 2")
    assert shop.read(customSchema="c STRING")["c"].to_pylist() == [None, shown]
    if "0000-00-00" in literal:
        assert shop.read(zeroDates="null")["c"].to_pylist() == [None, None]


@pytest.mark.parametrize("declared", [each for types in UNREAD.values() for each in types])
def test_a_type_that_spark_has_not_is_refused_by_column(shop: Shop, declared: str) -> None:
    shop.sql(f"CREATE TABLE t (id INT, c {declared})")
    with pytest.raises(SchemaError, match="column 'c' is"):
        shop.read()
    assert shop.read(columns="id").num_rows == 0


def test_what_is_refused_can_be_read_as_text(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (p POINT, d DECIMAL(65,30)); INSERT INTO t VALUES (POINT(1, 2), 1.5)")
    assert shop.read(columns="d", customSchema="d STRING")["d"].to_pylist() == [
        "1." + "5".ljust(30, "0")
    ]
    query = "SELECT ST_AsText(p) AS p FROM t"
    assert shop.read(None, query=query)["p"].to_pylist() == ["POINT(1 2)"]


@pytest.mark.parametrize(
    ("kind", "declared"),
    [
        (pa.int64(), "INT"),
        (pa.string(), "INT"),
        (pa.int32(), "VARCHAR(20)"),
        (pa.float64(), "FLOAT"),
        (pa.decimal128(10, 3), "DECIMAL(10,2)"),
        (pa.timestamp("us"), "TIMESTAMP"),
        (pa.int8(), "TINYINT UNSIGNED"),
        (pa.uint64(), "BIGINT"),
        (pa.timestamp("us", "UTC"), "DATETIME(6)"),
    ],
)
def test_a_type_that_does_not_fit_is_refused_before_any_task(
    shop: Shop, kind: pa.DataType, declared: str
) -> None:
    shop.sql(f"CREATE TABLE t (c {declared})")
    with pytest.raises(SchemaError, match="column 'c' is"):
        shop.writer().prepare(shop.context(), pa.schema([("c", kind)]))
    assert shop.staged() == []


BAD: list[tuple[str, pa.Array, str]] = [
    ("VARCHAR(3)", pa.array(["abc", "abcd"]), "too long|truncated"),
    ("CHAR(5)", pa.array(["ab "]), "drops the spaces"),
    ("BINARY(3)", pa.array([b"ab"]), "pads with zeros"),
    ("DATETIME", pa.array([dt.datetime(2024, 1, 1, 0, 0, 0, 5)]), "rounds it to 0 digits"),
    ("ENUM('a','b')", pa.array(["a", "c"]), "row 2 of task 0: 'c'.* none of these"),
    ("ENUM('a','b')", pa.array(["1"]), "none of these"),
    ("ENUM('a','b')", pa.array(["A"]), "none of these"),
    ("ENUM('a','b')", pa.array(["a "]), "none of these"),
    ("ENUM('a','b')", pa.array(["ä"]), "none of these"),
    ("SET('a','b')", pa.array(["", "a", "b", "a,b", "3"]), "row 5 .*in this order, each once"),
    ("SET('a','b')", pa.array(["b,a"]), "in this order, each once"),
    ("SET('a','b')", pa.array(["a,a"]), "in this order, each once"),
    ("BIT(9)", pa.array([512]), "Out of range|too long"),
    ("BIT(9)", pa.array([-1]), "negative|too long"),
    ("DECIMAL(4,2) UNSIGNED", pa.array([Decimal("-1.00")], pa.decimal128(4, 2)), "Out of range"),
    ("TEXT CHARACTER SET utf8mb3", pa.array(["😀"]), "Incorrect string value"),
    ("JSON", pa.array(["{"]), "CONSTRAINT"),
    ("YEAR", pa.array([24], pa.int16()), "a year is 0"),
    ("DOUBLE", pa.array([1.0, float("nan")]), "no NaN"),
    ("FLOAT", pa.array([float("inf")], pa.float32()), "no infinity"),
    ("VARCHAR(9) CHARACTER SET latin1", pa.array(["😀"]), "Incorrect string value"),
    (
        "TIMESTAMP(6)",
        pa.array([2**42 * 1000], pa.timestamp("us", "UTC")),
        "from 1970 to (2038|2106)",
    ),
    ("INT NOT NULL", pa.array([1, None], pa.int32()), "NULL|null"),
    ("INT CHECK (c > 0)", pa.array([1, 0], pa.int32()), "CONSTRAINT"),
    ("INT PRIMARY KEY", pa.array([1, 1], pa.int32()), "Duplicate entry"),
    ("UUID", pa.array(["no"]), "Incorrect uuid"),
]


@pytest.mark.parametrize("local", [None, "false"], ids=["load", "insert"])
@pytest.mark.parametrize("commit", ["job", "task"])
def test_a_value_that_would_be_changed_is_refused(
    shop: Shop, local: str | None, commit: str
) -> None:
    for declared, values, why in BAD:
        shop.sql(f"SET sql_mode = ''; CREATE OR REPLACE TABLE t (c {declared})")
        with pytest.raises(TargetError, match=why):
            shop.write(pa.table({"c": values}), localInfile=local, commit=commit)  # type: ignore[arg-type] # one of the two texts
        assert shop.sql("SELECT COUNT(*) FROM t") == "0", declared
    assert shop.staged() == []


@pytest.mark.parametrize("kind", [kind for kinds in UNWRITTEN.values() for kind in kinds], ids=str)
def test_a_type_that_mysql_has_not_is_refused_by_column(shop: Shop, kind: pa.DataType) -> None:
    with pytest.raises(SchemaError, match="column 'c' is"):
        shop.writer().prepare(shop.context(), pa.schema([("c", kind)]))


def test_a_decimal_that_arrow_has_no_digits_for_is_read_as_text(shop: Shop) -> None:
    digits = "123456789012345678901234567890123456789.5"
    shop.sql(f"CREATE TABLE t (d DECIMAL(50,10)); INSERT INTO t VALUES ({digits}), (NULL)")
    with pytest.raises(SchemaError, match="'d'"):
        shop.read()
    texts = shop.read(wideDecimals="text")["d"].to_pylist()
    assert [text if text is None else text.rstrip("0") for text in texts] == [digits, None]


LINES: list[list[str | None]] = [
    [""],
    ["", "", "a", ""],
    [" a ", " ", "\t", "a\t"],
    ["\\N", "N", "\\", "a\\"],
    ["null", "nULL", None],
    ["NU", "LL", "NULL"],
    ["\r", "\r\n", "a\0", "\x1a"],
    ['"', "'", '""', 'a"'],
    ["a,b", ","],
    ["é", "😀", None, ""],
]
"""Texts of one column, most of which are sent without quotes."""


@pytest.mark.parametrize("texts", LINES, ids=repr)
@pytest.mark.parametrize("beside", ["", "before", "behind"])
def test_texts_with_and_without_quotes_arrive_equal(
    shop: Shop, texts: list[str | None], beside: str
) -> None:
    columns = {"a": pa.array(texts, pa.string())}
    if beside:
        other = {"b": pa.array(["x"] * len(texts))}
        columns = {**other, **columns} if beside == "before" else {**columns, **other}
    shop.write(pa.table(columns))
    found = shop.read().column("a").to_pylist()
    assert sorted(found, key=repr) == sorted(texts, key=repr)


@pytest.mark.parametrize("before", range(5))
def test_a_text_between_two_pieces_of_a_column_is_seen(shop: Shop, before: int) -> None:
    texts = ["x" * ((1 << 20) - before), "NULL"]
    shop.write(pa.table({"a": pa.array(texts)}))
    assert sorted(shop.read().column("a").to_pylist()) == sorted(texts)


def test_long_values_between_short_ones_arrive_equal(shop: Shop) -> None:
    odd = 'a"b\\c\r\nd,\x00é€NULL'
    texts = ["NULL", odd * (2 * (1 << 20) // len(odd)), None, '"' * (1 << 21), "", "é" * (1 << 20)]
    data = [b"x", bytes(range(256)) * 8192, None, b"y", b"", bytes(1 << 21)]
    rows = pa.table({"n": list(range(6)), "a": texts, "b": pa.array(data, pa.binary())})
    shop.write(rows)
    assert shop.read().sort_by("n").to_pydict() == rows.to_pydict()
