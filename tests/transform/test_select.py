from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_channel.errors import OptionError, SchemaError
from spark_channel.transform import (
    Output,
    RandomColumn,
    Rename,
    Select,
    TimesAsText,
    strptime_pattern,
)
from spark_channel.transform.convert import cast_or_refuse

ROWS = pa.record_batch(
    {"a": ["1", "x", " 3 ", None], "b": ["2024.01.02", "2024.02.03", "soon", "x"]}
)


def test_columns_are_picked_ordered_named_and_typed() -> None:
    step = Select(
        (
            Output(1, name="day", kind=pa.timestamp("us"), patterns=("%Y-%m-%d", "%Y.%m.%d")),
            Output("a", kind=pa.int64()),
            Output(constant="x"),
            Output(constant=True, kind=pa.bool_(), name="flag"),
            Output("a", name="raw"),
        )
    )
    outcome = step.apply(ROWS.slice(0, 1))
    assert outcome.batch.schema.equals(step.output_schema(ROWS.schema))
    assert outcome.batch.to_pylist() == [
        {"day": datetime(2024, 1, 2), "a": 1, "c2": "x", "flag": True, "raw": "1"}
    ]


def test_a_row_is_refused_once_for_the_first_value_that_cannot_be_cast() -> None:
    step = Select(
        (
            Output("a", kind=pa.int64()),
            Output("b", kind=pa.date32(), patterns=("%Y-%m-%d", "%Y.%m.%d")),
        )
    )
    outcome = step.apply(ROWS)
    assert outcome.batch.column(0).to_pylist() == [1]
    seen = [(refused.rows.to_pylist(), refused.reason) for refused in outcome.refused]
    assert seen == [
        ([{"a": "x", "b": "2024.02.03"}], "column 'a': not a value of type int64"),
        (
            [{"a": " 3 ", "b": "soon"}, {"a": None, "b": "x"}],
            "column 'b': not a value of type date32[day]",
        ),
    ]


@given(
    st.lists(
        st.none() | st.integers(-5, 300).map(str) | st.sampled_from(["", "x", "1e3"]), max_size=40
    )
)
def test_only_the_values_that_cannot_be_cast_are_lost(values: list[str | None]) -> None:
    def is_bad(text: str | None) -> bool:
        return text is not None and not (text.lstrip("-").isdigit() and -128 <= int(text) <= 127)

    made, bad = cast_or_refuse(pa.array(values, pa.string()), pa.int8())
    flags = [is_bad(text) for text in values]
    assert (bad.to_pylist() if bad is not None else [False] * len(values)) == flags
    assert made.to_pylist() == [
        None if text is None or flag else int(text)
        for text, flag in zip(values, flags, strict=True)
    ]


def test_a_batch_of_nothing_but_bad_values_is_no_deep_recursion() -> None:
    made, bad = cast_or_refuse(pa.array(["x"] * 5_000), pa.int64())
    assert made.null_count == 5_000
    assert bad is not None
    assert all(bad.to_pylist())


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ((Output(9),), "no column 9; numbers go from 0 to 1"),
        ((Output("aa"),), "did you mean 'a'"),
        ((Output("a", kind=pa.list_(pa.int64())),), "cannot become list"),
    ],
)
def test_a_column_that_is_not_there_is_an_error_before_a_row_moves(
    outputs: tuple[Output, ...], message: str
) -> None:
    with pytest.raises(SchemaError, match=message):
        Select(outputs).output_schema(ROWS.schema)


@pytest.mark.parametrize(
    "outputs",
    [(), (Output(constant="x", kind=pa.int64()),), (Output(constant="soon", kind=pa.date32()),)],
)
def test_no_columns_and_constants_of_another_type_are_refused(outputs: tuple[Output, ...]) -> None:
    with pytest.raises(OptionError, match="column"):
        Select(outputs)


def test_rename_goes_by_position() -> None:
    outcome = Rename(("x", "y")).apply(ROWS)
    assert outcome.batch.schema.names == ["x", "y"]
    assert outcome.batch.columns == ROWS.columns


def test_rename_needs_as_many_names_as_columns() -> None:
    with pytest.raises(
        SchemaError, match=r"2 columns arrive \(a, b\) and the writer names 1 \(x\)"
    ):
        Rename(("x",)).output_schema(ROWS.schema)


@pytest.mark.parametrize(
    ("java", "python"),
    [
        ("yyyy-MM-dd HH:mm:ss", "%Y-%m-%d %H:%M:%S"),
        ("yyyyMMdd", "%Y%m%d"),
        ("yyyy-MM-dd'T'HH:mm", "%Y-%m-%dT%H:%M"),
        ("dd.MM.yy 100%", "%d.%m.%y 100%%"),
        ("yyyy''MM", "%Y'%m"),
    ],
)
def test_java_date_patterns(java: str, python: str) -> None:
    assert strptime_pattern(java) == python


@pytest.mark.parametrize("java", ["", "SSSS", "yyyyy", "yyyy-MM-dd'T", "w"])
def test_a_pattern_that_cannot_be_read_is_refused(java: str) -> None:
    with pytest.raises(OptionError, match="date pattern"):
        strptime_pattern(java)


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [(pa.int64(), 5, 9), (pa.float64(), 5, 9), (pa.timestamp("us"), 0, 10**15), (pa.int64(), 3, 3)],
)
def test_random_values_stay_between_their_bounds_and_are_the_same_again(
    kind: pa.DataType, low: int, high: int
) -> None:
    batch = pa.record_batch({"id": range(1000)})
    values = RandomColumn(low, high)
    made = values.make(batch, kind)
    assert made.type == kind
    assert made.equals(values.make(batch, kind))
    numbers = made.cast(pa.float64()) if kind != pa.timestamp("us") else made.cast(pa.int64())
    assert min(numbers.to_pylist()) >= low
    assert max(numbers.to_pylist()) <= high


def test_random_integers_reach_both_bounds_and_other_batches_get_others() -> None:
    values = RandomColumn(1, 3)
    made = values.make(pa.record_batch({"id": range(200)}), pa.int64())
    assert set(made.to_pylist()) == {1, 2, 3}
    assert not made.equals(values.make(pa.record_batch({"id": range(200, 400)}), pa.int64()))


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_random_text_has_a_length_between_the_bounds(kind: pa.DataType) -> None:
    made: list[Any] = RandomColumn(2, 5).make(pa.record_batch({"id": range(300)}), kind).to_pylist()
    assert {len(text) for text in made} == {2, 3, 4, 5}
    assert len(set(made)) > 200


def test_random_booleans_keep_their_odds() -> None:
    made = RandomColumn(1, 3).make(pa.record_batch({"id": range(4000)}), pa.bool_()).to_pylist()
    assert 0.7 < sum(made) / len(made) < 0.8


def test_no_rows_need_no_values() -> None:
    empty = pa.record_batch({"id": pa.array([], pa.int64())})
    for kind in (pa.string(), pa.int64(), pa.bool_(), pa.float64()):
        assert len(RandomColumn(0, 5).make(empty, kind)) == 0


def test_bounds_the_wrong_way_round_are_refused() -> None:
    with pytest.raises(OptionError, match="the smaller number first"):
        RandomColumn(9, 5)


def test_times_become_text_by_their_pattern() -> None:
    noon = datetime(2024, 1, 31, 12, 30, 15, 900_000)
    batch = pa.record_batch(
        {
            "at": pa.array([noon, None], pa.timestamp("us")),
            "far": pa.array([0, None], pa.timestamp("ms", "Asia/Shanghai")),
            "day": pa.array([noon.date(), None]),
            "hour": pa.array([noon.time(), None]),
            "n": pa.array([1, None]),
        }
    )
    step = TimesAsText(dates="%Y%m%d")
    outcome = step.apply(batch)
    assert outcome.batch.schema.equals(step.output_schema(batch.schema))
    first, second = outcome.batch.to_pylist()
    assert first == {
        "at": "2024-01-31 12:30:15",
        "far": "1970-01-01 08:00:00",
        "day": "20240131",
        "hour": "12:30:15",
        "n": 1,
    }
    assert set(second.values()) == {None}


@pytest.mark.parametrize(
    ("kind", "texts", "expected"),
    [
        (pa.int64(), ["12.0", "1e3", "+5", " 7 ", "-3."], [12, 1000, 5, 7, -3]),
        (pa.int64(), ["0x1F", "-0X1", "12.5", "1e-1", "+", "++5", "e3", "1e40"], None),
        (pa.float64(), ["+5", "1e3", "-.5"], [5.0, 1000.0, -0.5]),
    ],
    ids=lambda value: str(value) if isinstance(value, pa.DataType) else "",
)
def test_texts_of_numbers_are_read_as_java_reads_them(
    kind: pa.DataType, texts: list[str], expected: list[float] | None
) -> None:
    outcome = Select((Output(0, "n", kind),)).apply(pa.record_batch({"t": texts}))
    assert outcome.batch.column(0).to_pylist() == (expected or [])
    assert sum(each.rows.num_rows for each in outcome.refused) == (0 if expected else len(texts))
