"""Conditions on Arrow batches, in SQL's three-valued logic.

A `Condition` is a small immutable tree. `mask` evaluates it on a batch (NULL = unknown, and a row
passes only on true); `may_match` says from column ranges whether any row could pass, which prunes
row groups. NaN equals NaN and is greater than every number, as in Spark and PostgreSQL.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "FLIPPED",
    "All",
    "Compare",
    "CompareColumns",
    "Condition",
    "Constant",
    "IsNull",
    "Known",
    "Like",
    "Member",
    "Some",
    "ValueRange",
]

NEGATED = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}
FLIPPED = {"eq": "eq", "ne": "ne", "lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
_KERNELS = {
    "eq": pc.equal,
    "ne": pc.not_equal,
    "lt": pc.less,
    "le": pc.less_equal,
    "gt": pc.greater,
    "ge": pc.greater_equal,
}


@dataclass(frozen=True, slots=True)
class ValueRange:
    """What is known of one column in one chunk: values as `literals.exact` numbers them.

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
class Known(Condition):
    """`value` where the column has one, NULL where it is NULL: a comparison decided by its literal."""

    column: str
    value: bool

    @property
    def columns(self) -> frozenset[str]:
        return frozenset((self.column,))

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        nothing = pa.scalar(None, pa.bool_())
        return pc.if_else(pc.is_valid(batch.column(self.column)), pa.scalar(self.value), nothing)

    def negated(self) -> Condition:
        return Known(self.column, not self.value)

    def may_match(self, ranges: Mapping[str, ValueRange]) -> bool:
        known = ranges.get(self.column)
        return self.value and not (known is not None and known.only_nulls())


@dataclass(frozen=True, slots=True)
class Compare(Condition):
    """`column <op> value`, op one of eq, ne, lt, le, gt, ge.

    `value` is what `pa.scalar(value, type)` takes; `rank` is the same value as a `ValueRange` has it.
    """

    column: str
    op: str
    value: Any
    type: pa.DataType
    rank: Any

    @property
    def columns(self) -> frozenset[str]:
        return frozenset((self.column,))

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        values = batch.column(self.column)
        if values.type != self.type:
            values = values.cast(self.type)
        found = _KERNELS[self.op](values, pa.scalar(self.value, self.type))
        if pa.types.is_floating(self.type) and self.op in ("gt", "ge"):
            found = pc.or_(found, pc.is_nan(values))
        return found

    def negated(self) -> Condition:
        return Compare(self.column, NEGATED[self.op], self.value, self.type, self.rank)

    def may_match(self, ranges: Mapping[str, ValueRange]) -> bool:
        known = ranges.get(self.column)
        if known is None:
            return True
        if known.only_nulls():
            return False
        # Statistics leave NaN out, and NaN passes these.
        if pa.types.is_floating(self.type) and self.op in ("gt", "ge", "ne"):
            return True
        return _may_compare(self.op, self.rank, known)


def _may_compare(op: str, rank: Any, known: ValueRange) -> bool:
    low, high = known.low, known.high
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
        return _KERNELS[self.op](batch.column(self.left), batch.column(self.right))

    def negated(self) -> Condition:
        return CompareColumns(self.left, NEGATED[self.op], self.right)


@dataclass(frozen=True, slots=True)
class Member(Condition):
    """`column IN (values)`; `unknown` = the list also holds NULL, so that no match is NULL."""

    column: str
    values: tuple[Any, ...]
    type: pa.DataType
    ranks: tuple[Any, ...]
    unknown: bool = False
    negative: bool = False

    @property
    def columns(self) -> frozenset[str]:
        return frozenset((self.column,))

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        values = batch.column(self.column)
        if values.type != self.type:
            values = values.cast(self.type)
        nothing = pa.scalar(None, pa.bool_())
        found = pc.is_in(values, value_set=pa.array(self.values, self.type))
        if self.unknown:
            found = pc.if_else(found, pa.scalar(True), nothing)
        found = pc.if_else(pc.is_valid(values), found, nothing)
        return pc.invert(found) if self.negative else found

    def negated(self) -> Condition:
        return Member(self.column, self.values, self.type, self.ranks, self.unknown, not self.negative)

    def may_match(self, ranges: Mapping[str, ValueRange]) -> bool:
        known = ranges.get(self.column)
        if known is None:
            return True
        if known.only_nulls() or (self.negative and self.unknown):
            return False
        return self.negative or any(_may_compare("eq", rank, known) for rank in self.ranks)


@dataclass(frozen=True, slots=True)
class IsNull(Condition):
    """`column IS NULL`, or IS NOT NULL when `negative`."""

    column: str
    negative: bool = False

    @property
    def columns(self) -> frozenset[str]:
        return frozenset((self.column,))

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        values = batch.column(self.column)
        return pc.is_valid(values) if self.negative else pc.is_null(values)

    def negated(self) -> Condition:
        return IsNull(self.column, not self.negative)

    def may_match(self, ranges: Mapping[str, ValueRange]) -> bool:
        known = ranges.get(self.column)
        if known is None or known.nulls is None:
            return True
        return not known.only_nulls() if self.negative else known.nulls > 0


@dataclass(frozen=True, slots=True)
class Like(Condition):
    """`column LIKE pattern`, as an RE2 pattern that covers the whole text."""

    column: str
    regex: str
    ignore_case: bool = False
    negative: bool = False

    @property
    def columns(self) -> frozenset[str]:
        return frozenset((self.column,))

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        values = batch.column(self.column)
        if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
            values = values.cast(pa.large_string())
        found = pc.match_substring_regex(values, self.regex, ignore_case=self.ignore_case)
        return pc.invert(found) if self.negative else found

    def negated(self) -> Condition:
        return Like(self.column, self.regex, self.ignore_case, not self.negative)

    def may_match(self, ranges: Mapping[str, ValueRange]) -> bool:
        known = ranges.get(self.column)
        return known is None or not known.only_nulls()


@dataclass(frozen=True, slots=True)
class All(Condition):
    """AND."""

    parts: tuple[Condition, ...]

    @property
    def columns(self) -> frozenset[str]:
        return frozenset().union(*(part.columns for part in self.parts))

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        found = self.parts[0].mask(batch)
        for part in self.parts[1:]:
            found = pc.and_kleene(found, part.mask(batch))
        return found

    def negated(self) -> Condition:
        return Some(tuple(part.negated() for part in self.parts))

    def may_match(self, ranges: Mapping[str, ValueRange]) -> bool:
        return all(part.may_match(ranges) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Some(Condition):
    """OR."""

    parts: tuple[Condition, ...]

    @property
    def columns(self) -> frozenset[str]:
        return frozenset().union(*(part.columns for part in self.parts))

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        found = self.parts[0].mask(batch)
        for part in self.parts[1:]:
            found = pc.or_kleene(found, part.mask(batch))
        return found

    def negated(self) -> Condition:
        return All(tuple(part.negated() for part in self.parts))

    def may_match(self, ranges: Mapping[str, ValueRange]) -> bool:
        return any(part.may_match(ranges) for part in self.parts)
