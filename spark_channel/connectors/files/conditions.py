"""Conditions on Arrow batches, in SQL's three-valued logic.

A `Condition` is a small immutable tree. `mask` evaluates it on a batch (NULL = unknown, and a row
passes only on true); `may_match` says from column ranges whether any row could pass, which prunes
row groups. NaN equals NaN and is greater than every number, as in Spark and PostgreSQL.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import pyarrow as pa

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
