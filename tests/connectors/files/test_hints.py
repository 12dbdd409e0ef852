"""A wrong guess about a file fails with an error that names the option to set."""

from pathlib import Path

import pytest

from spark_channel.connectors import load_reader, load_writer
from spark_channel.errors import OptionError, SourceError
from tests.connectors.files.helpers import read


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "name,x\nJosé,1\n"),
        ("a.csv", "näme,x\nJose,1\n"),
        ("a.json", '{"name": "José"}\n'),
    ],
)
def test_another_encoding_is_named(tmp_path: Path, name: str, text: str) -> None:
    """A name of a column was read as n\ufffdme, and a text of JSON as it was, without a word."""
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(
        SourceError,
        match=r"is not UTF-8: it holds byte 0xe.; name its encoding with option 'encoding'",
    ):
        read(name.partition(".")[2], tmp_path / name)
    assert "Jos" in str(
        read(name.partition(".")[2], tmp_path / name, encoding="latin-1").to_pydict()
    )


def test_utf_16_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("a,b\nx,1\n".encode("utf-16"))
    with pytest.raises(SourceError, match="'encoding', such as UTF-16"):
        read("csv", tmp_path / "a.csv")
    assert read("csv", tmp_path / "a.csv", encoding="UTF-16").to_pydict() == {"a": ["x"], "b": [1]}


@pytest.mark.parametrize(("separator", "shown"), [(";", ";"), ("\t", r"\\t"), ("|", r"\|")])
def test_another_separator_is_named(tmp_path: Path, separator: str, shown: str) -> None:
    (tmp_path / "a.csv").write_text(
        separator.join(["id", "name"]) + "\n" + separator.join(["1", "x"]) + "\n"
    )
    with pytest.raises(SourceError, match=rf"set option sep='{shown}', or sep=','"):
        read("csv", tmp_path / "a.csv")
    assert read("csv", tmp_path / "a.csv", sep=",").num_columns == 1
    assert read("csv", tmp_path / "a.csv", sep=separator).column_names == ["id", "name"]


def test_a_separator_in_quotes_does_not_hide_it(tmp_path: Path) -> None:
    """The two values were read as one, without their quotes."""
    (tmp_path / "a.csv").write_text('id;name\n1;"x;y"\n"2";z\n')
    with pytest.raises(SourceError, match="set option sep=';'"):
        read("csv", tmp_path / "a.csv")
    assert read("csv", tmp_path / "a.csv", sep=";").column("name").to_pylist() == ["x;y", "z"]


def test_one_column_with_a_semicolon_here_and_there_is_one_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("note; all\nplain\na; b\n")
    assert read("csv", tmp_path / "a.csv").num_rows == 2


@pytest.mark.parametrize("text", ['[{"a": 1}]', '[\n  {"a": 1},\n  {"a": 2}\n]\n', " [\n]"])
def test_a_json_array_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(SourceError, match=r"is one JSON array, and this reads JSON lines.*jq -c"):
        read("json", tmp_path / "a.json", maxLineBytes="2")


@pytest.mark.parametrize("text", ['{\n  "a": 1\n}\n', '{"a": 1,\n "b": 2}\n{"a": 3,\n "b": 4}\n'])
def test_an_object_over_several_lines_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(
        SourceError, match=r"spans several lines, and this reads JSON lines.*jq -c \. .*multiLine"
    ):
        read("json", tmp_path / "a.json")


def test_a_broken_line_is_not_taken_for_an_object_over_several(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1\n{"a": 2}\n')
    with pytest.raises(SourceError, match=r"line 1: not JSON"):
        read("json", tmp_path / "a.json")


@pytest.mark.parametrize(("half", "other"), [("reader", "writer"), ("writer", "reader")])
@pytest.mark.parametrize("place", [{"path": "/data/orders"}, {"url": "unknown://host/db"}, {}])
def test_the_other_half_is_named_where_nothing_else_tells_the_connector(
    half: str, other: str, place: dict[str, str]
) -> None:
    load = load_reader if half == "reader" else load_writer
    verb = "reads" if half == "reader" else "writes"
    with pytest.raises(
        OptionError, match=rf"option '{other}' got 'csv', but this {verb}: use option '{half}'"
    ):
        load({**place, other: "csv"})


def test_the_other_half_is_named() -> None:
    with pytest.raises(
        OptionError, match=r"unknown option 'writer' of connector 'csv'; did you mean 'reader'\?"
    ):
        load_reader({"path": "a.csv", "writer": "csv"})
    with pytest.raises(
        OptionError, match=r"unknown option 'reader' of connector 'csv'; did you mean 'writer'\?"
    ):
        load_writer({"path": "a.csv", "reader": "csv"})
