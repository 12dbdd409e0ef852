"""Each row of the tables in docs/postgresql.md: read, written to a table of the same type, and compared by psql."""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import adbc_driver_postgresql
import pyarrow as pa
import pytest

from spark_channel.connectors import FetchSize
from spark_channel.connectors.postgresql.session.shared_database import _databases
from spark_channel.errors import OptionError, SchemaError, SourceError, TargetError
from spark_channel.options import CommitMode
from tests.connectors.postgresql.pg import Pg
from tests.connectors.sql.documented import PLANES, table_rows

Kept = tuple[str, pa.DataType, list[str]]
EXACT: dict[str, list[Kept]] = {
    "boolean, smallint, integer, bigint": [
        ("boolean", pa.bool_(), ["true", "false"]),
        ("smallint", pa.int16(), ["-32768", "32767"]),
        ("integer", pa.int32(), ["-2147483648", "2147483647"]),
        ("bigint", pa.int64(), ["-9223372036854775808", "9223372036854775807"]),
    ],
    "real, double precision": [
        (
            "real",
            pa.float32(),
            ["'NaN'", "'Infinity'", "'-Infinity'", "3.4028235e38", "1e-45", "'-0'", "0.1"],
        ),
        (
            "double precision",
            pa.float64(),
            [
                "'NaN'",
                "'Infinity'",
                "'-Infinity'",
                "1.7976931348623157e308",
                "5e-324",
                "'-0'",
                "0.1",
            ],
        ),
    ],
    "numeric(p,s), p up to 38, 0 <= s <= p": [
        (
            "numeric(38,18)",
            pa.decimal128(38, 18),
            ["-12345678901234567890.123456789012345678", "0.000000000000000001"],
        ),
        ("numeric(10,2)", pa.decimal128(10, 2), ["-99999999.99", "0.00", "12.30"]),
        ("numeric(38,0)", pa.decimal128(38, 0), ["99999999999999999999999999999999999999"]),
        ("numeric(38,38)", pa.decimal128(38, 38), ["-0.99999999999999999999999999999999999999"]),
    ],
    "numeric without precision, or larger": [
        (
            "numeric",
            pa.string(),
            ["'NaN'", "1e40", "0.1000", "'-Infinity'", "123456789012345678901234567890.123456789"],
        ),
        ("numeric(50,10)", pa.string(), ["1234567890123456789012345678901234567890.0123456789"]),
        ("numeric(5,-2)", pa.string(), ["12300"]),
        ("numeric(3,5)", pa.string(), ["0.00123"]),
    ],
    "text, varchar(n), char(n), name": [
        (
            "text",
            pa.string(),
            ["''", "'it''s'", "E'\\\\ \\n\\t\\r'", f"'{PLANES}'", "'NULL'", "E'\\x01\\x7f'"],
        ),
        ("varchar(5)", pa.string(), ["'abc  '", "'äöüß€'", "''"]),
        ("varchar(19)", pa.string(), [f"'{PLANES}'"]),
        ("char(5)", pa.string(), ["'abc'", "'äöüß€'"]),
        ("name", pa.string(), ["'a name'", "repeat('é', 31)::name"]),
    ],
    "bytea": [("bytea", pa.binary(), ["'\\x'", "'\\x00ff10'", f"'\\x{bytes(range(256)).hex()}'"])],
    "date": [("date", pa.date32(), ["'0001-01-01'", "'9999-12-31'", "'2024-02-29'"])],
    "time": [
        ("time", pa.time64("us"), ["'00:00'", "'23:59:59.999999'"]),
        ("time(3)", pa.time64("us"), ["'23:59:59.999'"]),
    ],
    "timestamp, timestamptz": [
        (
            "timestamp",
            pa.timestamp("us"),
            ["'0001-01-01'", "'9999-12-31 23:59:59.999999'", "'1969-12-31 23:59:59.9'"],
        ),
        (
            "timestamptz",
            pa.timestamp("us", "UTC"),
            ["'0001-01-01 00:00Z'", "'9999-12-31 23:59:59.999999Z'", "'2024-03-31 02:30+02'"],
        ),
        ("timestamptz(3)", pa.timestamp("us", "UTC"), ["'2024-01-01 00:00:00.123Z'"]),
    ],
    "uuid, json, jsonb, enums": [
        ("uuid", pa.string(), ["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"]),
        ("json", pa.string(), ["'{\"a\" :  [1, null]}'", "'\"ü\"'", f"'\"{PLANES}\"'"]),
        ("jsonb", pa.string(), ['\'{"a": [1, null], "b": 1.50}\'', f"'\"{PLANES}\"'"]),
        ("mood", pa.string(), ["'fine'", "'so so'"]),
    ],
    "interval, timetz, bit(n), bit varying, inet, cidr, macaddr, oid, xml, point, ranges, tsvector, "
    "composite types, and any other": [
        (
            "interval",
            pa.string(),
            ["'1 year 2 mons -3 days 04:05:06.789'", "'-178000000 years'", "'0'", "'-0.000001 s'"],
        ),
        ("timetz", pa.string(), ["'12:00:00.5+02'", "'24:00:00-15:59:59'"]),
        ("bit(3)", pa.string(), ["B'101'"]),
        ("bit varying", pa.string(), ["B'1010101'", "B''"]),
        ("bit varying(5)", pa.string(), ["B'10101'"]),
        ("inet", pa.string(), ["'10.0.0.1/8'", "'::1'", "'10.0.0.1'"]),
        ("cidr", pa.string(), ["'10.0.0.0/8'"]),
        ("macaddr", pa.string(), ["'08:00:2b:01:02:03'"]),
        ("macaddr8", pa.string(), ["'08:00:2b:01:02:03:04:05'"]),
        ("oid", pa.string(), ["4294967295"]),
        ("xml", pa.string(), ["'<a> b </a>'"]),
        ("point", pa.string(), ["'(1.5,-2)'", "'(0.1,1e-300)'"]),
        ("polygon", pa.string(), ["'((0,0),(1,1))'"]),
        ("int4range", pa.string(), ["'[1,5)'", "'empty'"]),
        ("tstzrange", pa.string(), ["'[2024-01-01,infinity)'"]),
        ("int4multirange", pa.string(), ["'{[1,3),[5,6)}'"]),
        ("tsvector", pa.string(), ["'a:1 b:2'"]),
        ("pair", pa.string(), ["'(1,\"x, y\")'", "'(,\"\")'"]),
        ('"char"', pa.string(), ["'a'"]),
        ("pg_lsn", pa.string(), ["'16/B374D848'"]),
        ("jsonpath", pa.string(), ["'$.a'"]),
    ],
    "money": [
        ("money", pa.string(), ["'-12.50'", "'-92233720368547758.08'"]),
        ("money[]", pa.list_(pa.string()), ["'{1.25,NULL}'", "'{}'"]),
    ],
    "regclass, regproc, regtype and the like": [
        ("regclass", pa.string(), ["'pg_class'"]),
        ("regtype", pa.string(), ["'int'", "'mood'"]),
        ("regproc[]", pa.list_(pa.string()), ["'{now,NULL}'"]),
        ("regrole", pa.string(), ["'tester'"]),
    ],
    "arrays of the first rows up to timestamptz": [
        ("boolean[]", pa.list_(pa.bool_()), ["'{t,NULL}'"]),
        ("smallint[]", pa.list_(pa.int16()), ["'{-32768}'"]),
        ("integer[]", pa.list_(pa.int32()), ["'{1,NULL,-3}'", "'{}'", "'{NULL}'"]),
        ("bigint[]", pa.list_(pa.int64()), ["'{9223372036854775807}'"]),
        ("real[]", pa.list_(pa.float32()), ["'{NaN,-0,1e-45,Infinity}'"]),
        ("double precision[]", pa.list_(pa.float64()), ["'{NaN,-0,5e-324,-Infinity}'"]),
        (
            "text[]",
            pa.list_(pa.string()),
            ['\'{a,"b, \\"c\\"",NULL,"NULL",""}\'', f"'{{{PLANES}}}'"],
        ),
        ("varchar(5)[]", pa.list_(pa.string()), ["'{\"abc  \"}'"]),
        ("char(5)[]", pa.list_(pa.string()), ["'{abc}'"]),
        ("name[]", pa.list_(pa.string()), ["'{x}'"]),
        ("bytea[]", pa.list_(pa.binary()), ["ARRAY['\\x00'::bytea]"]),
        ("date[]", pa.list_(pa.date32()), ["'{0001-01-01,9999-12-31}'"]),
        ("time[]", pa.list_(pa.time64("us")), ["'{23:59:59.999999}'"]),
        (
            "timestamp[]",
            pa.list_(pa.timestamp("us")),
            ["'{0001-01-01 00:00:00,9999-12-31 23:59:59.999999}'"],
        ),
        ("timestamptz[]", pa.list_(pa.timestamp("us", "UTC")), ["'{2024-01-01 00:00Z}'"]),
    ],
    "arrays of numeric, uuid, json, enums and others": [
        ("numeric[]", pa.list_(pa.string()), ["'{NaN,1.50,1e50}'"]),
        ("numeric(10,2)[]", pa.list_(pa.string()), ["'{1.50,NULL}'"]),
        ("uuid[]", pa.list_(pa.string()), ["'{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11,NULL}'"]),
        ("json[]", pa.list_(pa.string()), ["ARRAY['{\"a\" : 1}'::json]"]),
        ("jsonb[]", pa.list_(pa.string()), ["ARRAY['{\"a\": 1}'::jsonb]"]),
        ("mood[]", pa.list_(pa.string()), ["'{fine}'"]),
        ("pair[]", pa.list_(pa.string()), ["ARRAY[(1,'x, y')::pair]"]),
        ("positive[]", pa.list_(pa.string()), ["'{1,2}'"]),
        ("interval[]", pa.list_(pa.string()), ["'{1 day,NULL}'"]),
        ("inet[]", pa.list_(pa.string()), ["'{::1}'"]),
        ("bit(3)[]", pa.list_(pa.string()), ["'{101}'"]),
        ("box[]", pa.list_(pa.string()), ["ARRAY['(1,1),(0,0)'::box]"]),
    ],
    "domains": [
        ("positive", pa.int32(), ["5"]),
        ("words", pa.string(), [f"'{PLANES}'"]),
        ("ints", pa.list_(pa.int32()), ["'{1,NULL}'"]),
        ("price", pa.decimal128(10, 2), ["1.50"]),
    ],
}


def test_each_row_of_the_first_table_has_a_case() -> None:
    assert list(EXACT) == table_rows("postgresql", "PostgreSQL")


@pytest.mark.parametrize("commit", ["job", "task"])
def test_types_survive_the_round_trip(pg: Pg, commit: CommitMode) -> None:
    """A column per type; a value and NULLs per line, each line with one column's value."""
    cases = [case for row in EXACT.values() for case in row]
    names = make_typed_tables(pg, cases)
    read = pg.read("a")
    assert [
        (declared, read.schema.field(name).type)
        for name, (declared, _, _) in zip(names, cases, strict=True)
    ] == [(declared, kind) for declared, kind, _ in cases]
    if commit == "task":
        assert repr(_through_a_cursor(pg, "a").to_pylist()) == repr(read.sort_by("n").to_pylist())
    pg.write(read, dbtable="b", commit=commit)
    check_equal(pg, names)


def make_typed_tables(pg: Pg, cases: list[Kept]) -> list[str]:
    """Tables `a`, with the values of `cases`, and `b`, empty; returns their columns' names beside the number `n`."""
    names = [f"c{number}" for number in range(len(cases))]
    columns = ", ".join(
        f"{name} {declared}" for name, (declared, _, _) in zip(names, cases, strict=True)
    )
    pg.psql(
        "CREATE TYPE mood AS ENUM ('fine', 'so so'); CREATE TYPE pair AS (a int, b text);"
        "CREATE DOMAIN positive AS int CHECK (value > 0); CREATE DOMAIN words AS text;"
        "CREATE DOMAIN ints AS int[]; CREATE DOMAIN price AS numeric(10,2);"
        f"CREATE TABLE a (n serial PRIMARY KEY, {columns}); CREATE TABLE b (n int, {columns});"
        + "".join(
            f"INSERT INTO a ({name}) VALUES ({value});"
            for name, (_, _, values) in zip(names, cases, strict=True)
            for value in values
        )
    )
    return names


def test_the_types_of_users_are_never_listed(pg: Pg, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list has two rows for each table of the database. What is read as text needs none of it."""
    pg.psql(
        "CREATE TYPE mood AS ENUM ('fine', 'so so'); CREATE DOMAIN small AS int;"
        "CREATE TYPE money2 AS (a int, b text); CREATE DOMAIN int4 AS bigint;"
        "CREATE TABLE t (i int, a text[], m mood, ms mood[], s small, p money2, n numeric(9,2));"
        "INSERT INTO t VALUES (1, '{x,NULL}', 'so so', '{fine}', 2, '(3,y)', 4.50);"
        f"CREATE TYPE {pg.schema}.text AS ENUM ('own'); CREATE TABLE own (o {pg.schema}.text);"
        "INSERT INTO own VALUES ('own')"
    )
    _databases.clear()
    asked: list[str] = []
    connect = adbc_driver_postgresql.connect

    def noted(url: str, options: dict[str, str]) -> Any:
        asked.extend(options.values())
        return connect(url, options)

    monkeypatch.setattr(adbc_driver_postgresql, "connect", noted)
    row = {"i": 1, "a": ["x", None], "m": "so so", "ms": ["fine"], "s": 2, "p": "(3,y)"}
    row["n"] = Decimal("4.50")
    assert pg.read().to_pylist() == [row]
    assert pg.read(None, query="SELECT * FROM t").to_pylist() == [row]
    assert pg.read("own").to_pylist() == [{"o": "own"}]
    assert pg.read(None, query="SELECT * FROM own").to_pylist() == [{"o": "own"}]
    assert asked == ["builtin"]


def test_types_of_users_are_named_to_a_reader_that_is_not_asked_for_its_schema(pg: Pg) -> None:
    """Spark asks one reader for the schema, plans with another, and reads with copies of that as it was before."""
    pg.psql(
        "CREATE TYPE mood AS ENUM ('fine'); CREATE TABLE t (ms mood[]); INSERT INTO t VALUES ('{fine}');"
    )
    planner, task, feed = (pg.reader(None, query="SELECT ms FROM t") for _ in range(3))
    (split,) = planner.split(1)
    for reader in (planner, task):
        (batch,) = reader.read(split)
        assert batch.to_pylist() == [{"ms": ["fine"]}]
    with feed.looking() as (_, source):
        assert source.schema.types == [pa.list_(pa.string())]


def test_a_users_type_with_a_name_of_postgresqls_is_read_as_its_text(pg: Pg) -> None:
    pg.psql(
        f"CREATE TYPE {pg.schema}.name AS (a int, b date); CREATE TYPE {pg.schema}.int8 AS ENUM ('9');"
        f"CREATE TABLE t (n {pg.schema}.name, ns {pg.schema}.name[], i {pg.schema}.int8[]);"
        """INSERT INTO t VALUES ('(1,2020-01-01)', '{"(2,)"}', '{9}'), (NULL, NULL, NULL)"""
    )
    row = {"n": "(1,2020-01-01)", "ns": ["(2,)"], "i": [9]}
    assert pg.read().to_pylist() == [row, dict.fromkeys(row)]
    assert pg.read(None, query="SELECT * FROM t").to_pylist() == [row, dict.fromkeys(row)]


def check_equal(pg: Pg, names: list[str]) -> None:
    """Both tables hold the same, as the server shows it."""
    shown = ", ".join(f"{name}::text, {name} IS NULL" for name in names)
    assert pg.psql(f"SELECT n, {shown} FROM b ORDER BY n") == pg.psql(
        f"SELECT n, {shown} FROM a ORDER BY n"
    )


def _through_a_cursor(pg: Pg, dbtable: str) -> pa.Table:
    """As under a limit, two rows at a time."""
    reader = pg.reader(dbtable)
    schema = reader.schema()
    reader.fetch_size = FetchSize(rows=2)
    batches = [batch for split in reader.split(1) for batch in reader.read(split)]
    assert max(batch.num_rows for batch in batches) <= 2
    return pa.Table.from_batches(batches, schema).sort_by("n")


def test_every_plane_of_unicode_is_what_the_server_has(pg: Pg) -> None:
    pg.write(pa.table({"c": [PLANES]}))
    assert pg.psql("SELECT encode(convert_to(c, 'UTF8'), 'hex') FROM t") == PLANES.encode().hex()
    assert pg.read("t")["c"].to_pylist() == [PLANES]


def test_text_columns_are_the_databases_own_text(pg: Pg) -> None:
    pg.psql(
        "CREATE TABLE t AS SELECT '1 day 02:00'::interval AS i, 1.10::numeric AS n, '10.0.0.1'::inet AS a"
    )
    row = "|".join(pg.read("t").to_pylist()[0].values())
    assert row == pg.psql("SELECT i, n, a FROM t")


Made = tuple[pa.DataType, str, pa.DataType, list[Any], list[str]]
CREATED: dict[str, list[Made]] = {
    "bool; int8, int16; int32; int64": [
        (pa.bool_(), "boolean", pa.bool_(), [True, False], ["true", "false"]),
        (pa.int8(), "smallint", pa.int16(), [-128, 127], ["-128", "127"]),
        (pa.int16(), "smallint", pa.int16(), [-(2**15)], ["-32768"]),
        (pa.int32(), "integer", pa.int32(), [-(2**31)], ["-2147483648"]),
        (pa.int64(), "bigint", pa.int64(), [2**63 - 1], ["9223372036854775807"]),
    ],
    "uint8; uint16; uint32; uint64": [
        (pa.uint8(), "smallint", pa.int16(), [0, 255], ["0", "255"]),
        (pa.uint16(), "integer", pa.int32(), [65535], ["65535"]),
        (pa.uint32(), "bigint", pa.int64(), [2**32 - 1], ["4294967295"]),
        (pa.uint64(), "numeric(20,0)", pa.decimal128(20, 0), [2**64 - 1], ["18446744073709551615"]),
    ],
    "float32; float64; decimal(p,s)": [
        (pa.float32(), "real", pa.float32(), [0.5, float("-inf")], ["0.5", "-Infinity"]),
        (pa.float64(), "double precision", pa.float64(), [float("inf"), 0.1], ["Infinity", "0.1"]),
        (
            pa.decimal128(38, 18),
            "numeric(38,18)",
            pa.decimal128(38, 18),
            [Decimal("1.000000000000000001")],
            ["1.000000000000000001"],
        ),
    ],
    "string; binary": [
        (pa.string(), "text", pa.string(), ["", "x", PLANES], ["", "x", PLANES]),
        (pa.large_string(), "text", pa.string(), [PLANES], [PLANES]),
        (pa.binary(), "bytea", pa.binary(), [b"\0\xff"], ["\\x00ff"]),
    ],
    "date; time; timestamp; timestamp with zone": [
        (
            pa.date32(),
            "date",
            pa.date32(),
            [date(1, 1, 1), date(9999, 12, 31)],
            ["0001-01-01", "9999-12-31"],
        ),
        (
            pa.time64("us"),
            "time without time zone",
            pa.time64("us"),
            [time(23, 59, 59, 999999)],
            ["23:59:59.999999"],
        ),
        (
            pa.timestamp("us"),
            "timestamp without time zone",
            pa.timestamp("us"),
            [datetime(1, 1, 1)],
            ["0001-01-01 00:00:00"],
        ),
        (
            pa.timestamp("us", "UTC"),
            "timestamp with time zone",
            pa.timestamp("us", "UTC"),
            [datetime(9999, 12, 31, tzinfo=UTC)],
            ["9999-12-31 00:00:00+00"],
        ),
    ],
    "duration": [
        (
            pa.duration("us"),
            "interval",
            pa.string(),
            [timedelta(hours=30, microseconds=1)],
            ["30:00:00.000001"],
        ),
    ],
    "list of these": [
        (
            pa.list_(pa.int32()),
            "integer[]",
            pa.list_(pa.int32()),
            [[1, None], []],
            ["{1,NULL}", "{}"],
        ),
        (
            pa.list_(pa.string()),
            "text[]",
            pa.list_(pa.string()),
            [[PLANES, "a,b"]],
            [f'{{{PLANES},"a,b"}}'],
        ),
        (pa.list_(pa.bool_()), "boolean[]", pa.list_(pa.bool_()), [[True, False]], ["{t,f}"]),
        (pa.list_(pa.float64()), "double precision[]", pa.list_(pa.float64()), [[0.1]], ["{0.1}"]),
        (
            pa.list_(pa.date32()),
            "date[]",
            pa.list_(pa.date32()),
            [[date(1, 1, 1)]],
            ["{0001-01-01}"],
        ),
        (
            pa.list_(pa.timestamp("us", "UTC")),
            "timestamp with time zone[]",
            pa.list_(pa.timestamp("us", "UTC")),
            [[datetime(2024, 2, 29, tzinfo=UTC)]],
            ['{"2024-02-29 00:00:00+00"}'],
        ),
        (
            pa.list_(pa.decimal128(10, 2)),
            "numeric(10,2)[]",
            pa.list_(pa.string()),
            [[Decimal("1.50")]],
            ["{1.50}"],
        ),
    ],
}
REFUSED: dict[str, list[pa.DataType]] = {
    "list of lists, struct, map, null": [
        pa.list_(pa.list_(pa.int32())),
        pa.struct([("a", pa.int32())]),
        pa.map_(pa.string(), pa.int32()),
        pa.null(),
        pa.list_(pa.struct([("a", pa.int32())])),
    ],
}


def test_each_row_of_the_second_table_has_a_case() -> None:
    assert [*CREATED, *REFUSED] == table_rows("postgresql", "Arrow (Spark)")


@pytest.mark.parametrize("commit", ["job", "task"])
def test_created_columns_give_back_what_they_were(pg: Pg, commit: CommitMode) -> None:
    cases = [case for row in CREATED.values() for case in row]
    height = max(len(values) for *_, values, _ in cases) + 1
    rows = pa.table(
        {
            f"c{number}": pa.array([*values, *[None] * (height - len(values))], kind)
            for number, (kind, _, _, values, _) in enumerate(cases)
        }
    ).append_column("n", pa.array(range(height), pa.int32()))
    pg.write(rows, commit=commit)
    back = pg.read("t").sort_by("n")
    for number, (_, declared, kind, values, texts) in enumerate(cases):
        name = f"c{number}"
        found = pg.psql(
            "SELECT format_type(atttypid, atttypmod) FROM pg_attribute "
            f"WHERE attrelid = 't'::regclass AND attname = '{name}'"
        )
        assert found == declared
        assert pg.psql(
            f"SELECT {name}::text FROM t WHERE {name} IS NOT NULL ORDER BY n"
        ) == "\n".join(texts), declared
        assert back.schema.field(name).type == kind, declared
        expected = texts if pa.types.is_string(kind) else values
        if kind == pa.list_(pa.string()):
            expected = [[str(each) for each in value] for value in values]
        assert back[name].to_pylist() == [*expected, *[None] * (height - len(values))], name


@pytest.mark.parametrize(
    ("declared", "value", "reason"),
    [
        ("date", "'infinity'", "never infinite"),
        ("date", "'0044-03-15 BC'", "year 1 to 9999"),
        ("timestamp", "'-infinity'", "never infinite"),
        ("timestamptz", "'10000-01-01Z'", "year 1 to 9999"),
        ("time", "'24:00'", "24:00:00"),
        ("numeric(10,2)", "'NaN'", "decimal128"),
        ("integer[]", "'{{1,2},{3,4}}'", "array"),
        ("integer[]", "'[0:1]={1,2}'", "array"),
        ("uuid[]", "'{{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}}'", "array"),
        ("date[]", "'{infinity}'", "never infinite"),
    ],
)
def test_what_cannot_be_carried_is_refused_by_column_name(
    pg: Pg, declared: str, value: str, reason: str
) -> None:
    pg.psql(f"CREATE TABLE t (ok int, odd {declared}); INSERT INTO t VALUES (1, {value})")
    with pytest.raises(SourceError, match=f"odd.*{reason}"):
        pg.read("t")
    assert pg.read("t", columns="ok").num_rows == 1


def test_custom_schema_reads_the_odd_ones_as_text(pg: Pg) -> None:
    pg.psql("CREATE TABLE t (d date, n numeric); INSERT INTO t VALUES ('infinity', 1.5)")
    read = pg.read("t", customSchema="d STRING, n DECIMAL(10, 2)")
    assert read.to_pylist() == [{"d": "infinity", "n": Decimal("1.50")}]
    with pytest.raises(OptionError, match="customSchema"):
        pg.read("t", customSchema="nowhere STRING")
    pg.psql("UPDATE t SET n = 1.555")
    with pytest.raises(SourceError, match=r"'n'.*1\.555"):
        pg.read("t", customSchema="d STRING, n DECIMAL(10, 2)")


@pytest.mark.parametrize(
    ("declared", "array", "reason"),
    [
        ("varchar(3)", pa.array(["abc "]), 'longer than.* ALTER COLUMN "c" TYPE text'),
        ("char(3)", pa.array(["abc "]), "longer than"),
        ("name", pa.array(["x" * 64]), "63 bytes"),
        ("text", pa.array(["a\0b"]), r"U\+0000"),
        ("timestamp(3)", pa.array([1], pa.timestamp("us")), "fewer digits"),
        ("time(0)", pa.array([1], pa.time64("us")), "fewer digits"),
        ("timestamp", pa.array([1], pa.timestamp("ns")), "microseconds"),
        ("uuid", pa.array(["no uuid"]), "no uuid"),
        ("jsonb", pa.array(["{"]), "json"),
        ("mood", pa.array(["grim"]), "grim"),
        ("inet", pa.array(["nowhere"]), "nowhere"),
        ("positive", pa.array([-1], pa.int32()), "positive"),
        ("varchar(3)[]", pa.array([["abc "]]), r'longer than.* ALTER COLUMN "c" TYPE text\[\]'),
        ("timestamp(0)[]", pa.array([[1]], pa.list_(pa.timestamp("us"))), "fewer digits"),
        ("numeric(5,2)[]", pa.array([["1.555"]]), "fewer digits"),
        ("numeric(50,2)", pa.array(["1.555"]), "fewer digits"),
        ("money", pa.array(["1.555"]), "would round 1.555"),
        ("money[]", pa.array([["1.555"]]), "would round"),
        ("interval", pa.array(["1.0000005 s"]), "another value"),
        ("timetz", pa.array(["12:00:00.0000005+00"]), "another value"),
        ("tstzrange", pa.array(["[2024-01-01 00:00:00.0000005,)"]), "another value"),
        ("oid", pa.array(["-1"]), "another value"),
    ],
)
def test_a_value_that_would_change_is_refused(
    pg: Pg, declared: str, array: pa.Array, reason: str
) -> None:
    pg.psql(
        "CREATE TYPE mood AS ENUM ('fine'); CREATE DOMAIN positive AS int CHECK (value > 0);"
        f"CREATE TABLE t (c {declared})"
    )
    commits: tuple[CommitMode, ...] = ("job", "task")
    for commit in commits:
        with pytest.raises(TargetError, match=reason):
            pg.write(pa.table({"c": array}), commit=commit)
    assert pg.psql("SELECT count(*) FROM t") == "0"
    assert pg.staged() == []


@pytest.mark.parametrize(
    ("declared", "kind"),
    [
        ("integer", pa.int64()),
        ("integer", pa.string()),
        ("smallint", pa.uint16()),
        ("numeric(5,2)", pa.decimal128(10, 4)),
        ("numeric(5,2)", pa.decimal128(10, 2)),
        ("real", pa.float64()),
        ("double precision", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestamptz", pa.timestamp("us")),
        ("text", pa.int32()),
        ("date", pa.timestamp("us")),
        ("boolean", pa.int32()),
        ("integer[]", pa.list_(pa.int64())),
        ("interval(0)", pa.string()),
        ("interval(0)[]", pa.list_(pa.string())),
        ("interval day", pa.string()),
        ("timetz(0)", pa.string()),
        ("timetz(0)[]", pa.list_(pa.string())),
    ],
)
def test_a_type_that_does_not_fit_is_refused_before_any_task(
    pg: Pg, declared: str, kind: pa.DataType
) -> None:
    pg.psql(f"CREATE TABLE t (odd {declared})")
    with pytest.raises(SchemaError, match="'odd'"):
        pg.writer("t").prepare(pg.context(), pa.schema([("odd", kind)]))


@pytest.mark.parametrize("kind", [kind for kinds in REFUSED.values() for kind in kinds], ids=str)
def test_a_type_without_a_column_is_refused_by_name(pg: Pg, kind: pa.DataType) -> None:
    with pytest.raises(SchemaError, match="'odd'"):
        pg.writer("t").prepare(pg.context(), pa.schema([("odd", kind)]))
    assert pg.psql("SELECT count(*) FROM pg_tables WHERE schemaname = current_schema()") == "0"


def test_narrower_values_widen(pg: Pg) -> None:
    pg.psql("CREATE TABLE t (a bigint, b numeric(20,4), c double precision, d numeric)")
    rows = pa.table(
        {
            "a": pa.array([1], pa.int8()),
            "b": pa.array([Decimal("1.5")], pa.decimal128(5, 1)),
            "c": pa.array([7], pa.int32()),
            "d": pa.array([2**64 - 1], pa.uint64()),
        }
    )
    pg.write(rows, commit="task")
    assert pg.psql("SELECT * FROM t") == "1|1.5000|7|18446744073709551615"


def test_an_array_of_any_shape_is_text_where_the_user_says_so(pg: Pg) -> None:
    pg.psql(
        "CREATE TABLE t AS SELECT '{{1,2},{3,4}}'::int[] AS i, '[5:6]={1.5,2}'::money[] AS m, '{::1}'::inet[] AS a"
    )
    found = pg.read("t", customSchema="i STRING, m STRING, a STRING").to_pylist()
    assert found == [{"i": "{{1,2},{3,4}}", "m": "[5:6]={1.50,2.00}", "a": "{::1}"}]
