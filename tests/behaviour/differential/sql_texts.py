"""Values as databases print them, and the SQL that stores them."""

import datetime as dt
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from tests.behaviour.differential import inputs
from tests.behaviour.differential.tables import number

__all__ = ["MARIADB", "POSTGRESQL", "SQLITE", "Declared", "copied_rows", "parsed"]

_EPOCH = dt.datetime(1970, 1, 1)


@dataclass(frozen=True)
class Declared:
    """A column type of a database: `kind`, the kind in which it is read; `values`, texts of values that it can hold."""

    declared: str
    kind: str
    values: st.SearchStrategy[Any] = field(repr=False)


def parsed(text: str | None, kind: str) -> Any:
    """The value that a server printed, as in `Column`."""
    if text is None:
        return None
    if kind.startswith("list<"):
        return [parsed(each, kind[5:-1]) for each in _elements(text)]
    if kind == "bool":
        return {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}[text]
    if kind.startswith(("int", "uint")):
        return int(text)
    if kind == "float64":
        return number(float(text))
    if kind == "float32":
        return number(struct.unpack("f", struct.pack("f", float(text)))[0])
    if kind.startswith("decimal"):
        return Decimal(text)
    if kind == "binary":
        return bytes.fromhex(text.removeprefix("\\x"))
    if kind == "date":
        return (dt.date.fromisoformat(text) - _EPOCH.date()).days
    if kind == "time":
        return _nanoseconds(dt.datetime.fromisoformat(f"1970-01-01 {text}"))
    if kind in ("timestamp", "instant"):
        return _nanoseconds(dt.datetime.fromisoformat(text).replace(tzinfo=None))
    return text


def _nanoseconds(value: dt.datetime) -> int:
    return (value - _EPOCH) // dt.timedelta(microseconds=1) * 1000


_ELEMENT = re.compile(r'"((?:[^"\\]|\\.)*)"|([^,{}"]+)', re.DOTALL)


def _elements(text: str) -> Iterator[str | None]:
    """The elements of an array of PostgreSQL with one dimension."""
    for match in _ELEMENT.finditer(text[1:-1]):
        if match[1] is not None:
            yield re.sub(r"\\(.)", r"\1", match[1], flags=re.DOTALL)
        else:
            yield None if match[2] == "NULL" else match[2]


_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def copied_rows(text: str) -> list[list[str | None]]:
    """The rows of PostgreSQL's COPY in its text format."""
    return [
        [None if value == "\\N" else _unescaped(value) for value in line.split("\t")]
        for line in text.split("\n")
        if line
    ]


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text)


def _texts(*values: str) -> st.SearchStrategy[str]:
    return st.sampled_from(values)


def _of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[str]:
    return values.map(str)


def _array(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def quoted(value: str | None) -> str:
        if value is None:
            return "NULL"
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'

    elements = st.lists(st.one_of(st.none(), values), max_size=3)
    return elements.map(lambda found: "{" + ",".join(map(quoted, found)) + "}")


_FLOATS = ("0", "-0", "0.1", "1e-5", "1e20", "123456.789", "-1.5")
_REALS = (*_FLOATS, "NaN", "Infinity", "-Infinity", "3.4028235e38", "1e-45", "16777217")
_DOUBLES = (*_REALS[:-3], "1.7976931348623157e308", "5e-324", "0.30000000000000004")
_DATES = _of(st.one_of(_texts("0001-01-01", "1582-10-10", "9999-12-31"), st.dates()))
_TIMES = _of(st.times())
_STAMPS = st.one_of(
    _texts("0001-01-01 00:00:00", "1582-10-10 12:00:00", "9999-12-31 23:59:59.999999"),
    _of(st.datetimes()),
)
_INSTANTS = st.one_of(
    _texts("0001-01-01 00:00:00+00", "2024-03-31 02:30:00.000001+00", "1883-11-18 17:00:00+00"),
    _of(st.datetimes()).map(lambda text: f"{text}+00"),
)
_UUIDS = _of(st.uuids())
_LINES = inputs.texts.filter(lambda text: "\0" not in text)
_MONEY = st.integers(-(10**12), 10**12).map(lambda cents: f"{cents / 100:.2f}")

POSTGRESQL: tuple[Declared, ...] = (
    Declared("boolean", "bool", _texts("true", "false")),
    Declared("smallint", "int16", _of(inputs.ints(16))),
    Declared("integer", "int32", _of(inputs.ints(32))),
    Declared("bigint", "int64", _of(inputs.ints(64))),
    Declared("real", "float32", _texts(*_REALS)),
    Declared("double precision", "float64", st.one_of(_texts(*_DOUBLES), _of(st.floats()))),
    Declared("numeric(9,2)", "decimal(9,2)", _of(inputs.decimals(9, 2))),
    Declared("numeric(38,18)", "decimal(38,18)", _of(inputs.decimals(38, 18))),
    Declared("numeric(38,38)", "decimal(38,38)", _of(inputs.decimals(38, 38))),
    Declared(
        "numeric",
        "text",
        st.one_of(
            _texts("NaN", "1e40", "0.1000", "0", "-Infinity", "1e-20"), _of(inputs.decimals(38, 9))
        ),
    ),
    Declared("numeric(3,-2)", "text", _texts("12300", "-99900")),
    Declared("text", "text", _LINES),
    Declared("varchar(300)", "text", _LINES),
    Declared("char(8)", "text", _texts("", "a", " a", "a b  ", "é")),
    Declared("name", "text", _texts("", "a", "A b")),
    Declared("bytea", "binary", st.binary(max_size=6).map(lambda data: "\\x" + data.hex())),
    Declared("date", "date", _DATES),
    Declared("time", "time", _TIMES),
    Declared("timestamp", "timestamp", _STAMPS),
    Declared("timestamptz", "instant", _INSTANTS),
    Declared(
        "timestamp(3)", "timestamp", _texts("2024-01-01 00:00:00.9995", "1969-12-31 23:59:59.999")
    ),
    Declared("uuid", "text", _UUIDS),
    Declared("json", "text", _texts('{"a": 1,  "a": 2}', "null", '"x"', "[1, 2.0]", "1e400")),
    Declared("jsonb", "text", _texts('{"b": 1, "a": 2}', "null", '"\\u00e9"', "[1, 2.0]", "1e400")),
    Declared(
        "interval",
        "text",
        _texts("1 year -2 mons +3 days -04:05:06.789", "00:00:00", "-178000000 years"),
    ),
    Declared("timetz", "text", _texts("12:00:00+02", "24:00:00-15:59", "00:00:00.000001+05:30")),
    Declared("bit(3)", "text", _texts("101", "000")),
    Declared("bit varying", "text", _texts("", "1", "0" * 70)),
    Declared("money", "text", _MONEY),
    Declared("inet", "text", _texts("10.0.0.1", "10.0.0.1/8", "::1")),
    Declared("cidr", "text", _texts("10.0.0.0/8", "::/0")),
    Declared("macaddr", "text", _texts("08:00:2b:01:02:03")),
    Declared("oid", "text", _texts("0", "4294967295")),
    Declared("xml", "text", _texts("<a>&lt;</a>", "x")),
    Declared("point", "text", _texts("(1,2)", "(0.1,-1e+300)")),
    Declared("int4range", "text", _texts("[1,5)", "empty", "(,)")),
    Declared("tstzrange", "text", _texts('["2024-01-01 00:00:00+00",infinity)')),
    Declared("tsvector", "text", _texts("'a':1 'b':2A", "'it''s'")),
    Declared("text[]", "list<text>", _array(_LINES)),
    Declared("integer[]", "list<int32>", _array(_of(inputs.ints(32)))),
    Declared("bigint[]", "list<int64>", _array(_of(inputs.ints(64)))),
    Declared("boolean[]", "list<bool>", _array(_texts("t", "f"))),
    Declared("double precision[]", "list<float64>", _array(_texts(*_DOUBLES))),
    Declared("real[]", "list<float32>", _array(_texts(*_REALS))),
    Declared("numeric[]", "list<text>", _array(_texts("1.50", "NaN", "1e30"))),
    Declared("date[]", "list<date>", _array(_DATES)),
    Declared("timestamp[]", "list<timestamp>", _array(_STAMPS)),
    Declared("timestamptz[]", "list<instant>", _array(_INSTANTS)),
    Declared("bytea[]", "list<binary>", _array(_texts("\\x", "\\x00ff"))),
    Declared("uuid[]", "list<text>", _array(_UUIDS)),
    Declared("jsonb[]", "list<text>", _array(_texts('{"a": "b\\"c"}', "null"))),
)

_MY_TEXT = inputs.texts
_MY_DOUBLES = (
    "0",
    "0.1",
    "1e-5",
    "1e20",
    "-1.5",
    "1.7976931348623157e308",
    "2.2250738585072014e-308",
)
_MY_STAMPS = st.datetimes(dt.datetime(1970, 1, 2), dt.datetime(2038, 1, 1))
MARIADB: tuple[Declared, ...] = (
    Declared("tinyint(1)", "bool", _texts("0", "1")),
    Declared("tinyint", "int8", _of(inputs.ints(8))),
    Declared("smallint", "int16", _of(inputs.ints(16))),
    Declared("mediumint", "int32", _of(inputs.ints(24))),
    Declared("int", "int32", _of(inputs.ints(32))),
    Declared("bigint", "int64", _of(inputs.ints(64))),
    Declared("tinyint unsigned", "uint8", _of(inputs.unsigned(8))),
    Declared("smallint unsigned", "uint16", _of(inputs.unsigned(16))),
    Declared("int unsigned", "uint32", _of(inputs.unsigned(32))),
    Declared("bigint unsigned", "uint64", _of(inputs.unsigned(64))),
    Declared("int(5) zerofill", "uint32", _texts("7", "123456")),
    Declared(
        "float", "float32", _texts("0", "0.1", "-1.5", "1e20", "3.4e38", "16777217", "123456.789")
    ),
    Declared("double", "float64", _texts(*_MY_DOUBLES)),
    Declared("decimal(9,2)", "decimal(9,2)", _of(inputs.decimals(9, 2))),
    Declared("decimal(38,18)", "decimal(38,18)", _of(inputs.decimals(38, 18))),
    Declared("char(200)", "text", _texts("", "a", " a", "é", "\U0001f600")),
    Declared("varchar(300)", "text", _MY_TEXT),
    Declared("longtext", "text", _MY_TEXT),
    Declared("varchar(300) character set utf16", "text", _texts("a", "é", "\U0001f600", "")),
    Declared("varchar(300) character set latin1", "text", _texts("a", "é", "€", "")),
    Declared("varbinary(20)", "binary", st.binary(max_size=6)),
    Declared("binary(4)", "binary", st.binary(max_size=4)),
    Declared("longblob", "binary", st.binary(max_size=6)),
    Declared("date", "date", _of(st.dates())),
    Declared("time(6)", "time", _TIMES),
    Declared("datetime(6)", "timestamp", _of(st.datetimes())),
    Declared(
        "datetime", "timestamp", _of(st.datetimes().map(lambda value: value.replace(microsecond=0)))
    ),
    Declared("timestamp(6) null", "instant", _of(_MY_STAMPS)),
    Declared("year", "int16", _texts("1901", "2155", "0000")),
    Declared("bit(1)", "bool", _texts("0", "1")),
    Declared("bit(9)", "int64", _texts("0", "511", "256")),
    Declared("bit(64)", "uint64", _texts("0", str(2**64 - 1))),
    Declared("enum('a','B b','é')", "text", _texts("a", "B b", "é")),
    Declared("set('a','b','c')", "text", _texts("", "a", "a,c")),
    Declared("json", "text", _texts('{"a": 1,  "a": 2}', "null", "[1, 2.0]", '"\U0001f600"')),
    Declared("uuid", "text", _UUIDS),
    Declared("inet6", "text", _texts("::1", "2001:db8::ff00:42:8329")),
)

_NULL_FREE = inputs.texts
SQLITE: tuple[Declared, ...] = (
    Declared("INTEGER", "int64", inputs.ints(64)),
    Declared("BIGINT", "int64", inputs.ints(64)),
    Declared("REAL", "float64", st.floats(allow_nan=False)),
    Declared("TEXT", "text", _NULL_FREE),
    Declared("VARCHAR(3)", "text", _NULL_FREE),
    Declared("BLOB", "binary", st.binary(max_size=6)),
    Declared("BOOLEAN", "bool", st.sampled_from([0, 1])),
    Declared("DATE", "date", _of(st.dates())),
    Declared("TIMESTAMP", "timestamp", _of(st.datetimes())),
    Declared("TIMESTAMPTZ", "instant", _of(st.datetimes()).map(lambda text: f"{text}Z")),
    Declared("TIME", "time", _TIMES),
    Declared("DECIMAL(9,2)", "decimal(9,2)", inputs.decimals(9, 2).map(str)),
)


def of_columns(declared: Sequence[Declared]) -> st.SearchStrategy[list[tuple[Declared, list[Any]]]]:
    """Some columns of these types with values for some rows; None is NULL."""

    @st.composite
    def made(draw: st.DrawFn) -> list[tuple[Declared, list[Any]]]:
        chosen = draw(st.lists(st.sampled_from(list(declared)), min_size=4, max_size=8))
        rows = draw(st.integers(0, 8))
        return [
            (each, draw(st.lists(inputs.maybe(each.values), min_size=rows, max_size=rows)))
            for each in chosen
        ]

    return made()
