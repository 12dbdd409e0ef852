"""Tables and files for the comparisons: made by hypothesis, and odd ones made by hand."""

import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

__all__ = [
    "CSV_ODD",
    "JSON_ODD",
    "ODD_LINES",
    "ODD_NUMBERS",
    "Odd",
    "csv_texts",
    "json_texts",
    "tables",
]

ODD_TEXTS = (
    "",
    " ",
    "NULL",
    "null",
    "NaN",
    "\\N",
    "a,b",
    'say "x"',
    "two\nlines",
    "dos\r\nlines",
    "tab\there",
    "\\",
    "\\\\",
    'end\\"',
    "\\n",
    "'",
    "`",
    "é",
    "e\u0301",
    "\U0001f600",
    "\ufeffmark",
    "\u2028",
    "\x85",
    "007",
    "1e5",
    "0x10",
    "true",
    "2024-02-30",
    "%41",
    "#1",
    "x" * 300,
)
ODD_NUMBERS = (
    *("1", "-0", "+1", "007", "1.0", "1.50", "1e5", ".5", "5.", "0x1", "NaN", "inf", "a", ""),
    *("true", "T", "TRUE", "no", "2024-01-31", "2024-02-30", "2024-1-1", "24:00:00", "12:00"),
    *(
        "2024-01-31 12:00:00",
        "2024-01-31T12:00:00Z",
        "2024-01-31 24:00:00",
        "\uff11",
        "1_000",
    ),
    *("9223372036854775807", "9223372036854775808", "0.1000000000000000055", "1" * 40, "1e400"),
)
"""Texts that look like a number, a date or a boolean, quoted or not."""
texts = st.one_of(
    st.sampled_from(ODD_TEXTS),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8),
)


def ints(bits: int) -> st.SearchStrategy[int]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return st.one_of(st.sampled_from([low, -1, 0, 1, high]), st.integers(low, high))


def unsigned(bits: int) -> st.SearchStrategy[int]:
    return st.one_of(st.sampled_from([0, 1, 2**bits - 1]), st.integers(0, 2**bits - 1))


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    whole = st.one_of(st.sampled_from([-most, -1, 0, 1, most]), st.integers(-most, most))
    return whole.map(lambda value: Decimal(f"{value}E{-scale}"))


_DAY = st.one_of(
    st.sampled_from(
        [dt.date(1, 1, 1), dt.date(1582, 10, 14), dt.date(1969, 12, 31), dt.date(9999, 12, 31)]
    ),
    st.dates(),
)
_TIME = st.one_of(
    st.sampled_from(
        [
            dt.datetime(1, 1, 1),
            dt.datetime(1582, 10, 14, 23, 59, 59, 999999),
            dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
            dt.datetime(1970, 1, 1),
            dt.datetime(2038, 1, 19, 3, 14, 8),
            dt.datetime(2024, 3, 31, 2, 30),
            dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
        ]
    ),
    st.datetimes(),
)
_CLOCK = st.one_of(st.sampled_from([dt.time(), dt.time(23, 59, 59, 999999)]), st.times())
_FLOATS = (
    0.0,
    -0.0,
    float("nan"),
    float("inf"),
    float("-inf"),
    0.1,
    5e-324,
    1.7976931348623157e308,
)

Kind = tuple[pa.DataType, st.SearchStrategy[Any]]
NUMBERS: tuple[Kind, ...] = (
    (pa.bool_(), st.booleans()),
    (pa.int8(), ints(8)),
    (pa.int16(), ints(16)),
    (pa.int32(), ints(32)),
    (pa.int64(), ints(64)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.one_of(st.sampled_from(_FLOATS), st.floats())),
    (pa.decimal128(9, 2), decimals(9, 2)),
    (pa.decimal128(38, 18), decimals(38, 18)),
    (pa.decimal128(38, 0), decimals(38, 0)),
)
UNSIGNED: tuple[Kind, ...] = tuple(
    (kind, unsigned(bits))
    for bits, kind in ((8, pa.uint8()), (16, pa.uint16()), (32, pa.uint32()), (64, pa.uint64()))
)
PLAIN: tuple[Kind, ...] = (
    *NUMBERS,
    (pa.string(), texts),
    (pa.date32(), _DAY),
    (pa.timestamp("us"), _TIME),
    (pa.timestamp("us", "UTC"), _TIME.map(lambda value: value.replace(tzinfo=dt.UTC))),
)
BINARY: Kind = (pa.binary(), st.binary(max_size=6))
CLOCK: Kind = (pa.time64("us"), _CLOCK)


def _modern(kinds: Sequence[Kind], first: dt.datetime) -> tuple[Kind, ...]:
    """The same, with times that nanoseconds from 1970 can count, and dates of one calendar."""
    modern = st.datetimes(first, dt.datetime(2200, 1, 1))
    times = {
        pa.date32(): st.dates(dt.date(1600, 1, 1), dt.date(9999, 12, 31)),
        pa.timestamp("us"): modern,
        pa.timestamp("us", "UTC"): modern.map(lambda value: value.replace(tzinfo=dt.UTC)),
    }
    return tuple((kind, times.get(kind, values)) for kind, values in kinds)


MODERN = _modern(PLAIN, dt.datetime(1700, 1, 1))
SINCE_1970 = _modern(PLAIN, dt.datetime(1970, 1, 1))
"""Spark fails on ORC files of Arrow with a part of a second before 1970."""


def nested(kinds: Sequence[Kind]) -> st.SearchStrategy[Kind]:
    """One of the kinds, or a list, struct or map of them, down to two levels."""
    plain = st.sampled_from(list(kinds))

    def deeper(inner: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
        return st.one_of(
            inner.map(lambda each: (pa.list_(each[0]), st.lists(maybe(each[1]), max_size=3))),
            st.lists(inner, min_size=1, max_size=3).map(_struct),
            inner.map(_map),
        )

    return st.one_of(plain, deeper(plain), deeper(deeper(plain)))


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), values)


def _struct(parts: list[Kind]) -> Kind:
    fields = [pa.field(f"f{number}", kind) for number, (kind, _) in enumerate(parts)]
    values = {f"f{number}": maybe(each) for number, (_, each) in enumerate(parts)}
    return pa.struct(fields), st.fixed_dictionaries(values)


def _map(item: Kind) -> Kind:
    keys = st.text("abc", max_size=2)
    pairs = st.dictionaries(keys, maybe(item[1]), max_size=3).map(lambda found: list(found.items()))
    return pa.map_(pa.string(), item[0]), pairs


NAMES = ("id", "Name", "a b", "c.d", "é", 'q"t', "_", "select", "x,y", "1", "`b`", "#h", "a'b")


@st.composite
def tables(
    draw: st.DrawFn,
    kinds: Sequence[Kind] = PLAIN,
    *,
    deep: bool = False,
    names: Sequence[str] = NAMES,
    columns: int = 5,
    rows: int = 20,
) -> pa.Table:
    """A table of some columns of these kinds, with NULLs."""
    count = draw(st.integers(1, min(columns, len(names))))
    chosen = [draw(nested(kinds) if deep else st.sampled_from(list(kinds))) for _ in range(count)]
    given = draw(st.permutations(list(names)))[:count]
    length = draw(st.integers(0, rows))
    data = [draw(st.lists(maybe(values), min_size=length, max_size=length)) for _, values in chosen]
    return pa.table(
        [pa.array(column, kind) for column, (kind, _) in zip(data, chosen, strict=True)],
        names=list(given),
    )


# Text files


@dataclass(frozen=True)
class Odd:
    """A file made by hand. `rows`: what is right, as texts or plain values; None = an error."""

    what: str
    data: bytes
    rows: list[list[Any]] | None
    names: tuple[str, ...] = ("a", "b")


def csv_odd() -> list[Odd]:
    def lines(*text: str, end: str = "\n", last: bool = True) -> bytes:
        return ("a,b" + end + end.join(text) + (end if last else "")).encode()

    bom = b"\xef\xbb\xbf"
    return [
        Odd("no row", b"a,b\n", []),
        Odd("no end of the last line", lines("1,2", last=False), [["1", "2"]]),
        Odd("line ends of DOS", lines("1,2", "3,4", end="\r\n"), [["1", "2"], ["3", "4"]]),
        Odd("line ends of old Macs", lines("1,2", "3,4", end="\r"), [["1", "2"], ["3", "4"]]),
        Odd("mixed line ends", b"a,b\r\n1,2\n3,4\r5,6", [["1", "2"], ["3", "4"], ["5", "6"]]),
        Odd("a byte order mark", bom + lines("1,2"), [["1", "2"]]),
        Odd("a byte order mark before a quote", bom + b'"a",b\n1,2\n', [["1", "2"]]),
        Odd(
            "a mark in a value",
            lines("\ufeff1,2", "x,\ufeffy"),
            [["\ufeff1", "2"], ["x", "\ufeffy"]],
        ),
        Odd("empty lines", lines("1,2", "", "3,4", ""), [["1", "2"], ["3", "4"]]),
        Odd("quoted and unquoted empty values", lines('"",', ',""'), [["", None], [None, ""]]),
        Odd("blanks are values", lines(" 1 , 2"), [[" 1 ", " 2"]]),
        Odd("doubled quotes", lines('"say ""x""",2'), [['say "x"', "2"]]),
        Odd("escaped quotes", lines('"say \\"x\\"",2'), [['say "x"', "2"]]),
        Odd("an escaped escape", lines('"end\\\\",2'), [["end\\", "2"]]),
        Odd("a backslash elsewhere", lines("\\,\\n"), [["\\", "\\n"]]),
        Odd("a separator in quotes", lines('"1,2",3'), [["1,2", "3"]]),
        Odd("a quote in a value", lines('5" pipe,2'), [['5" pipe', "2"]]),
        Odd("a row that is too long", lines("1,2,3"), None),
        Odd("a row that is too short", lines("1"), None),
        Odd("an open quote", lines('"1,2', "3,4"), None),
        Odd("invalid UTF-8", lines("1,2") + b"\xff,2\n", None),
        Odd("NUL", lines("1\x002,3"), [["1\x002", "3"]]),
        Odd(
            "form feeds and odd separators",
            lines("1\x0c2,\x1c", "\x85,\u2028"),
            [["1\x0c2", "\x1c"], ["\x85", "\u2028"]],
        ),
    ]


CSV_ODD = csv_odd()


def json_odd() -> list[Odd]:
    def lines(*text: str, end: str = "\n") -> bytes:
        return (end.join(text) + end).encode()

    return [
        Odd("no end of the last line", b'{"a":1,"b":2}', [[1, 2]]),
        Odd(
            "line ends of DOS",
            lines('{"a":1,"b":2}', '{"a":3,"b":4}', end="\r\n"),
            [[1, 2], [3, 4]],
        ),
        Odd("a byte order mark", b"\xef\xbb\xbf" + lines('{"a":1,"b":2}'), [[1, 2]]),
        Odd("empty lines", lines("", '{"a":1,"b":2}', "", "  "), [[1, 2]]),
        Odd("blanks", lines(' { "a" : 1 , "b" : 2 } '), [[1, 2]]),
        Odd("fields in another order", lines('{"a":1,"b":2}', '{"b":4,"a":3}'), [[1, 2], [3, 4]]),
        Odd("a field that is missing", lines('{"a":1,"b":2}', '{"b":4}'), [[1, 2], [None, 4]]),
        Odd("null", lines('{"a":1,"b":null}', '{"a":null,"b":2}'), [[1, None], [None, 2]]),
        Odd(
            "escapes", lines('{"a":"\\u00e9\\n\\/","b":"\\ud83d\\ude00"}'), [["é\n/", "\U0001f600"]]
        ),
        Odd("an escaped NUL", lines('{"a":"x\\u0000y","b":""}'), [["x\0y", ""]]),
        Odd(
            "odd separators in a text",
            lines('{"a":"\u2028\u2029","b":"\x7f"}'),
            [["\u2028\u2029", "\x7f"]],
        ),
        Odd(
            "the ends of int64",
            lines('{"a":9223372036854775807,"b":-9223372036854775808}'),
            [[2**63 - 1, -(2**63)]],
        ),
        Odd("a lone surrogate", lines('{"a":"\\ud800","b":""}'), None),
        Odd("an array", lines('[{"a":1,"b":2}]'), None),
        Odd("null lines", lines("null", '{"a":1,"b":2}'), None),
        Odd("two objects in a line", lines('{"a":1,"b":2} {"a":3,"b":4}'), None),
        Odd("an object over two lines", lines('{"a":1,', '"b":2}'), None),
        Odd("a cut object", lines('{"a":1,"b":2}') + b'{"a":1', None),
        Odd("a leading zero", lines('{"a":01,"b":2}'), None),
        Odd("single quotes", lines("{'a':1,'b':2}"), None),
        Odd("a control character in a text", lines('{"a":"x\ty","b":""}'), None),
        Odd("invalid UTF-8", b'{"a":"\xff","b":""}\n', None),
        Odd("a comma at the end", lines('{"a":1,"b":2,}'), None),
    ]


JSON_ODD = json_odd()
ODD_LINES = (
    *('{"a":1}', "{}", "null", "", " ", '{"a":1}{"a":2}', '{"a":', "1}", '{"a":{"b":[1]}}', "[1]"),
    *('{"a":"x"}', '{"a":null}', '{"b":2}', '{"a":1.5}', "\ufeff{}", '{"a":"\\n"}'),
)
"""Lines of which a file may be no JSON lines."""


@st.composite
def csv_texts(draw: st.DrawFn) -> str:
    """A CSV file from pieces that matter to a parser; it need not be a valid one."""
    width = draw(st.integers(2, 3))
    value = st.one_of(
        st.sampled_from(
            [
                "",
                '""',
                "1",
                "x",
                " ",
                "\t",
                "\\",
                '"a,b"',
                '"q""q"',
                '"l\nl"',
                '"l\r\nl"',
                "é",
                "-",
                "#",
            ]
        ),
        st.sampled_from(ODD_TEXTS).map(
            lambda text: '"' + text.replace("\\", "\\\\").replace('"', '""') + '"'
        ),
        st.text('ab,"\\ ', max_size=4).map(
            lambda text: '"' + text.replace("\\", "\\\\").replace('"', '""') + '"'
        ),
    )
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    rows = draw(st.lists(st.lists(value, min_size=width, max_size=width), max_size=25))
    head = ",".join("abc"[:width])
    body = end.join([head, *(",".join(row) for row in rows)])
    return body + draw(st.sampled_from(["", end]))


_JSON_KINDS: dict[str, st.SearchStrategy[Any]] = {
    "int64": ints(64),
    "float64": st.floats(allow_nan=False, allow_infinity=False).map(lambda value: value + 0.0),
    "text": texts,
    "bool": st.booleans(),
}


@st.composite
def json_texts(draw: st.DrawFn) -> tuple[dict[str, str], str]:
    """The kinds of some fields, and lines of objects that have them."""
    names = draw(st.permutations(["a", "B", "c d", "é", "x.y", 'q"t']))[: draw(st.integers(1, 4))]
    kinds = {name: draw(st.sampled_from(sorted(_JSON_KINDS))) for name in names}
    lines = []
    for _ in range(draw(st.integers(1, 20))):
        row = {}
        for name in draw(st.permutations(list(kinds))):
            if draw(st.integers(0, 5)):
                row[name] = draw(maybe(_JSON_KINDS[kinds[name]]))
        ascii_ = draw(st.booleans())
        blank = draw(st.sampled_from(["", " "]))
        lines.append(json.dumps(row, ensure_ascii=ascii_, separators=("," + blank, ":" + blank)))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    return kinds, end.join(lines) + draw(st.sampled_from(["", end]))
