"""What a place on the command line means: its connector, its options, and what is refused by name."""

import pytest

from spark_channel.cli.endpoints import add_option, column_list, parse_options, parse_place
from spark_channel.errors import OptionError


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("orders.csv", "csv", {"path": "orders.csv"}),
        ("parquet:orders", "parquet", {"path": "orders"}),
        ("orders.csv?header=true", "csv", {"path": "orders.csv", "header": "true"}),
    ],
)
def test_a_path_names_its_connector(text: str, name: str, options: dict[str, str]) -> None:
    end = parse_place("reader", text, {})
    assert (end.name, end.options) == (name, options)


def test_an_option_given_twice_is_refused_in_any_case() -> None:
    options = {"Header": "true"}
    with pytest.raises(OptionError, match="'header' is given twice"):
        add_option(options, "header", "false")


@pytest.mark.parametrize("text", ["header=true", "reader.=1", "reader.header", "source.header=1"])
def test_an_option_names_its_half(text: str) -> None:
    with pytest.raises(OptionError, match=r"takes reader\.NAME=VALUE or writer\.NAME=VALUE"):
        parse_options([text])


def test_options_are_those_of_each_half() -> None:
    texts = ["reader.nullValue=a=b", "writer.header=true"]
    assert parse_options(texts) == {"reader": {"nullValue": "a=b"}, "writer": {"header": "true"}}


def test_a_path_without_a_known_ending_lists_what_there_is() -> None:
    with pytest.raises(OptionError, match=r"does not say its format by its ending.*Names: .*csv"):
        parse_place("reader", "orders", {})


def test_columns_are_separated_by_commas() -> None:
    assert column_list("--key", "a, b") == ("a", "b")
    assert column_list("--key", None) is None
    with pytest.raises(OptionError, match="'--key' got ''"):
        column_list("--key", "")
