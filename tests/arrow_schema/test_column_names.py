"""Columns by name: spelled exactly so, else ignoring case, and never by a guess."""

import pyarrow as pa
import pytest

from spark_channel.arrow_schema.column_names import check_columns, find_column, match_names
from spark_channel.errors import OptionError, SchemaError

SCHEMA = pa.schema([("id", pa.int64()), ("Name", pa.string()), ("NAME", pa.string())])


def test_a_name_twice_is_refused() -> None:
    with pytest.raises(SchemaError, match="'id' occurs more than once"):
        check_columns(pa.schema([("id", pa.int64()), ("id", pa.string())]))


def test_names_that_differ_in_case_alone_are_two_columns() -> None:
    check_columns(SCHEMA)
    assert find_column(SCHEMA, "NAME", "where").name == "NAME"


def test_a_column_is_found_in_another_case_if_it_is_the_only_one() -> None:
    assert find_column(SCHEMA, "ID", "where").name == "id"


@pytest.mark.parametrize(("name", "words"), [("name", "more than one column"), ("x", "no column")])
def test_a_column_that_is_not_one_is_refused_with_those_there_are(name: str, words: str) -> None:
    with pytest.raises(OptionError, match=f"'where' names '{name}'; the source has {words}.*NAME"):
        find_column(SCHEMA, name, "where")


def test_names_are_matched_one_to_one() -> None:
    assert match_names(["a", "B", "gone"], ["A", "B", "b"]) == {"a": "A", "B": "B"}


@pytest.mark.parametrize(
    ("names", "others", "words"),
    [
        (["name"], ["Name", "NAME"], "may be 'Name' or 'NAME'"),
        (["Name", "NAME"], ["name"], "column 'Name' may both be 'name'"),
    ],
)
def test_a_name_that_may_be_several_is_refused(
    names: list[str], others: list[str], words: str
) -> None:
    with pytest.raises(SchemaError, match=words):
        match_names(names, others, "the target")
