"""drop_rows: rows that meet a condition do not go on, as in dx_filter."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from spark_channel.errors import OptionError, SchemaError
from spark_channel.transform.contract import Column, Outcome, Transformer, checked_column, column_index
from spark_channel.transform.text import as_text, has_text

__all__ = ["DropRows", "Operator"]

Operator = Literal["=", "!=", ">", "<", ">=", "<=", "like", "not like"]
_COMPARE = {
    "=": "equal",
    "!=": "not_equal",
    ">": "greater",
    "<": "less",
    ">=": "greater_equal",
    "<=": "less_equal",
}


@dataclass(frozen=True, slots=True)
class DropRows(Transformer):
    """Drop every row whose column matches `operator` and `value`; the other rows do not change.

    Numbers compare as numbers, times as times (`value` = milliseconds since 1970-01-01 UTC, or an ISO
    text; a time without a zone is UTC), everything else as text. `like` takes a regular expression (RE2)
    that must match the whole text. A null is dropped by `!=`, `not like` and `= null`, and kept by the
    others; `!= null` drops every other value.
    """

    column: Column
    operator: Operator
    value: str
    step: ClassVar[str] = "drop_rows"

    def __post_init__(self) -> None:
        checked_column(self.column, self.step)
        if self.operator not in get_args(Operator):
            raise self._wrong("operator", self.operator, "one of " + ", ".join(get_args(Operator)))
        if not isinstance(self.value, str) or not self.value:
            raise self._wrong("value", self.value, "a text of 1 character or more")
        if self.operator in ("like", "not like"):
            try:
                pc.match_substring_regex(pa.array([""]), self._pattern)
            except pa.ArrowInvalid as error:
                raise self._wrong("value", self.value, f"a regular expression of RE2 ({error})") from None

    def _wrong(self, what: str, got: Any, takes: str) -> OptionError:
        return OptionError(
            f"{self.step} got {what} {got!r}; it takes {takes}", option=self.step, got=str(got), takes=takes
        )

    @property
    def _pattern(self) -> str:
        return rf"\A(?:{self.value})\z"

    @property
    def _is_null(self) -> bool:
        return self.value.lower() == "null" and self.operator in ("=", "!=")

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        field = schema.field(column_index(schema, self.column, self.step))
        if not has_text(field.type):
            raise SchemaError(
                f"{self.step}: column {field.name!r} has type {field.type}, which does not compare"
            )
        try:
            self._hits(pa.array([], field.type), field.name)
        except (ValueError, pa.ArrowException):
            takes = "a whole number" if pa.types.is_integer(field.type) else f"a value of type {field.type}"
            raise SchemaError(
                f"{self.step}: column {field.name!r} is {field.type}, "
                f"which does not compare to {self.value!r}; it takes {takes}"
            ) from None
        return schema

    def apply(self, batch: pa.RecordBatch) -> Outcome:
        index = column_index(batch.schema, self.column, self.step)
        hits = self._hits(batch.column(index), batch.schema.names[index])
        if not pc.any(hits, min_count=0).as_py():
            return Outcome(batch)
        return Outcome(batch.filter(pc.invert(hits)))

    def _hits(self, array: pa.Array, name: str) -> pa.BooleanArray:
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if self._is_null and not _is_text(array.type):
            return pc.is_null(array) if self.operator == "=" else pc.is_valid(array)
        if self.operator in ("like", "not like"):
            matches = pc.fill_null(pc.match_substring_regex(as_text(array, name), self._pattern), False)
            return matches if self.operator == "like" else pc.invert(matches)
        compared = pc.call_function(_COMPARE[self.operator], self._comparable(array, name))
        if self._is_null:
            return pc.fill_null(compared, self.operator == "=")
        return pc.fill_null(compared, self.operator == "!=")

    def _comparable(self, array: pa.Array, name: str) -> list[Any]:
        kind = array.type
        if pa.types.is_integer(kind):
            number = int(self.value)
            if pa.types.is_signed_integer(kind) and -(2**63) <= number < 2**63:
                return [array, pa.scalar(number, pa.int64())]
            return [pc.cast(array, pa.decimal128(20, 0)), pa.scalar(Decimal(number))]
        if pa.types.is_floating(kind):
            return [pc.cast(array, pa.float64()), pa.scalar(float(self.value))]
        if pa.types.is_decimal(kind):
            return [array, pa.scalar(_decimal(self.value))]
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            instants = pc.cast(array, pa.timestamp("us", getattr(kind, "tz", None)), safe=False)
            return [pc.cast(instants, pa.int64()), pa.scalar(_microseconds(self.value), pa.int64())]
        return [as_text(array, name), pa.scalar(self.value)]


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError(text) from None


def _microseconds(text: str) -> int:
    if text.lstrip("-").isdigit():
        return int(text) * 1000
    moment = datetime.fromisoformat(text)
    stamp = pa.scalar(moment, pa.timestamp("us", "UTC" if moment.tzinfo else None))
    return int(stamp.cast(pa.int64()).as_py())
