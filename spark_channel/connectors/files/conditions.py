"""Conditions on Arrow batches, in SQL's three-valued logic.

A `Condition` is a small immutable tree. `mask` evaluates it on a batch (NULL = unknown, and a row
passes only on true); `may_match` says from column ranges whether any row could pass, which prunes
row groups. NaN equals NaN and is greater than every number, as in Spark and PostgreSQL.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from fractions import Fraction
from functools import reduce
from typing import Any

import pyarrow as pa

from spark_channel.arrow_schema import is_text
from spark_channel.errors import OptionError
from spark_channel.lazy import compute as pc

__all__ = [
    "FLIPPED",
    "All",
    "AnyOf",
    "Compare",
    "CompareColumns",
    "Condition",
    "Constant",
    "IsNull",
    "Like",
    "Member",
    "NotNullConstant",
    "ValueRange",
    "comparison",
    "exact",
    "same_step",
]


NEGATED = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}
FLIPPED = {"eq": "eq", "ne": "ne", "lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
_FUNCTIONS = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}


@dataclass(frozen=True, slots=True)
class ValueRange:
    """The known range of one column in one chunk, in the values of `literals.exact`.

    `low`, `high`: None = unknown. `nulls`: how many, None = unknown. `rows`: how many in all.
    """

    low: Any
    high: Any
    nulls: int | None
    rows: int

    def only_nulls(self) -> bool:
        return self.nulls is not None and self.nulls == self.rows


class Condition(ABC):
    """One node of a condition."""

    @property
    @abstractmethod
    def columns(self) -> frozenset[str]:
        """The columns that `mask` reads, in the schema's spelling."""

    @abstractmethod
    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        """true, false or null per row."""

    @abstractmethod
    def negated(self) -> "Condition":
        """NOT this: true and false change places, null stays."""

    def may_match(self, ranges: Mapping[str, ValueRange]) -> bool:
        """False only when no row of the chunk can pass. Columns without a range are unknown."""
        return True


@dataclass(frozen=True, slots=True)
class Constant(Condition):
    """TRUE, FALSE or NULL, whatever the row."""

    value: bool | None

    @property
    def columns(self) -> frozenset[str]:
        return frozenset()

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.repeat(pa.scalar(self.value, pa.bool_()), batch.num_rows)

    def negated(self) -> Condition:
        return Constant(None if self.value is None else not self.value)

    def may_match(self, ranges: Mapping[str, ValueRange]) -> bool:
        return bool(self.value)


@dataclass(frozen=True, slots=True)
class _OnColumn(Condition):
    """A test of one column. Unless it says otherwise, NULL gives NULL: in a chunk of NULLs no row passes."""

    column: str

    @property
    def columns(self) -> frozenset[str]:
        return frozenset((self.column,))

    def may_match(self, ranges: Mapping[str, ValueRange]) -> bool:
        value_range = ranges.get(self.column)
        return value_range is None or (
            not value_range.only_nulls() and self._may_match(value_range)
        )

    def _may_match(self, value_range: ValueRange) -> bool:
        """`may_match` for a chunk with values, or of which nothing is known."""
        return True


@dataclass(frozen=True, slots=True)
class NotNullConstant(_OnColumn):
    """`value` where the column has one, NULL where it is NULL: a comparison decided by its literal."""

    value: bool

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        nothing = pa.scalar(None, pa.bool_())
        return pc.if_else(pc.is_valid(batch.column(self.column)), pa.scalar(self.value), nothing)

    def negated(self) -> Condition:
        return replace(self, value=not self.value)

    def may_match(self, ranges: Mapping[str, ValueRange]) -> bool:
        return self.value and _OnColumn.may_match(self, ranges)


@dataclass(frozen=True, slots=True)
class Compare(_OnColumn):
    """`column <op> value`, op one of eq, ne, lt, le, gt, ge.

    `value` is what `pa.scalar(value, type)` takes; `rank` is the same value as a `ValueRange` has it.
    """

    op: str
    value: Any
    type: pa.DataType
    rank: Any

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        values = _typed(batch.column(self.column), self.type)
        mask = getattr(pc, _FUNCTIONS[self.op])(values, pa.scalar(self.value, self.type))
        if pa.types.is_floating(self.type) and self.op in ("gt", "ge"):
            mask = pc.or_(mask, pc.is_nan(values))
        return mask

    def negated(self) -> Condition:
        return replace(self, op=NEGATED[self.op])

    def _may_match(self, value_range: ValueRange) -> bool:
        # Statistics leave NaN out, and NaN passes these.
        if pa.types.is_floating(self.type) and self.op in ("gt", "ge", "ne"):
            return True
        return _may_compare(self.op, self.rank, value_range)


def _typed(values: pa.Array, kind: pa.DataType) -> pa.Array:
    return values if values.type == kind else values.cast(kind)


def _may_compare(op: str, rank: object, value_range: ValueRange) -> bool:
    low, high = value_range.low, value_range.high
    if op in ("lt", "le"):
        return low is None or bool(low < rank or (op == "le" and low == rank))
    if op in ("gt", "ge"):
        return high is None or bool(high > rank or (op == "ge" and high == rank))
    if op == "eq":
        return (low is None or bool(low <= rank)) and (high is None or bool(high >= rank))
    return low is None or high is None or not low == high == rank


@dataclass(frozen=True, slots=True)
class CompareColumns(Condition):
    """`left <op> right`, both of one type that is not a floating one."""

    left: str
    op: str
    right: str

    @property
    def columns(self) -> frozenset[str]:
        return frozenset((self.left, self.right))

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        return getattr(pc, _FUNCTIONS[self.op])(batch.column(self.left), batch.column(self.right))

    def negated(self) -> Condition:
        return replace(self, op=NEGATED[self.op])


@dataclass(frozen=True, slots=True)
class Member(_OnColumn):
    """`column IN (values)`; `unknown` = the list also holds NULL, so that no match is NULL."""

    values: tuple[Any, ...]
    type: pa.DataType
    ranks: tuple[Any, ...]
    unknown: bool = False
    negative: bool = False

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        values = _typed(batch.column(self.column), self.type)
        nothing = pa.scalar(None, pa.bool_())
        mask = pc.is_in(values, value_set=pa.array(self.values, self.type))
        if self.unknown:
            mask = pc.if_else(mask, pa.scalar(True), nothing)
        mask = pc.if_else(pc.is_valid(values), mask, nothing)
        return pc.invert(mask) if self.negative else mask

    def negated(self) -> Condition:
        return replace(self, negative=not self.negative)

    def _may_match(self, value_range: ValueRange) -> bool:
        if self.negative:
            return not self.unknown
        return any(_may_compare("eq", rank, value_range) for rank in self.ranks)


@dataclass(frozen=True, slots=True)
class IsNull(_OnColumn):
    """`column IS NULL`, or IS NOT NULL when `negative`."""

    negative: bool = False

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        values = batch.column(self.column)
        return pc.is_valid(values) if self.negative else pc.is_null(values)

    def negated(self) -> Condition:
        return replace(self, negative=not self.negative)

    def may_match(self, ranges: Mapping[str, ValueRange]) -> bool:
        value_range = ranges.get(self.column)
        if value_range is None or value_range.nulls is None:
            return True
        return not value_range.only_nulls() if self.negative else value_range.nulls > 0


@dataclass(frozen=True, slots=True)
class Like(_OnColumn):
    """`column LIKE pattern`, as an RE2 pattern that covers the whole text."""

    regex: str
    ignore_case: bool = False
    negative: bool = False

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        values = batch.column(self.column)
        if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
            values = values.cast(pa.large_string())
        mask = pc.match_substring_regex(values, self.regex, ignore_case=self.ignore_case)
        return pc.invert(mask) if self.negative else mask

    def negated(self) -> Condition:
        return replace(self, negative=not self.negative)


@dataclass(frozen=True, slots=True)
class _Compound(Condition):
    """Conditions joined by one operator; what negates it joins their negations by the other (De Morgan)."""

    parts: tuple[Condition, ...]

    @property
    def columns(self) -> frozenset[str]:
        return frozenset().union(*(part.columns for part in self.parts))

    def _joined(
        self, kernel: Callable[[pa.Array, pa.Array], pa.Array], batch: pa.RecordBatch
    ) -> pa.Array:
        return reduce(kernel, (part.mask(batch) for part in self.parts))

    def _negated_parts(self) -> tuple[Condition, ...]:
        return tuple(part.negated() for part in self.parts)


@dataclass(frozen=True, slots=True)
class All(_Compound):
    """AND."""

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        return self._joined(pc.and_kleene, batch)

    def negated(self) -> Condition:
        return AnyOf(self._negated_parts())

    def may_match(self, ranges: Mapping[str, ValueRange]) -> bool:
        return all(part.may_match(ranges) for part in self.parts)


@dataclass(frozen=True, slots=True)
class AnyOf(_Compound):
    """OR."""

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        return self._joined(pc.or_kleene, batch)

    def negated(self) -> Condition:
        return All(self._negated_parts())

    def may_match(self, ranges: Mapping[str, ValueRange]) -> bool:
        return any(part.may_match(ranges) for part in self.parts)


# SQL literals, typed to the column that they are compared with.
#
# Whole-number, decimal, date and timestamp columns are ladders: each value is a whole number of steps (units in the
# last place, days, microseconds), so that a literal between two steps, or beyond the last one, is compared exactly
# instead of being rounded or refused.


_EPOCH = datetime(1970, 1, 1)
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EXACT = Context(prec=100)


def _bounds(kind: pa.DataType) -> tuple[int, int] | None:
    """The lowest and highest step of a ladder type; None = not a ladder."""
    if pa.types.is_unsigned_integer(kind):
        return 0, 2**kind.bit_width - 1
    if pa.types.is_signed_integer(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1
    if pa.types.is_decimal(kind):
        return 1 - 10**kind.precision, 10**kind.precision - 1
    return None


def exact(value: object, kind: pa.DataType) -> Any:
    """`value` (a literal, or a statistic's Python value) as a number of steps, or as itself.

    Returns a Fraction for ladder types; str, bytes, bool or float for the others.

    Raises:
        ValueError, TypeError: the value does not fit the type.
    """
    if pa.types.is_integer(kind):
        return Fraction(_number(value))
    if pa.types.is_decimal(kind):
        return Fraction(_number(value)) * Fraction(10) ** kind.scale
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        since = _instant(value, aware=getattr(kind, "tz", None) is not None) - _EPOCH
        seconds = Fraction(since // timedelta(microseconds=1), 10**6)
        if pa.types.is_date32(kind):
            return seconds / 86_400
        return seconds * (10**3 if pa.types.is_date64(kind) else _UNITS[kind.unit])
    if pa.types.is_floating(kind):
        number = float(_number(value))
        if not math.isfinite(number):
            raise ValueError("a finite number")
        return number
    if pa.types.is_boolean(kind):
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        raise ValueError("TRUE or FALSE")
    if (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    ):
        if isinstance(value, bytes):
            return value
        raise ValueError("bytes, such as X'00FF'")
    if is_text(kind):
        if isinstance(value, str):
            return value
        raise ValueError("a text in single quotes")
    raise TypeError(f"columns of type {kind} cannot be compared")


def _number(value: object) -> Decimal | int | float:
    if isinstance(value, bool):
        raise ValueError("a number")
    if isinstance(value, (int, float)):
        return value
    try:
        number = value if isinstance(value, Decimal) else Decimal(str(value).strip())
    except InvalidOperation:
        raise ValueError("a number") from None
    if not number.is_finite():
        raise ValueError("a finite number")
    # No column holds a number beyond: what a user types is bounded before it is compared exactly.
    if abs(number.adjusted()) > 400:
        raise ValueError("a number between -1e400 and 1e400")
    return number


def _instant(literal: object, *, aware: bool) -> datetime:
    takes = "a date or time in single quotes, such as '2020-01-31' or '2020-01-31 13:05:00'"
    value: object = literal
    if isinstance(literal, str):
        try:
            value = datetime.fromisoformat(literal.strip())
        except ValueError:
            raise ValueError(takes) from None
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            if not aware:
                raise ValueError("a time without a zone, since the column has none")
            value = value.astimezone(UTC).replace(tzinfo=None)
        return value
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day)
    raise ValueError(takes)


def _step_value(step: int, kind: pa.DataType) -> Any:
    if pa.types.is_decimal(kind):
        return Decimal(step).scaleb(-kind.scale, _EXACT)
    return step


def _typed_literal(column: str, value: object, kind: pa.DataType) -> Any:
    try:
        return exact(value, kind)
    except (ValueError, TypeError, OverflowError) as error:
        value_text = f"'{value}'" if isinstance(value, str) else str(value)
        takes = f"it takes {error}" if isinstance(error, ValueError) else str(error)
        raise OptionError(
            f"option 'where' compares column {column!r} ({kind}) with {value_text}; {takes}",
            option="where",
            got=value_text,
            takes=str(error),
        ) from None


def _compared_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_float16(kind) or pa.types.is_float32(kind):
        return pa.float64()
    return pa.large_string() if kind == pa.string_view() else kind


def comparison(column: str, op: str, value: object, kind: pa.DataType) -> Condition:
    """`column <op> value`, decided here when the literal lies between or beyond the column's steps.

    Raises:
        OptionError: the literal does not fit the column's type.
    """
    rank = _typed_literal(column, value, kind)
    bounds = _bounds(kind)
    if bounds is None:
        return Compare(column, op, rank, _compared_type(kind), rank)
    step = math.floor(rank)
    between = step != rank
    if between and op in ("eq", "ne"):
        return NotNullConstant(column, op == "ne")
    low, high = bounds
    if step > high:
        return NotNullConstant(column, op in ("lt", "le", "ne"))
    if step < low:
        return NotNullConstant(column, op in ("gt", "ge", "ne"))
    if between:
        op = "le" if op in ("lt", "le") else "gt"
    return Compare(column, op, _step_value(step, kind), kind, step)


def same_step(column: str, value: object, kind: pa.DataType) -> tuple[Any, Any, pa.DataType] | None:
    """(value, rank, type) of the one column value that equals the literal; None = there is none."""
    condition = comparison(column, "eq", value, kind)
    return (
        (condition.value, condition.rank, condition.type)
        if isinstance(condition, Compare)
        else None
    )
