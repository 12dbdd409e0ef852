from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_channel.errors import OptionError, SchemaError, SourceError
from spark_channel.transform import Pad, Replace, Substr, Transformer

TEXTS = st.lists(st.none() | st.text(max_size=12), max_size=20)


def batch_of(values: list[Any], kind: pa.DataType | None = None) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, kind or pa.string())})


def run(step: Transformer, values: list[Any], kind: pa.DataType | None = None) -> list[Any]:
    """The values that come out; also holds the batch against the schema that was promised."""
    batch = batch_of(values, kind)
    outcome = step.apply(batch)
    assert outcome.batch.schema.equals(step.output_schema(batch.schema))
    outcome.batch.validate(full=True)
    made: list[Any] = outcome.batch.column(0).to_pylist()
    return made


@pytest.mark.parametrize(
    ("start", "length", "values", "made"),
    [
        (2, 5, ["dataxTest"], ["taxTe"]),
        (5, 10, ["dataxTest"], ["Test"]),
        (0, 3, [None, "", "ab"], [None, "", "ab"]),
        (2, 0, ["abc"], [""]),
        (3, 1, ["abc"], [""]),
        (1, 2, ["日本語"], ["本語"]),
    ],
)
def test_substr(start: int, length: int, values: list[Any], made: list[Any]) -> None:
    assert run(Substr("value", start, length), values) == made


@pytest.mark.parametrize(
    ("side", "length", "fill", "values", "made"),
    [
        ("l", 4, "A", ["xyz", "xyzzzzz"], ["Axyz", "xyzz"]),
        ("r", 4, "A", ["xyz", "xyzzzzz"], ["xyzA", "xyzz"]),
        ("l", 3, "A", [None, ""], ["AAA", "AAA"]),
        ("l", 6, "ab", ["x", None, "xyzxyzx"], ["ababax", "ababab", "xyzxyz"]),
        ("r", 6, "ab", ["x", "xy"], ["xababa", "xyabab"]),
        ("l", 0, "ab", ["x"], [""]),
        ("r", 3, "日", ["x"], ["x日日"]),
    ],
)
def test_pad(side: Any, length: int, fill: str, values: list[Any], made: list[Any]) -> None:
    assert run(Pad(0, side, length, fill), values) == made


@pytest.mark.parametrize(
    ("start", "length", "text", "values", "made"),
    [
        (2, 4, "****", ["dataxTest"], ["da****est"]),
        (5, 10, "****", ["dataxTest"], ["datax****"]),
        (0, 1, "", ["abc", None], ["bc", None]),
        (3, 0, "+", ["abc"], ["abc+"]),
    ],
)
def test_replace(start: int, length: int, text: str, values: list[Any], made: list[Any]) -> None:
    assert run(Replace("value", start, length, text), values) == made


@given(TEXTS, st.integers(0, 15), st.integers(0, 15))
def test_substr_is_a_slice_of_what_is_long_enough(
    values: list[str | None], start: int, length: int
) -> None:
    kept = [text for text in values if text is None or len(text) >= start]
    assert run(Substr(0, start, length), values) == [
        text and text[start : start + length] if text is not None else None for text in kept
    ]


@given(TEXTS, st.sampled_from(["l", "r"]), st.integers(0, 15), st.text(min_size=1, max_size=3))
def test_pad_gives_every_value_its_length(
    values: list[str | None], side: Any, length: int, fill: str
) -> None:
    def padded(text: str) -> str:
        missing = (fill * length)[: max(0, length - len(text))]
        return (missing + text if side == "l" else text + missing)[:length]

    assert run(Pad(0, side, length, fill), values) == [padded(text or "") for text in values]


@pytest.mark.parametrize("step", [Substr("value", 3, 1), Replace("value", 3, 1, "*")])
def test_a_value_shorter_than_the_start_is_refused_and_the_others_go_on(step: Transformer) -> None:
    outcome = step.apply(batch_of(["abcd", "ab", None, "abc", ""]))
    assert outcome.batch.num_rows == 3
    (refused,) = outcome.refused
    assert refused.rows.column(0).to_pylist() == ["ab", ""]
    assert "'value' is shorter than the start, 3" in refused.reason


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.int64(), 1234, "1234"),
        (pa.float64(), 1.0, "1.0"),
        (pa.float64(), -2.5, "-2.5"),
        (pa.decimal128(5, 2), Decimal("1.50"), "1.50"),
        (pa.bool_(), True, "true"),
        (pa.timestamp("us"), datetime(2024, 1, 31, 8, 0, 0, 900_000), "2024-01-31 08:00:00"),
        (pa.timestamp("us"), datetime(1969, 12, 31, 23, 59, 59, 500_000), "1969-12-31 23:59:59"),
        (
            pa.timestamp("us", "Asia/Shanghai"),
            datetime(2024, 1, 1, tzinfo=UTC),
            "2024-01-01 08:00:00",
        ),
        (pa.date32(), datetime(2024, 1, 31).date(), "2024-01-31"),
        (pa.binary(), b"abc", "abc"),
        (pa.large_string(), "abc", "abc"),
        (pa.dictionary(pa.int8(), pa.string()), "abc", "abc"),
    ],
)
def test_every_plain_type_has_a_text(kind: pa.DataType, value: Any, text: str) -> None:
    assert run(Substr(0, 0, 100), [value, None], kind) == [text, None]


def test_bytes_that_are_no_text_name_their_column() -> None:
    with pytest.raises(SourceError, match="'value' holds bytes that are not UTF-8"):
        Substr(0, 0, 1).apply(batch_of([b"\xff"], pa.binary()))


def test_a_type_without_text_is_refused_before_a_row_moves() -> None:
    with pytest.raises(SchemaError, match=r"'value' has type list<item: int64>"):
        Pad(0, "l", 1, "x").output_schema(batch_of([], pa.list_(pa.int64())).schema)


def test_a_padded_column_is_never_null() -> None:
    schema = Pad(0, "l", 1, "x").output_schema(batch_of([]).schema)
    assert not schema.field(0).nullable
    assert Substr(0, 0, 1).output_schema(batch_of([]).schema).field(0).nullable


@pytest.mark.parametrize(
    "made",
    [
        lambda: Substr("a", -1, 2),
        lambda: Substr("a", 0, "two"),  # type: ignore[arg-type] # wrong on purpose
        lambda: Substr("", 0, 2),
        lambda: Substr(-1, 0, 2),
        lambda: Substr(True, 0, 2),
        lambda: Replace("a", 0, 2**40, "x"),
        lambda: Replace("a", 0, 1, None),  # type: ignore[arg-type] # wrong on purpose
        lambda: Pad("a", "x", 2, "x"),  # type: ignore[arg-type] # wrong on purpose
        lambda: Pad("a", "l", 2, ""),
        lambda: Pad("a", "l", 10**9, "x"),
    ],
)
def test_a_step_that_makes_no_sense_is_refused_when_it_is_made(made: Any) -> None:
    with pytest.raises(OptionError, match="it takes"):
        made()
