"""Which columns of a table a stream can continue with: the rule, of one table as of several."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_channel.connectors.postgresql.log.columns import (
    LogColumn,
    TableColumns,
    becomes,
    difference,
)

WIDER = {
    "int2": ["int4", "int8", "numeric"],
    "int4": ["int8", "numeric"],
    "int8": ["numeric"],
    "varchar": ["text"],
}
OIDS = {
    "int2": 21,
    "int4": 23,
    "int8": 20,
    "numeric": 1700,
    "varchar": 1043,
    "text": 25,
    "bool": 16,
}

columns = st.dictionaries(st.sampled_from("abcd"), st.sampled_from(sorted(OIDS)), max_size=4)


def shape(found: dict[str, str], key: tuple[str, ...] = ()) -> TableColumns:
    return TableColumns(tuple(LogColumn(name, OIDS[kind]) for name, kind in found.items()), key)


def is_wider(old: str, new: str) -> bool:
    return old == new or new in WIDER.get(old, [])


@settings(max_examples=500)
@given(columns, columns)
def test_a_stream_evolves_where_all_that_stay_widen(
    was: dict[str, str], now: dict[str, str]
) -> None:
    refused = [name for name in was if name in now and not is_wider(was[name], now[name])]
    what = becomes(shape(was), shape(now))
    assert (what is not None) == bool(refused)
    if what is not None:
        assert what in [f"has column {name!r} of another type" for name in refused]


@settings(max_examples=500)
@given(columns, columns)
def test_a_stream_that_ignores_takes_no_type_that_its_own_cannot_hold(
    was: dict[str, str], now: dict[str, str]
) -> None:
    refused = [name for name in was if name in now and not is_wider(now[name], was[name])]
    assert (becomes(shape(was), shape(now), is_kept=True) is not None) == bool(refused)


@settings(max_examples=500)
@given(columns, columns)
def test_a_stream_that_fails_takes_no_change_and_names_a_column(
    was: dict[str, str], now: dict[str, str]
) -> None:
    what = difference(shape(was).columns, shape(now).columns, None)
    assert (what is None) == (list(was.items()) == list(now.items()))
    if what is not None and was.items() != now.items():
        name = what.split("'")[1]
        assert was.get(name) != now.get(name)


@settings(max_examples=300)
@given(columns, columns, columns)
def test_the_log_may_have_rows_of_all_columns_on_the_way(
    first: dict[str, str], second: dict[str, str], third: dict[str, str]
) -> None:
    """What evolves step by step evolves at once, if no column went and came back with another type."""
    steps = (
        becomes(shape(first), shape(second)) is None
        and becomes(shape(second), shape(third)) is None
    )
    came_back = any(name not in second and name in first and name in third for name in "abcd")
    if steps and not came_back:
        assert becomes(shape(first), shape(third)) is None


@pytest.mark.parametrize("is_kept", [False, True])
def test_the_key_stays(is_kept: bool) -> None:
    was, wide = {"a": "int4", "b": "text"}, {"a": "int4", "b": "text", "c": "int4"}
    assert becomes(shape(was, ("a",)), shape(wide, ("a", "b")), is_kept=is_kept) is None
    lost = becomes(shape(was, ("a",)), shape({"b": "text"}), is_kept=is_kept)
    assert lost == "has lost key column 'a'"
    new = becomes(shape(was, ("a",)), shape(wide, ("c",)), is_kept=is_kept)
    assert new == "has the new key column 'c'"
