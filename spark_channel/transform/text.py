"""substr, pad and replace: steps on a column's text. Positions count characters (code points) from 0."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import pyarrow as pa
import pyarrow.compute as pc

from spark_channel.errors import OptionError, SchemaError, SourceError
from spark_channel.transform.contract import (
    Column,
    Outcome,
    Refused,
    Transformer,
    checked_column,
    column_index,
    whole_number,
)

__all__ = ["Pad", "Replace", "Substr", "TextStep", "as_text"]

_LONGEST = 1_000_000
_FAR = 2**31 - 1


def as_text(array: pa.Array, name: str) -> pa.Array:
    """The values as text, as DataX writes them: `2024-01-31 08:00:00`, `true`, `12.50`, `1.0`, null.

    Raises:
        SourceError: binary values that are not UTF-8; names the column.
    """
    kind = array.type
    if pa.types.is_dictionary(kind):
        array = array.dictionary_decode()
        kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return array
    if pa.types.is_timestamp(kind):
        local = pc.local_timestamp(array) if kind.tz else array
        array = pc.cast(pc.floor_temporal(local, unit="second"), pa.timestamp("s"))
    elif pa.types.is_time(kind):
        array = pc.cast(array, pa.time32("s"), safe=False)
    try:
        text = pc.cast(array, pa.string())
    except pa.ArrowInvalid as error:
        raise SourceError(f"column {name!r} holds bytes that are not UTF-8 text: {error}") from None
    if pa.types.is_floating(kind):
        whole = pc.match_substring_regex(text, r"^-?\d+$")
        text = pc.if_else(whole, pc.binary_join_element_wise(text, "0", "."), text)
    return text


def has_text(kind: pa.DataType) -> bool:
    """Whether `as_text` takes this type."""
    if pa.types.is_dictionary(kind):
        return has_text(kind.value_type)
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_temporal(kind)
        or pa.types.is_null(kind)
    ) and not (pa.types.is_duration(kind) or pa.types.is_interval(kind))


@dataclass(frozen=True, slots=True)
class TextStep(Transformer):
    """A step that replaces one column by text made from its text."""

    column: Column
    step: ClassVar[str] = "text step"
    keeps_null: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked_column(self.column, self.step)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        index = column_index(schema, self.column, self.step)
        field = schema.field(index)
        if not has_text(field.type):
            raise SchemaError(f"{self.step}: column {field.name!r} has type {field.type}, which has no text")
        return schema.set(index, self._output_field(field))

    def _output_field(self, field: pa.Field) -> pa.Field:
        large = pa.types.is_large_string(field.type)
        return pa.field(
            field.name,
            pa.large_string() if large else pa.string(),
            nullable=field.nullable and self.keeps_null,
        )

    def apply(self, batch: pa.RecordBatch) -> Outcome:
        index = column_index(batch.schema, self.column, self.step)
        field = batch.schema.field(index)
        text = as_text(batch.column(index), field.name)
        refused: tuple[Refused, ...] = ()
        fits = self._fits(text)
        if fits is not None and not pc.all(fits, min_count=0).as_py():
            refused = (Refused(batch.filter(pc.invert(fits)), self._reason(field.name)),)
            batch, text = batch.filter(fits), text.filter(fits)
        output = self._output_field(field)
        made = pc.cast(self._change(text), output.type)
        return Outcome(batch.set_column(index, output, made), refused)

    def _fits(self, text: pa.Array) -> pa.BooleanArray | None:
        """True for values that `_change` takes, never null; None = all."""
        return None

    def _reason(self, name: str) -> str:
        return f"{self.step} cannot work on column {name!r}"

    @abstractmethod
    def _change(self, text: pa.Array) -> pa.Array: ...


def _starts_inside(text: pa.Array, start: int) -> pa.BooleanArray | None:
    if start == 0:
        return None
    return pc.fill_null(pc.less_equal(start, pc.utf8_length(text)), True)


@dataclass(frozen=True, slots=True)
class Substr(TextStep):
    """At most `length` characters from `start` on; null stays null.

    A value shorter than `start` is refused.
    """

    start: int
    length: int
    step: ClassVar[str] = "substr"

    def __post_init__(self) -> None:
        checked_column(self.column, self.step)
        whole_number(self.start, "start", self.step, _FAR)
        whole_number(self.length, "length", self.step, _FAR)

    def _fits(self, text: pa.Array) -> pa.BooleanArray | None:
        return _starts_inside(text, self.start)

    def _reason(self, name: str) -> str:
        return f"{self.step}: column {name!r} is shorter than the start, {self.start}"

    def _change(self, text: pa.Array) -> pa.Array:
        return pc.utf8_slice_codeunits(text, self.start, self.start + self.length)


@dataclass(frozen=True, slots=True)
class Pad(TextStep):
    """Exactly `length` characters: filled at the left ("l") or right ("r"), or cut at the end.

    `fill` may have several characters. Null is padded like an empty text.
    """

    side: Literal["l", "r"]
    length: int
    fill: str
    step: ClassVar[str] = "pad"
    keeps_null: ClassVar[bool] = False

    def __post_init__(self) -> None:
        checked_column(self.column, self.step)
        whole_number(self.length, "length", self.step, _LONGEST)
        if self.side not in ("l", "r"):
            raise OptionError(
                f"{self.step} got side {self.side!r}; it takes 'l' or 'r'",
                option=self.step, got=str(self.side), takes="'l' or 'r'",
            )  # fmt: skip
        if not isinstance(self.fill, str) or not self.fill:
            raise OptionError(
                f"{self.step} got fill {self.fill!r}; it takes a text of 1 character or more",
                option=self.step, got=str(self.fill), takes="a text of 1 character or more",
            )  # fmt: skip

    def _change(self, text: pa.Array) -> pa.Array:
        cut = pc.utf8_slice_codeunits(pc.fill_null(text, ""), 0, self.length)
        if len(self.fill) == 1:
            fill_up = pc.utf8_lpad if self.side == "l" else pc.utf8_rpad
            return fill_up(cut, self.length, self.fill)
        # Only as many different fillings as there are different lengths: made once each, then taken.
        missing = pc.subtract(self.length, pc.utf8_length(cut)).dictionary_encode()
        whole = self.fill * (self.length // len(self.fill) + 1)
        fillings = pa.array([whole[:count] for count in missing.dictionary.to_pylist()], cut.type)
        filling = fillings.take(missing.indices)
        parts = (filling, cut) if self.side == "l" else (cut, filling)
        return pc.binary_join_element_wise(*parts, pa.scalar("", cut.type))


@dataclass(frozen=True, slots=True)
class Replace(TextStep):
    """Replace `length` characters from `start` on by `text`; null stays null.

    A value shorter than `start` is refused.
    """

    start: int
    length: int
    text: str
    step: ClassVar[str] = "replace"

    def __post_init__(self) -> None:
        checked_column(self.column, self.step)
        whole_number(self.start, "start", self.step, _FAR)
        whole_number(self.length, "length", self.step, _FAR)
        if not isinstance(self.text, str):
            raise OptionError(
                f"{self.step} got text {self.text!r}; it takes a text",
                option=self.step, got=str(self.text), takes="a text",
            )  # fmt: skip

    def _fits(self, text: pa.Array) -> pa.BooleanArray | None:
        return _starts_inside(text, self.start)

    def _reason(self, name: str) -> str:
        return f"{self.step}: column {name!r} is shorter than the start, {self.start}"

    def _change(self, text: pa.Array) -> pa.Array:
        return pc.utf8_replace_slice(text, self.start, self.start + self.length, self.text)
