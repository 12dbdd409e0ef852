"""Query documents: the syntax of MongoDB's shell, with bson's own parser of extended JSON as the judge."""

import json
import math
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

bson = pytest.importorskip("bson", reason="pymongo is not installed")

from bson import Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp  # noqa: E402 - behind importorskip

from spark_channel.connectors import load_reader, load_writer  # noqa: E402 - behind importorskip
from spark_channel.connectors.mongodb.options import query_document  # noqa: E402 - behind importorskip
from spark_channel.connectors.mongodb.shell import parse_query  # noqa: E402 - behind importorskip
from spark_channel.datax import load_job  # noqa: E402 - behind importorskip
from spark_channel.errors import JobFileError, OptionError  # noqa: E402 - behind importorskip
from tests.datax.small_jobs import make_job  # noqa: E402 - behind importorskip

HEX = "0123456789abcdef01234567"
UUID_TEXT = "00112233-4455-6677-8899-aabbccddeeff"


def query(text: str) -> Any:
    """As the reader sends it."""
    found: Any = load_reader({"url": "mongodb://h/d", "collection": "t", "filter": text})[0]
    return query_document(found.options.filter)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("new Date(2020,1,2)", datetime(2020, 2, 2)),  # months from 0, in UTC
        ("new Date(2020, 11, 31, 23, 59, 58, 7)", datetime(2020, 12, 31, 23, 59, 58, 7000)),
        ("new Date(2020, 12, 1)", datetime(2021, 1, 1)),
        ("new Date(2020, 2, 0)", datetime(2020, 2, 29)),
        ("new Date(2020, -1, 1)", datetime(2019, 12, 1)),
        ("new Date(1580601600000)", datetime(2020, 2, 2)),
        ("new Date(-1)", datetime(1969, 12, 31, 23, 59, 59, 999000)),
        ('new Date("2020-02-02T00:00:00Z")', datetime(2020, 2, 2)),
        ('new Date("2020-02-02")', datetime(2020, 2, 2)),
        ('new Date("Sun Feb 02 2020 08:00:00 GMT+0800")', datetime(2020, 2, 2)),
        ('ISODate("2024-01-31")', datetime(2024, 1, 31)),
        ('ISODate("2024-01-31T08:30:15")', datetime(2024, 1, 31, 8, 30, 15)),
        ('ISODate("2024-01-31T08:30:15.120Z")', datetime(2024, 1, 31, 8, 30, 15, 120000)),
        ('ISODate("2024-01-31T08:30:15+08:00")', datetime(2024, 1, 31, 0, 30, 15)),
        ('new ISODate("2024-01-31 08:30:15-0130")', datetime(2024, 1, 31, 10, 0, 15)),
        (f'ObjectId("{HEX}")', ObjectId(HEX)),
        (f"new ObjectId('{HEX.upper()}')", ObjectId(HEX)),
        ("NumberLong(5)", Int64(5)),
        ('NumberLong("-9223372036854775808")', Int64(-(2**63))),
        ("NumberInt('7')", 7),
        ('NumberDecimal("1.10")', Decimal128("1.10")),
        ("NumberDecimal(2)", Decimal128("2")),
        ('NumberDecimal("-Infinity")', Decimal128("-Infinity")),
        ("Timestamp(1706659200, 3)", Timestamp(1706659200, 3)),
        ("Timestamp({t: 4, i: 5})", Timestamp(4, 5)),
        ('BinData(0, "YWJj")', b"abc"),
        ("BinData(5, 'YWJj')", Binary(b"abc", 5)),
        ('HexData(128, "6162")', Binary(b"ab", 128)),
        (f'UUID("{UUID_TEXT}")', Binary(bytes.fromhex(UUID_TEXT.replace("-", "")), 4)),
        ("/^a.*b$/", Regex("^a.*b$")),
        (r"/a\/b[ '\"]/imxs", Regex(r"a\/b[ '\"]", "imxs")),
        ("RegExp('^a', 'i')", Regex("^a", "i")),
        ("MinKey", MinKey()),
        ("new MaxKey()", MaxKey()),
        ("Infinity", float("inf")),
        ("-Infinity", float("-inf")),
        ("[1, 2.5, -3e2, true, null,]", [1, 2.5, -300.0, True, None]),
        ("'it\\'s \"x\"'", 'it\'s "x"'),
        (r'"A\n\\ 😀"', "A\n\\ 😀"),
        ("'// no comment, /* nor this */'", "// no comment, /* nor this */"),
        ("{$gt: 5, $in: [/x/, 'y'],}", {"$gt": 5, "$in": [Regex("x"), "y"]}),
        ('{"$date": "2024-01-31T00:00:00Z"}', datetime(2024, 1, 31)),
        ('{"$date": {"$numberLong": "0"}}', datetime(1970, 1, 1)),
        (f"{{$oid: '{HEX}'}}", ObjectId(HEX)),
        ('{"$regex": "^a", "$options": "i"}', Regex("^a", "i")),
    ],
)
def test_each_value_of_the_shell(text: str, value: Any) -> None:
    found = query(f"{{ a : {text} }}")
    assert found == {"a": value}
    assert type(found["a"]) is type(value)
    assert query(f"/* first */ {{'b':1, // then\n a:{text},\n}} // last") == {"b": 1, "a": value}


def test_a_key_needs_no_quotes_and_nan_is_a_number() -> None:
    assert query("{_a$1: 1, größe: 2, 'a.b': 3, $or: [{}]}") == {
        "_a$1": 1,
        "größe": 2,
        "a.b": 3,
        "$or": [{}],
    }
    found = query("{a: NaN}")["a"]
    assert math.isnan(found)
    now = datetime.now(UTC).replace(tzinfo=None)
    assert abs(query("{a: new Date()}")["a"] - now) < timedelta(minutes=5)


def test_conditions_beside_a_pattern_stay() -> None:
    """bson's own parser makes a value of the pattern, and drops the rest."""
    for text in ('{"$regex": "^a", "$ne": "ab"}', '{"$regex": "a", "$options": "g"}'):
        assert query(f'{{"name": {text}}}') == {"name": json.loads(text)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n > 5", r"line 1, column 1: a query document begins with \{"),
        ("{a: 1} {b: 2}", "line 1, column 8: the query document has ended"),
        ("{a: 1 b: 2}", "line 1, column 7: , is expected, not 'b'"),
        ("{a: 1,, b: 2}", "column 7: a key is expected, not ','"),
        ("{a: 1", "column 6: , is expected, not the end"),
        ("{1: 2}", "column 2: a key is expected"),
        ("{a\n: foo(1)}", "line 2, column 3: foo is not known here; values are JSON"),
        ("{a: new foo(1)}", "column 5: foo is not known here"),
        ("{a: this.b}", "this is not known"),
        ("{a: undefined}", "undefined is not known"),
        ("{a: function() { return 1 }}", "function is not known"),
        ("{a: new Date() - 1}", ", is expected, not '-'"),
        ("{a: 1 + 1}", ", is expected, not '\\+'"),
        ("{a: .5}", "a value is expected, not '.'"),
        ("{a: 0x10}", "a value is expected, not '0'"),
        ("{a: 5.}", "a value is expected, not '5'"),
        ("{a: +5}", "a value is expected"),
        ("{a: 9223372036854775808}", "at most 64 bits"),
        ("{a: 1e999}", "1e999 is too large for a double"),
        ("{a: 'b}", "column 5: a text that begins here has no end"),
        (r"{a: '\x41'}", r"column 6: \\x is not an escape of JSON"),
        (r"{a: '\ud800'}", "half of a surrogate pair"),
        ("{a: /b}", "a regular expression that begins here has no end"),
        ("{a: /b/g}", "options i, m, s and x, each once, not 'g'"),
        ("{a: /b/ii}", "each once"),
        ("{a: /* b }", "a comment that begins here has no end"),
        ("{a: Date()}", "write new Date"),
        ("{a: new Date(2020, 1)}", "Date takes a text, milliseconds, or year"),
        ("{a: new Date(20, 1, 1)}", "a year from 100"),
        ("{a: new Date(2020, 1, 99999999)}", "the years from 1 to 9999"),
        ("{a: new Date(1e3)}", "Date takes"),
        ("{a: new Date('2020-01-02T03:04:05')}", "Z or an offset"),
        ("{a: ISODate('2020-02-31')}", "ISODate takes a time such as"),
        ("{a: ISODate('2020-02-03T04:05:06.5Z')}", "ISODate takes a time such as"),
        ("{a: new Date('Mon Feb 02 2020 08:00:00 GMT')}", "Date takes a time such as"),
        ("{a: ObjectId()}", "ObjectId takes 24 hexadecimal digits"),
        ("{a: ObjectId('x')}", "24 hexadecimal digits, not 'x'"),
        ("{a: NumberInt(2147483648)}", "at most 32 bits"),
        ("{a: NumberLong('5x')}", "'5x' is not a whole number"),
        ("{a: NumberLong(true)}", "NumberLong takes"),
        ("{a: NumberDecimal('1_0')}", "a number, not '1_0'"),
        ("{a: NumberDecimal('1.2345678901234567890123456789012345678')}", "extended JSON"),
        ("{a: Timestamp(1)}", "Timestamp takes two whole numbers"),
        ("{a: BinData(0, 'a')}", "BinData takes a subtype"),
        ("{a: BinData(256, 'YWJj')}", "BinData takes a subtype"),
        ("{a: UUID('1')}", "UUID takes 32 hexadecimal digits"),
        ("{a: CSUUID('1')}", "CSUUID is not known"),
        ("{a: ObjectId}", r"\( is expected behind ObjectId"),
        ("{a: " * 300, "nested deeper than 200 levels"),
        ("{a: " + "[" * 5_000, "nested deeper than 200 levels"),
        ('{"a": {"$date": "yesterday"}}', "extended JSON"),
        ('{"a": {"$date": 99999999999999999}}', "extended JSON"),
        ('{"a": {"$oid": "x"}}', "extended JSON"),
        ('{"a": {"$binary": {"base64": "YQ=="}}}', "extended JSON"),
        ('{"a": {"$undefined": true}}', "use null"),
        ('{"a\\u0000": 1}', "extended JSON"),
    ],
)
def test_what_is_not_known_is_refused_with_its_place(text: str, message: str) -> None:
    address = {"url": "mongodb://h/d", "collection": "t"}
    with pytest.raises(OptionError, match=f"option 'filter'.*{message}"):
        load_reader({**address, "filter": text})
    with pytest.raises(OptionError, match=f"option 'deleteFilter'.*{message}"):
        load_writer({**address, "deleteFilter": text})


_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)  # fmt: off


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.text(), _PLAIN), st.booleans())
def test_json_is_read_as_json(document: dict[str, Any], ascii_only: bool) -> None:
    assert parse_query(json.dumps(document, ensure_ascii=ascii_only)) == document


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="{}[]()'\"/\\,:$.-+0123456789eaDtNumberLong \n*"))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(ValueError):
        assert isinstance(parse_query("{a:" + text), dict)


def job(text: str) -> Any:
    reads = {
        "address": ["h:1"],
        "dbName": "d",
        "collectionName": "t",
        "column": ["_id"],
        "query": text,
    }
    return load_job(make_job("mongodbreader", reads))


def test_a_job_reads_the_syntax_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    text = "{at: {$gte: ISODate('2024-01-31'), $lt: new Date(2024,1,1)}}"
    made = job(text)
    assert query_document(made.spec.reader.options["filter"]) == {
        "at": {"$gte": datetime(2024, 1, 30, 16), "$lt": datetime(2024, 2, 1)}
    }
    assert any("midnight in Asia/Shanghai" in each for each in made.warnings)
    monkeypatch.setenv("TZ", "UTC")
    made = job(text)
    assert query(text) == query_document(made.spec.reader.options["filter"])
    assert not any("midnight" in each for each in made.warnings)


def test_a_job_that_asks_for_what_is_not_known_names_the_key() -> None:
    with pytest.raises(
        JobFileError, match=r"parameter\.query is not a query document .*column 5: foo"
    ):
        job("{a: foo()}")
    writes = {
        "address": ["h:1"],
        "dbName": "d",
        "collectionName": "t",
        "column": [{"name": "a", "type": "int"}],
        "preSql": {"type": "remove", "json": "{a: foo()}"},
    }
    with pytest.raises(
        JobFileError, match=r"parameter\.preSql\.json is not a query .*column 5: foo"
    ):
        load_job(make_job(writer="mongodbwriter", writes=writes))
