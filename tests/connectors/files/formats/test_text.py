"""Inferred types change no value: of each column, the text can be rebuilt."""

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_channel.connectors.files.formats.text_encode import value_text
from spark_channel.errors import SourceError
from tests.connectors.files.helpers import read, read_all, reader_of


def column_of(tmp_path: Path, *texts: str, **options: Any) -> pa.ChunkedArray:
    (tmp_path / "t.csv").write_text("a,b\n" + "".join(f"{text},x\n" for text in texts))
    return read("csv", tmp_path / "t.csv", **options).column("a")


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "-20", "0"], pa.int64()),
        (["9223372036854775807"], pa.int64()),
        ([f"1000000000000000000{digit}" for digit in range(5)], pa.decimal128(38, 0)),
        (["1" * 39], pa.string()),
        (["1", "2.50"], pa.float64()),
        (["0.1234567890123456789"], pa.decimal128(38, 19)),
        (["9007199254740993", "0.5"], pa.decimal128(38, 1)),
        (["0x10"], pa.string()),
        (["+4915112345600"], pa.string()),
        (["007", "1"], pa.string()),
        (["1e5"], pa.string()),
        (["1.5E3", "2"], pa.string()),
        (["true", "false"], pa.bool_()),
        (["true", "FALSE"], pa.bool_()),
        (["2020-01-01T10:00:00.123456"], pa.timestamp("us")),
        (["2020-01-01T10:00:00.123456789"], pa.string()),
    ],
)
def test_csv(tmp_path: Path, texts: list[str], kind: pa.DataType) -> None:
    found = column_of(tmp_path, *texts)
    assert found.type == kind
    if kind == pa.string():
        assert found.to_pylist() == texts


@pytest.mark.parametrize(
    ("numbers", "kind"),
    [
        (["1", "9223372036854775807"], pa.int64()),
        (["9223372036854775808"], pa.decimal128(38, 0)),
        (["1", "99999999999999999999"], pa.decimal128(38, 0)),
        (["1.5", "1e5"], pa.float64()),
        (["1.5", "9007199254740993"], pa.string()),
        (["0.12345678901234567890"], pa.decimal128(38, 20)),
    ],
)
def test_json(tmp_path: Path, numbers: list[str], kind: pa.DataType) -> None:
    (tmp_path / "t.json").write_text("".join(f'{{"a": {number}}}\n' for number in numbers))
    found = read("json", tmp_path / "t.json").column("a")
    assert found.type == kind
    assert [Decimal(str(value)) for value in found.to_pylist()] == [
        Decimal(number) for number in numbers
    ]


def test_numbers_in_a_json_text_are_as_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"a": "x"}\n{"a": 1.50}\n{"a": {"b": [1e5, -0]}}\n')
    assert read("json", tmp_path / "t.json").column("a").to_pylist() == [
        "x",
        "1.50",
        '{"b": [1e5, -0]}',
    ]


@pytest.mark.parametrize("text", ["007", "0x10", "-0"])
def test_a_row_after_the_sample_is_not_changed_either(tmp_path: Path, text: str) -> None:
    with pytest.raises(SourceError, match=rf"line 52: column 'a' \(int64\) cannot hold '{text}'"):
        column_of(tmp_path, *["12345"] * 50, text, sampleBytes="50")


@pytest.mark.parametrize(
    "text", ["+5", "12345678901234567", "1e400", ".5", "5.", "inf", "nan", "-Inf"]
)
def test_nor_rounded(tmp_path: Path, text: str) -> None:
    with pytest.raises(SourceError, match="cannot hold"):
        column_of(tmp_path, *["1.5"] * 50, text, sampleBytes="50")


def test_blanks_around_numbers_are_no_part_of_them(tmp_path: Path) -> None:
    """Beside texts that look like exponents, for which each number's text is looked at."""
    lines = ["1,1.50,8e29", " 2 , 2.5,8e29", "9223372036854775807,-0.5,8e29", ",,8e29"] * 3
    (tmp_path / "t.csv").write_text("a,b,c\n" + "\n".join(lines) + "\n")
    found = read("csv", tmp_path / "t.csv").to_pydict()
    assert found["a"] == [1, 2, 9223372036854775807, None] * 3
    assert found["b"] == [1.5, 2.5, -0.5, None] * 3
    assert found["c"] == ["8e29"] * 12


@pytest.mark.parametrize(
    ("first", "later"),
    [
        ("2020-01-01 10:30:00", "2020-01-01"),
        ("2020-01-01 10:30:00", "2020-01-01 10"),
        ("2020-01-01T10:30:00Z", "2020-01-01T10:30:00"),
        ("2020-01-01T10:30:00Z", "2020-01-01"),
    ],
)
def test_nor_given_a_time_or_zone_that_it_does_not_have(
    tmp_path: Path, first: str, later: str
) -> None:
    with pytest.raises(SourceError, match=f"line 52: .* cannot hold '{later}'"):
        column_of(tmp_path, *[first] * 50, later, sampleBytes="50")
    assert (
        len(
            column_of(tmp_path, *[first] * 50, "2020-01-01T10:00:00" + first[19:], sampleBytes="50")
        )
        == 51
    )


def test_a_zone_that_the_user_gave_is_that_of_times_without_one(tmp_path: Path) -> None:
    texts = ["2020-01-01T10:30:00Z"] * 50 + ["2020-01-01T10:30:00"]
    found = column_of(tmp_path, *texts, sampleBytes="50", timeZone="Europe/Berlin").to_pylist()
    assert found[-1].hour == 9


def test_a_json_number_after_the_sample_is_not_rounded(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"a": 1.5}\n' * 50 + '{"a": 12345678901234567.5}\n')
    with pytest.raises(
        SourceError, match=r"line 51: column 'a' \(double\) cannot hold 12345678901234567.5"
    ):
        read("json", tmp_path / "t.json", sampleBytes="50")


@pytest.mark.parametrize("number", ["1e400", "-1e400"])
def test_a_json_number_after_the_sample_is_not_infinite(tmp_path: Path, number: str) -> None:
    (tmp_path / "t.json").write_text('{"a": 1.5}\n' * 50 + f'{{"a": {number}}}\n')
    with pytest.raises(SourceError, match=rf"line 51: column 'a' \(double\) cannot hold {number}"):
        read("json", tmp_path / "t.json", sampleBytes="50")


@pytest.mark.parametrize("name", [r"\u0061", r"x\"y", r"\\"])
def test_a_json_name_with_an_escape_hides_no_long_number(tmp_path: Path, name: str) -> None:
    (tmp_path / "1.json").write_text(f'{{"{name}": 12345678901234567.5}}\n')
    assert read("json", tmp_path / "1.json").column(0).to_pylist() == [
        Decimal("12345678901234567.5")
    ]
    (tmp_path / "2.json").write_text(
        f'{{"{name}": 1.5}}\n' * 50 + f'{{"{name}": 12345678901234567.5}}\n'
    )
    with pytest.raises(SourceError, match=r"line 51: column .* cannot hold 12345678901234567\.5"):
        read("json", tmp_path / "2.json", sampleBytes="50")


@pytest.mark.parametrize(
    ("first", "later"),
    [
        ('{"b": 1}', '{"b": 1, "c": 2}'),
        ('{"b": 1}', '{"c": 2}'),
        ('[{"b": 1}]', '[{"b": 1, "c": 2}]'),
        ('{"b": {"x": 1}}', '{"b": {"x": 1, "c": 2}}'),
        ("{}", '{"c": 2}'),
    ],
)
@pytest.mark.parametrize("columns", [{}, {"columns": "a"}])
def test_a_field_inside_a_column_that_the_sample_did_not_have_is_not_lost(
    tmp_path: Path, first: str, later: str, columns: dict[str, Any]
) -> None:
    (tmp_path / "t.json").write_text(
        f'{{"a": {first}, "z": 1}}\n' * 50 + f'{{"a": {later}, "z": 1}}\n'
    )
    with pytest.raises(SourceError, match="line 51: column 'a': field c was not in the sample"):
        read("json", tmp_path / "t.json", sampleBytes="50", **columns)


def test_a_field_beside_the_columns_that_are_read_may_be_new(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"a": {"b": 1}}\n' * 50 + '{"a": {"b": 2}, "c": 3}\n')
    found = read("json", tmp_path / "t.json", sampleBytes="50", columns="a")
    assert found.column("a").to_pylist()[-1] == {"b": 2}


def test_a_type_that_the_user_gave_means_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a\n007\n")
    reader = reader_of("csv", tmp_path / "t.csv").with_schema(pa.schema([("a", pa.int64())]))
    assert read_all(reader).column("a").to_pylist() == [7]


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        ("1", "1.5", pa.float64()),
        ("9007199254740993", "1.5", pa.string()),
        ("1", "10000000000000000000", pa.decimal128(38, 0)),
        ("1", "007", pa.string()),
    ],
)
def test_files_agree_on_a_type_that_changes_neither(
    tmp_path: Path, one: str, other: str, kind: pa.DataType
) -> None:
    (tmp_path / "1.csv").write_text(f"a\n{one}\n")
    (tmp_path / "2.csv").write_text(f"a\n{other}\n")
    table = read("csv", tmp_path)
    assert table.column("a").type == kind
    assert [Decimal(str(value)) for value in table.column("a").to_pylist()] == [
        Decimal(one),
        Decimal(other),
    ]


def test_a_folder_of_a_long_number_is_no_double(tmp_path: Path) -> None:
    folder = tmp_path / "id=10000000000000000001"
    folder.mkdir()
    (folder / "1.csv").write_text("a\n1\n")
    assert read("csv", tmp_path).column("id").to_pylist() == [Decimal(10000000000000000001)]


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "-20"], pa.int32()),
        (["2020-01-01"], pa.date32()),
        (["2020-01-01 10:00"], pa.timestamp("us")),
        (["1.5", "2"], pa.float64()),
        *(
            ([text], pa.string())
            for text in (
                "007",
                "+5",
                "1e5",
                ".5",
                "5.",
                "\uff11\uff12",
                "2020-W01",
                "2020-W01-1",
                "20200101T10",
                "1" * 39,
                "inf",
                "2020-01-01T10:00:00.123456789",
                "2020-01-01T10:00Z",
                "0x10",
                "1_0",
                "٢٠٢٠-01-01",
            )
        ),
        (["1", "01"], pa.string()),
        (["2020-01-01", "2020-01-01 10:00"], pa.string()),
    ],
)
def test_folders(tmp_path: Path, texts: list[str], kind: pa.DataType) -> None:
    for text in texts:
        (tmp_path / f"k={text}").mkdir()
        (tmp_path / f"k={text}" / "1.csv").write_text("a\n1\n")
    found = read("csv", tmp_path).column("k")
    assert found.type == kind
    if kind == pa.string():
        assert sorted(found.to_pylist()) == sorted(texts)


def test_a_folder_whose_type_the_user_gave(tmp_path: Path) -> None:
    (tmp_path / "month=01").mkdir()
    (tmp_path / "month=01" / "1.csv").write_text("a\n1\n")
    reader = reader_of("csv", tmp_path).with_schema(
        pa.schema([("a", pa.int64()), ("month", pa.int32())])
    )
    assert read_all(reader).column("month").to_pylist() == [1]


NUMBERS = st.one_of(
    st.from_regex(
        re.compile(r"[+-]?0?[0-9]{1,22}(\.[0-9]{1,22})?(e[0-9]{1,2})?", re.ASCII), fullmatch=True
    ),
    st.sampled_from(
        ["true", "True", "false", "0x1F", "NaN", "inf", "2020-02-30", "2020-01-01 10:00"]
    ),
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr),
    st.integers(-(2**70), 2**70).map(str),
)


def canonical(text: str) -> str:
    """Without zeros at the end of a fraction."""
    return text.rstrip("0").rstrip(".") if re.fullmatch(r"-?[0-9]+\.[0-9]+", text) else text


@settings(max_examples=150)
@given(texts=st.lists(NUMBERS, min_size=1, max_size=6))
def test_whatever_is_inferred_the_text_can_be_rebuilt(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    found = column_of(tmp_path_factory.mktemp("csv"), *texts).combine_chunks()
    if pa.types.is_floating(found.type):
        rebuilt = [
            format(Decimal(repr(value)), "f") if value == value else "NaN"
            for value in found.to_pylist()
        ]
    elif pa.types.is_boolean(found.type):
        rebuilt = [json.dumps(value) for value in found.to_pylist()]
        texts = [text.lower() for text in texts]
    elif pa.types.is_timestamp(found.type):
        rebuilt = [text[:16].replace("T", " ") for text in value_text(found).to_pylist()]
    else:
        rebuilt = value_text(found).to_pylist()
    assert [canonical(text) for text in rebuilt] == [canonical(text) for text in texts]
