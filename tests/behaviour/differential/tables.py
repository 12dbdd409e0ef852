"""A table in one form, whoever read it: names, kinds and plain Python values, which tests compare with `==`."""

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.types as at

__all__ = ["Column", "Found", "difference", "from_arrow", "kind_of", "number", "of_rows"]

_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_INVALID = "not UTF-8:"


@dataclass(frozen=True)
class Column:
    """`values`: dates are days and times nanoseconds from 1970; structs are tuples, maps are lists of pairs."""

    name: str
    kind: str
    values: list[Any]


@dataclass(frozen=True)
class Found:
    columns: tuple[Column, ...]

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return list(zip(*(column.values for column in self.columns), strict=True))


def kind_of(kind: pa.DataType) -> str:
    """The name of a type, without the way in which Arrow stores it."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind_of(kind.storage_type)
    if at.is_dictionary(kind) or at.is_run_end_encoded(kind):
        return kind_of(kind.value_type)
    if at.is_string(kind) or at.is_large_string(kind) or at.is_string_view(kind):
        return "text"
    if (
        at.is_binary(kind)
        or at.is_large_binary(kind)
        or at.is_binary_view(kind)
        or at.is_fixed_size_binary(kind)
    ):
        return "binary"
    if at.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if at.is_date(kind):
        return "date"
    if at.is_time(kind):
        return "time"
    if at.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "instant"
    if at.is_duration(kind):
        return "duration"
    if at.is_map(kind):
        return f"map<{kind_of(kind.key_type)},{kind_of(kind.item_type)}>"
    if at.is_struct(kind):
        return f"struct<{','.join(f'{each.name}:{kind_of(each.type)}' for each in kind)}>"
    if _is_list(kind):
        return f"list<{kind_of(kind.value_type)}>"
    return {"double": "float64", "float": "float32", "halffloat": "float16"}.get(
        str(kind), str(kind)
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        at.is_list(kind)
        or at.is_large_list(kind)
        or at.is_fixed_size_list(kind)
        or at.is_list_view(kind)
        or at.is_large_list_view(kind)
    )


def number(value: float | None) -> Any:
    """A float that equals only itself: NaN equals NaN, and -0.0 does not equal 0.0."""
    return None if value is None else "nan" if value != value else struct.pack(">d", value).hex()


def from_arrow(table: pa.Table) -> Found:
    return Found(
        tuple(
            Column(
                name,
                kind_of(column.type),
                [value for chunk in column.chunks for value in _values(chunk)],
            )
            for name, column in zip(table.column_names, table.columns, strict=True)
        )
    )


def _values(array: pa.Array) -> list[Any]:
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return _values(array.storage)
    if at.is_dictionary(kind):
        return _values(array.dictionary_decode())
    if at.is_run_end_encoded(kind):
        return _values(pa.compute.run_end_decode(array))
    if at.is_floating(kind):
        return [number(value) for value in array.to_pylist()]
    if kind_of(kind) == "text":
        return [None if value is None else _text(value) for value in _binary(array)]
    if at.is_date(kind):
        return _scaled(array, lambda value: value if at.is_date32(kind) else value / 86_400_000)
    if at.is_time(kind) or at.is_timestamp(kind) or at.is_duration(kind):
        unit = _NANOSECONDS[kind.unit]
        return _scaled(array, lambda value: value * unit)
    if at.is_struct(kind):
        fields = [_values(array.field(number)) for number in range(kind.num_fields)]
        rows = list(zip(*fields, strict=True)) if fields else [()] * len(array)
        return _masked(array, rows)
    if at.is_map(kind):
        keys, items = _values(array.keys), _values(array.items)
        return _sliced(array, list(zip(keys, items, strict=True)))
    if at.is_fixed_size_list(kind):
        return _values(array.cast(pa.large_list(kind.value_type)))
    if at.is_list_view(kind) or at.is_large_list_view(kind):
        inner = _values(array.values)
        spans = zip(array.offsets.to_pylist(), array.sizes.to_pylist(), strict=True)
        return _masked(array, [inner[start : start + size] for start, size in spans])
    if at.is_list(kind) or at.is_large_list(kind):
        return _sliced(array, _values(array.values))
    found: list[Any] = array.to_pylist()
    return found


def _binary(array: pa.Array) -> list[bytes | None]:
    if at.is_string_view(array.type):
        found: list[bytes | None] = array.cast(pa.binary_view()).to_pylist()
        return found
    large = at.is_large_string(array.type)
    whole = array.view(pa.large_binary() if large else pa.binary())
    plain: list[bytes | None] = whole.to_pylist()
    return plain


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"{_INVALID} {value!r}"


def _scaled(array: pa.Array, change: Callable[[int], Any]) -> list[Any]:
    whole = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    return [None if value is None else change(value) for value in whole.to_pylist()]


def _masked(array: pa.Array, values: Sequence[Any]) -> list[Any]:
    return [
        value if valid else None
        for value, valid in zip(values, array.is_valid().to_pylist(), strict=True)
    ]


def _sliced(array: pa.Array, values: list[Any]) -> list[Any]:
    ends = array.offsets.to_pylist()
    return _masked(array, [values[start:end] for start, end in pairwise(ends)])


def difference(ours: Found, theirs: Found, *, ordered: bool = True) -> str | None:
    """Describe the first difference; None = equal, value for value and kind for kind."""
    found = [[(column.name, column.kind) for column in each.columns] for each in (ours, theirs)]
    if found[0] != found[1]:
        pairs = [f"{a} / {b}" for a, b in zip(*found, strict=False) if a != b] or [
            f"{len(found[0])} / {len(found[1])} columns: {found[0][-1:]} {found[1][-1:]}"
        ]
        return f"columns differ: {'; '.join(pairs[:5])}"
    mine, other = ours.rows, theirs.rows
    if not ordered:
        mine, other = sorted(mine, key=repr), sorted(other, key=repr)
    if len(mine) != len(other):
        return f"{len(mine)} rows, the other reader has {len(other)}"
    for row, (left, right) in enumerate(zip(mine, other, strict=True)):
        for column, a, b in zip(ours.columns, left, right, strict=True):
            if not _same(a, b):
                return (
                    f"row {row}, column {column.name!r} ({column.kind}): {_short(a)}, "
                    f"the other reader has {_short(b)}"
                )
    return None


def _same(a: Any, b: Any) -> bool:
    # 1 == True, and neither is what the other reader should have found.
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 200 else f"{text[:200]}..."


def of_rows(names: Iterable[str], kinds: Iterable[str], rows: Iterable[Sequence[Any]]) -> Found:
    """A table of rows; values are as in `Column`."""
    columns = list(zip(*rows, strict=True))
    named = list(zip(names, kinds, strict=True))
    return Found(
        tuple(
            Column(name, kind, list(columns[number]) if columns else [])
            for number, (name, kind) in enumerate(named)
        )
    )
