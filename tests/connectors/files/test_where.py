"""`where`: against SQL's three-valued logic in plain Python, and what it refuses."""

import datetime as dt
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_channel.connectors.files.conditions import ValueRange
from spark_channel.connectors.files.literals import exact
from spark_channel.connectors.files.where import parse_where
from spark_channel.errors import OptionError

SCHEMA = pa.schema(
    [
        ("i", pa.int8()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("d", pa.date32()),
        ("q", pa.decimal128(5, 2)),
        ("b", pa.bool_()),
        ("t", pa.timestamp("us", "UTC")),
    ]
)
Row = dict[str, Any]
Truth = bool | None


@dataclass(frozen=True)
class Case:
    """A condition as SQL, and what it means."""

    sql: str
    value: Callable[[Row], Truth]


def rank(value: Any) -> Any:
    """NaN is greater than every number and equals itself; times are compared by instant."""
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return (0, value)
    return value


OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def compare(op: str, left: Any, right: Any) -> Truth:
    if left is None or right is None:
        return None
    return OPERATORS[op](rank(left), rank(right))


def conjunction(a: Truth, b: Truth) -> Truth:
    if a is False or b is False:
        return False
    return None if a is None or b is None else True


def negation(a: Truth) -> Truth:
    return None if a is None else not a


numbers = st.one_of(
    st.integers(-200, 200),
    st.decimals(-130, 130, places=3),
    st.sampled_from([10**30, Decimal("1e-20")]),
)
texts = st.text(alphabet="ab%_\\'\n", max_size=4)
dates = st.dates(dt.date(2019, 12, 25), dt.date(2020, 1, 5))
times = st.datetimes(
    dt.datetime(2019, 12, 31, 20), dt.datetime(2020, 1, 1, 4), timezones=st.just(dt.UTC)
)


def sql_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def literals(column: str) -> st.SearchStrategy[tuple[str, Any]]:
    """(SQL, value): also numbers between and beyond what the column's type can hold."""
    null = st.just(("NULL", None))
    if column in ("i", "f", "q"):
        return st.one_of(
            null, numbers.map(lambda n: (format(n, "f") if isinstance(n, Decimal) else str(n), n))
        )
    if column == "s":
        return st.one_of(null, texts.map(lambda s: (sql_text(s), s)))
    if column == "d":
        return st.one_of(
            null, dates.map(lambda d: (f"DATE '{d}'", d)), dates.map(lambda d: (f"'{d}'", d))
        )
    if column == "b":
        return st.one_of(null, st.booleans().map(lambda b: (str(b), b)))
    return st.one_of(null, times.map(lambda t: (f"TIMESTAMP '{t.replace(tzinfo=None)}'", t)))


def like(pattern: str, text: str) -> bool:
    made = "".join(".*" if c == "%" else "." if c == "_" else re.escape(c) for c in pattern)
    return re.fullmatch(made, text, re.DOTALL) is not None


@st.composite
def leaves(draw: st.DrawFn) -> Case:
    column = draw(st.sampled_from(SCHEMA.names))
    kind = draw(
        st.sampled_from(["compare", "flipped", "in", "between", "null", "like", "distinct"])
    )
    negated = draw(st.booleans())
    no = "NOT " if negated else ""

    def signed(truth: Callable[[Row], Truth]) -> Callable[[Row], Truth]:
        return (lambda row: negation(truth(row))) if negated else truth

    if kind == "null":
        return Case(f"{column} IS {no}NULL", signed(lambda row: row[column] is None))
    if kind == "like":
        pattern = draw(st.text(alphabet="ab%_", max_size=4))
        return Case(
            f"s {no}LIKE '{pattern}'",
            signed(lambda row: None if row["s"] is None else like(pattern, row["s"])),
        )
    sql, value = draw(literals(column))
    if kind == "in":
        items = [(sql, value), *draw(st.lists(literals(column), max_size=3))]

        def member(row: Row) -> Truth:
            found: Truth = False
            for _, item in items:
                found = negation(
                    conjunction(negation(found), negation(compare("=", row[column], item)))
                )
            return found

        return Case(f"{column} {no}IN ({', '.join(item for item, _ in items)})", signed(member))
    if kind == "between":
        high_sql, high = draw(literals(column))

        def between(row: Row) -> Truth:
            return conjunction(compare(">=", row[column], value), compare("<=", row[column], high))

        return Case(f"{column} {no}BETWEEN {sql} AND {high_sql}", signed(between))
    if kind == "distinct":

        def distinct(row: Row) -> Truth:
            if row[column] is None or value is None:
                return (row[column] is None) != (value is None)
            return compare("<>", row[column], value)

        return Case(f"{column} IS {'NOT ' if negated else ''}DISTINCT FROM {sql}", signed(distinct))
    op = draw(st.sampled_from(sorted(OPERATORS)))
    if kind == "flipped":
        return Case(f"{no}{sql} {op} {column}", signed(lambda row: compare(op, value, row[column])))
    return Case(f"{no}{column} {op} {sql}", signed(lambda row: compare(op, row[column], value)))


def combine(children: st.SearchStrategy[Case]) -> st.SearchStrategy[Case]:
    both = st.tuples(children, children)
    return st.one_of(
        both.map(
            lambda p: Case(
                f"({p[0].sql} AND {p[1].sql})", lambda r: conjunction(p[0].value(r), p[1].value(r))
            )
        ),
        both.map(
            lambda p: Case(
                f"({p[0].sql} OR {p[1].sql})",
                lambda r: negation(conjunction(negation(p[0].value(r)), negation(p[1].value(r)))),
            )
        ),
        children.map(lambda c: Case(f"NOT ({c.sql})", lambda r: negation(c.value(r)))),
    )


cases = st.recursive(leaves(), combine, max_leaves=6)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "i": st.one_of(st.none(), st.integers(-128, 127)),
            "f": st.one_of(
                st.none(),
                st.sampled_from([math.nan, math.inf, -math.inf, -0.0]),
                st.integers(-5, 5).map(float),
            ),
            "s": st.one_of(st.none(), texts),
            "d": st.one_of(st.none(), dates),
            "q": st.one_of(st.none(), st.decimals(-130, 130, places=2)),
            "b": st.one_of(st.none(), st.booleans()),
            "t": st.one_of(st.none(), times),
        }
    ),
    min_size=1,
    max_size=8,
)


@settings(deadline=None)
@given(cases, rows)
def test_means_what_sql_means(case: Case, data: list[Row]) -> None:
    batch = pa.RecordBatch.from_pylist(data, SCHEMA)
    condition = parse_where(case.sql, SCHEMA)
    assert condition.mask(batch).to_pylist() == [case.value(row) for row in data]


@settings(deadline=None)
@given(cases, rows)
def test_ranges_never_rule_out_a_row_that_passes(case: Case, data: list[Row]) -> None:
    condition = parse_where(case.sql, SCHEMA)
    ranges = {}
    for field in SCHEMA:
        values = [row[field.name] for row in data if row[field.name] is not None]
        finite = [
            exact(v, field.type)
            for v in values
            if not (isinstance(v, float) and not math.isfinite(v))
        ]
        whole = len(finite) == len(values)
        ranges[field.name] = ValueRange(
            min(finite) if finite and whole else None,
            max(finite) if finite and whole else None,
            len(data) - len(values),
            len(data),
        )
    if any(case.value(row) for row in data):
        assert condition.may_match(ranges)


def test_a_range_rules_out_what_lies_beyond_it() -> None:
    ranges = {"i": ValueRange(10, 20, 0, 5), "s": ValueRange(None, None, 5, 5)}
    for ruled_out in (
        "i < 10",
        "i > 20.5",
        "i = 9",
        "i IN (1, 30)",
        "i IS NULL",
        "s = 'x'",
        "s LIKE 'x%'",
        "i > 200",
    ):
        assert not parse_where(ruled_out, SCHEMA).may_match(ranges), ruled_out
    for possible in (
        "i <= 10",
        "i >= 19.5",
        "i <> 10",
        "i NOT IN (10)",
        "s IS NULL",
        "f > 1",
        "i = 10 OR s = 'x'",
    ):
        assert parse_where(possible, SCHEMA).may_match(ranges), possible


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (r"s LIKE 'a\%'", ["a%"]),
        ("s LIKE 'a#%' ESCAPE '#'", ["a%"]),
        ("s NOT LIKE 'a#%' ESCAPE '#'", ["ab", "a\nb"]),
        ("s LIKE 'a_b'", ["a\nb"]),
        ("s ILIKE 'AB'", ["ab"]),
        ("`s` = 'ab' OR \"S\" = 'a%'", ["ab", "a%"]),
        ("1 = 1", ["ab", "a%", None, "a\nb"]),
        ("1 = 0", []),
        ("b", ["ab"]),
        ("NOT b", ["a%"]),
        ("b IS NOT TRUE", ["a%", None, "a\nb"]),
        ("b IS FALSE", ["a%"]),
        ("i = '1'", ["ab"]),
        ("s = 'ab' -- a comment", ["ab"]),
        ("i > -1 AND (i) < +2 OR FALSE", ["ab"]),
    ],
)
def test_examples(sql: str, expected: list[str | None]) -> None:
    batch = pa.record_batch(
        {
            "s": pa.array(["ab", "a%", None, "a\nb"]),
            "b": pa.array([True, False, None, None]),
            "i": pa.array([1, 2, None, 3], pa.int64()),
        }
    )
    condition = parse_where(sql, batch.schema)
    assert batch.filter(condition.mask(batch)).column("s").to_pylist() == expected


def test_a_literal_between_two_steps_is_compared_exactly() -> None:
    batch = pa.record_batch({"n": pa.array([2**53, 2**53 + 1, None], pa.int64())})
    half = f"n > {2**53}.5"
    assert parse_where(half, batch.schema).mask(batch).to_pylist() == [False, True, None]
    assert parse_where(f"n = {2**53}.5", batch.schema).mask(batch).to_pylist() == [
        False,
        False,
        None,
    ]
    assert parse_where("n < 1e30", batch.schema).mask(batch).to_pylist() == [True, True, None]


def test_columns_of_one_type_are_compared() -> None:
    batch = pa.record_batch(
        {"a": pa.array([1, 2, None], pa.int64()), "b": pa.array([1, 3, 3], pa.int64())}
    )
    assert parse_where("a < b", batch.schema).mask(batch).to_pylist() == [False, True, None]
    assert parse_where("NOT a < b", batch.schema).mask(batch).to_pylist() == [True, False, None]


def test_many_values_and_long_chains_do_not_overflow() -> None:
    batch = pa.record_batch({"n": pa.array([5, 700], pa.int64())})
    chain = " OR ".join(f"n = {value}" for value in range(600))
    assert parse_where(chain, batch.schema).mask(batch).to_pylist() == [True, False]


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("upper(s) = 'X'", "UPPER("),
        ("i IN (SELECT 1)", "SELECT"),
        ("zz = 1", "zz"),
        ("i = 'x'", "'x'"),
        ("s = 1", "single quotes"),
        ("i = 1; DROP TABLE x", "one SQL condition"),
        ("", "where"),
        ("i = 1 x", "Alias"),
        ("x.i = 1", "x.i"),
        ("i BETWEEN SYMMETRIC 1 AND 2", "option 'where' holds"),
        ("s LIKE ANY ('x')", "ANY"),
        ("i::int = 1", "CAST"),
        ("EXISTS(SELECT 1)", "EXISTS"),
        ("s = 'x' COLLATE nocase", "nocase"),
        ("i + 1 = 2", "i + 1"),
        ("CASE WHEN b THEN b END", "CASE"),
        ("s", "not a condition"),
        ("'a' = 'a'", "two literals"),
        ("i IN ()", "empty list"),
        ("d = 'x'", "date"),
        (r"s LIKE 'a\b'", "LIKE"),
        (r"s LIKE 'a\'", "LIKE"),
        ("i LIKE '1%'", "not text"),
        ("f = 'nan'", "finite"),
        ("i = f", "different types"),
        ("f = f", "type double"),
        ("s GLOB 'x'", "GLOB"),
        ("(i, s) IN ((1, 2))", "IN"),
        ("i = 1e999999999", "1e400"),
        ("t = '2020-01-01' AND", "not a SQL condition"),
        ("s = 'unclosed", "not a SQL condition"),
        ("i >", "not a SQL condition"),
        ("i = :x", ":x"),
        ("d = '2020-01-01 00:00:00+01:00'", "without a zone"),
    ],
)
def test_anything_else_is_refused_by_name(sql: str, named: str) -> None:
    with pytest.raises(OptionError, match=re.escape(named)) as caught:
        parse_where(sql, SCHEMA)
    assert caught.value.option == "where"
    assert "<class" not in str(caught.value)


def test_names_that_differ_only_in_case_must_be_spelled() -> None:
    schema = pa.schema([("a", pa.int64()), ("A", pa.int64()), ("b", pa.int64())])
    assert parse_where("A = 1", schema).columns == {"A"}
    assert parse_where("B = 1", schema).columns == {"b"}
    with pytest.raises(OptionError, match="more than one column"):
        parse_where("AA = 1", pa.schema([("aA", pa.int64()), ("Aa", pa.int64())]))
