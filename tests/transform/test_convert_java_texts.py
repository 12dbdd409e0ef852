"""Texts as DataX writes them."""

import datetime as dt
from collections.abc import Sequence

import pyarrow as pa
import pytest

from spark_channel.transform import CsvTexts, JavaTexts
from spark_channel.transform.convert import FloatsAsText


def shown(
    values: Sequence[object], kind: pa.DataType, *, whole_seconds: bool = False
) -> list[object]:
    batch = pa.RecordBatch.from_arrays([pa.array(values, kind)], ["v"])
    step = JavaTexts(whole_seconds)
    out = step.apply(batch).batch
    assert out.schema == step.output_schema(batch.schema)
    found: list[object] = out.column(0).to_pylist()
    return found


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "0.0"),
        (1.0, "1.0"),
        (100.0, "100.0"),
        (0.1, "0.1"),
        (-2.5, "-2.5"),
        (0.001, "0.001"),
        (0.0009, "9.0E-4"),
        (9_999_999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (12_345_678.9, "1.23456789E7"),
        (1e300, "1.0E300"),
        (-1.5e-300, "-1.5E-300"),
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
        (None, None),
    ],
)
def test_doubles_are_shown_as_java_shows_them(value: float | None, text: str | None) -> None:
    assert shown([1.0, value], pa.float64()) == ["1.0", text]


def test_floats_have_their_own_digits() -> None:
    assert shown([0.1, 16777216.0], pa.float32()) == ["0.1", "1.6777216E7"]


def test_timestamps_end_at_milliseconds_and_have_a_digit_of_them() -> None:
    times = [
        dt.datetime(2022, 12, 28),
        dt.datetime(2022, 12, 28, 1, 2, 3, 120_000),
        dt.datetime(2022, 12, 28, 1, 2, 3, 5_999),
        None,
    ]
    expected = ["2022-12-28 00:00:00.0", "2022-12-28 01:02:03.12", "2022-12-28 01:02:03.005", None]
    assert shown(times, pa.timestamp("us")) == expected
    whole = ["2022-12-28 00:00:00", "2022-12-28 01:02:03.12", "2022-12-28 01:02:03.005", None]
    assert shown(times, pa.timestamp("us"), whole_seconds=True) == whole


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1, "0.1"), (100.0, "100.0"), (1e7, "10000000"), (1e20, "1" + "0" * 20), (None, None)],
)
def test_floats_in_texts_have_all_digits(value: float | None, text: str | None) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([value], pa.float64()), pa.array([7])], ["v", "w"])
    step = FloatsAsText()
    out = step.apply(batch).batch
    assert out.schema == step.output_schema(batch.schema)
    assert out.to_pydict() == {"v": [text], "w": [7]}


def test_texts_of_csv() -> None:
    values = ["a", " b ", "x,y", 'say "so"', "two\nlines", "", "#c", None]
    batch = pa.RecordBatch.from_arrays([pa.array(values), pa.array(values)], ["first", "second"])
    out = CsvTexts().apply(batch).batch
    quoted = ['"x,y"', '"say ""so"""', '"two\nlines"']
    assert out.column(0).to_pylist() == ["a", "b", *quoted, '""', '"#c"', None]
    assert out.column(1).to_pylist() == ["a", "b", *quoted, "", "#c", None]
