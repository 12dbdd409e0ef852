"""Where the rows lie in what COPY sends: for any rows, and for values that look like rows themselves."""

import struct
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_channel.connectors.postgresql.copy import row_bounds as of_bounds
from spark_channel.connectors.postgresql.copy.row_bounds import row_bounds

Value = bytes | None


@pytest.fixture(params=["few bytes are walked", "none"], autouse=True, scope="module")
def walked(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test also where few bytes are searched by numpy, as many are."""
    with pytest.MonkeyPatch.context() as patched:
        if request.param == "none":
            patched.setattr(of_bounds, "_WALKED", 0)
        yield


def _row(values: Sequence[Value]) -> bytes:
    fields = [
        struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
        for value in values
    ]
    return struct.pack(">h", len(values)) + b"".join(fields)


def _expected(rows: Sequence[bytes]) -> list[int]:
    ends = [0]
    for row in rows:
        ends.append(ends[-1] + len(row))
    return ends


@st.composite
def _rows(draw: st.DrawFn) -> tuple[int, list[bytes]]:
    """Rows of one number of columns; values are short numbers, NULLs, and pieces of such rows."""
    columns = draw(st.integers(1, 12))
    value = st.one_of(
        st.none(),
        st.integers(0, columns + 1).map(lambda number: number.to_bytes(4, "big")),
        st.binary(max_size=9),
        st.lists(st.none(), min_size=columns, max_size=columns).map(_row),
        st.just(_row([b""] * columns) * 2),
    )
    drawn = st.lists(st.lists(value, min_size=columns, max_size=columns).map(_row), max_size=20)
    return columns, draw(drawn)


@given(_rows())
def test_they_are_found(case: tuple[int, list[bytes]]) -> None:
    columns, rows = case
    assert row_bounds(b"".join(rows), columns).tolist() == _expected(rows)


def test_rows_are_not_walked_for_numbers_that_begin_like_a_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten times as slow is only for bytes that pass for a chain of rows."""
    monkeypatch.setattr(of_bounds, "_walked", lambda *_: pytest.fail("walked"))
    rows = [_row([number.to_bytes(8, "big"), None, b"\x00\x03" * 5]) for number in range(1000)]
    assert row_bounds(b"".join(rows), 3).tolist() == _expected(rows)


def test_a_number_that_begins_like_the_first_row_does_not_have_all_places_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in most tables with two numbers or a date beside a text: each piece would take twice as long."""
    tried, ends = list[int](), of_bounds._ends

    def counted(data: bytes, starts: of_bounds.Places, columns: int) -> of_bounds.Places:
        tried.append(len(starts))
        return ends(data, starts, columns)

    monkeypatch.setattr(of_bounds, "_ends", counted)
    rows = [
        _row([number.to_bytes(8, "big"), b"8 bytes.", b"\x00\x03" * 5]) for number in range(1000)
    ]
    assert row_bounds(b"".join(rows), 3).tolist() == _expected(rows)
    assert sum(tried) < 2 * len(rows)


def test_a_value_that_holds_rows_is_no_row() -> None:
    inner = _row([b"a", b"b"]) * 50
    rows = [_row([inner, b"x"]), _row([None, inner])] * 3
    assert row_bounds(b"".join(rows), 2).tolist() == _expected(rows)


def test_more_columns_than_a_byte_counts() -> None:
    rows = [_row([b"\x01\x00"] * 256), _row([None] * 256)] * 5
    assert row_bounds(b"".join(rows), 256).tolist() == _expected(rows)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00",
        b"\x00\x01\x00\x00",
        _row([b"abc"])[:-1],
        _row([b"a"]) + b"\xff\xff",
        _row([b"a", b"b"]),
    ],
)
def test_what_is_no_row_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"cut off|columns"):
        row_bounds(data, 1)
