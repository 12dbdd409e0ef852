"""Steps on a column's text: substr, pad, replace, digest and calculate."""

import hashlib
import re
from abc import abstractmethod
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import ClassVar, Literal, get_args

import pyarrow as pa

from spark_channel.errors import OptionError, SchemaError, SourceError
from spark_channel.lazy import compute as pc
from spark_channel.transform.transformer import (
    Column,
    Flow,
    Refused,
    Transformer,
    TransformResult,
    checked_column,
    column_index,
    whole_number,
)

__all__ = [
    "Calculate",
    "Digest",
    "Operation",
    "Pad",
    "Replace",
    "Substr",
    "as_text",
]


# Positions count characters (code points) from 0.
_LONGEST = 1_000_000
_FAR = 2**31 - 1
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?")
_WHOLE = re.compile(r"\+?[0-9]{1,9}")
_TRIMMED = "".join(map(chr, range(33)))
"""The characters that Java's `trim` removes."""
_DIGITS = 1_000
"""The most digits of a number, written without an exponent."""
_LONGEST_NUMBER = 100_000
"""The most digits of a power."""
_EXACT = Context(
    prec=2 * _LONGEST_NUMBER, Emax=999_999_999, Emin=-999_999_999, traps=[Inexact, InvalidOperation]
)
_DEFAULT_SCALE = 2
_LONG = pa.decimal128(38, 0)
"""Whole numbers of any size that a step would hold; sums of 20 digits are Arrow's."""


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
    masks: ClassVar[bool] = False

    def __post_init__(self) -> None:
        checked_column(self.column, self.step)

    def flows(self, schema: pa.Schema) -> tuple[Flow, ...]:
        index = column_index(schema, self.column, self.step)
        return with_change(schema, index, Flow((index,), self.step, self.masks))

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        index = column_index(schema, self.column, self.step)
        field = schema.field(index)
        if not has_text(field.type):
            raise SchemaError(
                f"{self.step}: column {field.name!r} has type {field.type}, which has no text"
            )
        return schema.set(index, self._output_field(field))

    def _output_field(self, field: pa.Field) -> pa.Field:
        large = pa.types.is_large_string(field.type)
        return pa.field(
            field.name,
            pa.large_string() if large else pa.string(),
            nullable=field.nullable and self.keeps_null,
        )

    def apply(self, batch: pa.RecordBatch) -> TransformResult:
        index = column_index(batch.schema, self.column, self.step)
        field = batch.schema.field(index)
        text = as_text(batch.column(index), field.name)
        refused: tuple[Refused, ...] = ()
        fits = self._fits(text)
        if fits is not None and not pc.all(fits, min_count=0).as_py():
            refused = (Refused(batch.filter(pc.invert(fits)), self._reason(field.name)),)
            batch, text = batch.filter(fits), text.filter(fits)
        output = self._output_field(field)
        values = pc.cast(self._change(text), output.type)
        return TransformResult(batch.set_column(index, output, values), refused)

    def _fits(self, text: pa.Array) -> pa.BooleanArray | None:
        """True for values that `_change` takes, never null; None = all."""
        return None

    def _reason(self, name: str) -> str:
        return f"{self.step} cannot work on column {name!r}"

    @abstractmethod
    def _change(self, text: pa.Array) -> pa.Array: ...


def with_change(schema: pa.Schema, index: int, flow: Flow) -> tuple[Flow, ...]:
    """The flows of a step that changes one column."""
    return tuple(flow if number == index else Flow((number,)) for number in range(len(schema)))


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
                option=self.step,
                got=str(self.side),
                takes="'l' or 'r'",
            )
        if not isinstance(self.fill, str) or not self.fill:
            raise OptionError(
                f"{self.step} got fill {self.fill!r}; it takes a text of 1 character or more",
                option=self.step,
                got=str(self.fill),
                takes="a text of 1 character or more",
            )

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
                option=self.step,
                got=str(self.text),
                takes="a text",
            )

    def _fits(self, text: pa.Array) -> pa.BooleanArray | None:
        return _starts_inside(text, self.start)

    def _reason(self, name: str) -> str:
        return f"{self.step}: column {name!r} is shorter than the start, {self.start}"

    def _change(self, text: pa.Array) -> pa.Array:
        return pc.utf8_replace_slice(text, self.start, self.start + self.length, self.text)


Operation = Literal["+", "-", "*", "/", "%", "^"]


@dataclass(frozen=True, slots=True)
class Calculate(Transformer):
    """The column's number, `operation`, `number`: exactly, as Java's BigDecimal calculates and writes it.

    A quotient is rounded half up to as many decimal places as the value has, or to 2 if it has none.
    A remainder has the value's sign. A power's exponent is a whole number from 0. Null stays null. A value that is
    not a number is refused.

    Each distinct value of a batch is calculated once, in Python; sums and products of columns of numbers by Arrow.
    """

    column: Column
    operation: Operation
    number: str
    step: ClassVar[str] = "calculate"

    def __post_init__(self) -> None:
        checked_column(self.column, self.step)
        if self.operation not in get_args(Operation):
            raise self._wrong(
                "operation", self.operation, "one of " + ", ".join(get_args(Operation))
            )
        if self.operation == "^":
            if not _WHOLE.fullmatch(self.number.strip(_TRIMMED)):
                raise self._wrong("number", self.number, "a whole number from 0 for a power")
            return
        parsed_number = _parsed(self.number)
        if parsed_number is None or (self.operation in "/%" and not parsed_number):
            takes = "a number other than 0" if self.operation in "/%" else "a number"
            raise self._wrong("number", self.number, takes)

    def _wrong(self, subject: str, got: str, takes: str) -> OptionError:
        return OptionError(
            f"{self.step} got {subject} {got!r}; it takes {takes}",
            option=self.step,
            got=got,
            takes=takes,
        )

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        index = column_index(schema, self.column, self.step)
        field = schema.field(index)
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if not has_text(kind) or pa.types.is_boolean(kind) or pa.types.is_temporal(kind):
            raise SchemaError(
                f"{self.step}: column {field.name!r} has type {field.type}, which is not a number"
            )
        return schema.set(index, pa.field(field.name, pa.string(), nullable=field.nullable))

    def flows(self, schema: pa.Schema) -> tuple[Flow, ...]:
        index = column_index(schema, self.column, self.step)
        return with_change(schema, index, Flow((index,), self.step))

    def apply(self, batch: pa.RecordBatch) -> TransformResult:
        index = column_index(batch.schema, self.column, self.step)
        name, array = batch.schema.names[index], batch.column(index)
        output = self.output_schema(batch.schema).field(index)
        numbers = self._quick(array)
        if numbers is None:
            text = _plain(array, name)
            coded = text.dictionary_encode()
            results = [self._result(value) for value in coded.dictionary.to_pylist()]
            numbers = pa.array(results, pa.string()).take(coded.indices)
            bad = pc.and_(pc.is_valid(text), pc.is_null(numbers))
            if pc.any(bad, min_count=0).as_py():
                reason = f"{self.step}: column {name!r} is not a number, or one of more than {_DIGITS} digits"
                good = pc.invert(bad)
                return TransformResult(
                    batch.filter(good).set_column(index, output, numbers.filter(good)),
                    (Refused(batch.filter(bad), reason),),
                )
        return TransformResult(batch.set_column(index, output, numbers))

    def _quick(self, array: pa.Array) -> pa.Array | None:
        """By Arrow, where its types hold the result; their scales are those of Java."""
        kind, number = array.type, _parsed(self.number)
        if self.operation not in "+-*" or number is None or int(number.as_tuple().exponent) > 0:
            return None
        if pa.types.is_integer(kind) or kind == _LONG:
            try:
                array = pc.cast(array, pa.decimal128(20, 0))
            except pa.ArrowInvalid:
                return None
        elif not pa.types.is_decimal128(kind) or kind.scale < 0:
            return None
        kernel = {"+": pc.add, "-": pc.subtract, "*": pc.multiply}[self.operation]
        try:
            return pc.cast(kernel(array, pa.scalar(number)), pa.string())
        except pa.ArrowInvalid:  # more than 38 digits
            return None

    def _result(self, text: str | None) -> str | None:
        """None: not a number."""
        value = None if text is None else _parsed(text)
        if value is None or text is None:
            return None
        if self.operation == "^":
            quotient = _power(value, int(self.number.strip(_TRIMMED)))
        else:
            number = _parsed(self.number)
            assert number is not None
            if self.operation == "/":
                quotient = _quotient(value, number, _scale(text))
            elif self.operation == "%":
                quotient = _remainder(value, number)
            elif self.operation == "*":
                quotient = _EXACT.multiply(value, number)
            else:
                quotient = (_EXACT.add if self.operation == "+" else _EXACT.subtract)(value, number)
        if quotient is None:
            return None
        return str(quotient or abs(quotient))  # Java has no -0


def _plain(array: pa.Array, name: str) -> pa.Array:
    """The texts of numbers, without the exponents with which Arrow writes large and small doubles."""
    text = as_text(array, name)
    if not pa.types.is_floating(array.type):
        return text
    short = pc.match_substring(text, "e")
    if not pc.any(short, min_count=0).as_py():
        return text
    plain = [
        format(Decimal(number), "f")
        for number in text.filter(pc.fill_null(short, False)).to_pylist()
    ]
    return pc.replace_with_mask(text, pc.fill_null(short, False), pa.array(plain, text.type))


def _parsed(text: str) -> Decimal | None:
    """Return a number that Java's Double and BigDecimal both accept; None = another text, or too many digits."""
    trimmed = text.strip(_TRIMMED)
    if len(trimmed) > 2 * _DIGITS or not _NUMBER.fullmatch(trimmed):
        return None
    value = Decimal(trimmed)
    digits, exponent = len(value.as_tuple().digits), int(value.as_tuple().exponent)
    return (
        value
        if digits <= _DIGITS and abs(exponent) <= _DIGITS and digits + exponent <= _DIGITS
        else None
    )


def _scale(text: str) -> int:
    """Digits behind the point of a quotient: as many characters as the value has there."""
    parts = text.split(".")
    return len(parts[1]) if len(parts) > 1 and parts[1] else _DEFAULT_SCALE


def _integers(one: Decimal, other: Decimal) -> tuple[int, int]:
    """Both, times the same power of ten."""
    low = min(_exponent(one), _exponent(other), 0)
    return int(_EXACT.scaleb(one, -low)), int(_EXACT.scaleb(other, -low))


def _exponent(value: Decimal) -> int:
    return int(value.as_tuple().exponent)


def _made(number: int, scale: int) -> Decimal:
    return Decimal(number).scaleb(-scale, _EXACT)


def _quotient(value: Decimal, number: Decimal, scale: int) -> Decimal:
    top, bottom = _integers(value, number)
    whole, remainder = divmod(abs(top) * 10**scale, abs(bottom))
    whole += 2 * remainder >= abs(bottom)
    return _made(whole if (top < 0) == (bottom < 0) else -whole, scale)


def _remainder(value: Decimal, number: Decimal) -> Decimal:
    """With the scale that Java gives it: zeros at the end of the whole quotient shorten it."""
    top, bottom = _integers(value, number)
    whole, remainder = divmod(abs(top), abs(bottom))
    scale, number_scale = -_exponent(value), -_exponent(number)
    if whole and number_scale > scale:
        zeros = len(str(whole)) - len(str(whole).rstrip("0"))
        scale = number_scale - min(number_scale - scale, zeros)
    low = min(_exponent(value), _exponent(number), 0)
    exact = _made(-remainder if top < 0 else remainder, -low)
    return exact.quantize(Decimal(1).scaleb(-scale), context=_EXACT)


def _power(value: Decimal, exponent: int) -> Decimal | None:
    scale = -_exponent(value)
    if exponent * max(len(value.as_tuple().digits), abs(scale)) > _LONGEST_NUMBER:
        return None
    return _made(int(_EXACT.scaleb(value, scale)) ** exponent, scale * exponent)


@dataclass(frozen=True, slots=True)
class Digest(TextStep):
    """The MD5 or SHA-1 of the value's UTF-8 text, in hexadecimal; null counts as an empty text.

    Arrow has no such kernel: each distinct value of a batch is hashed once, in Python, and the results
    are assigned by dictionary index. On one core: 0.6 M rows/s when all values differ, 18 M when a thousand do.
    """

    algorithm: Literal["md5", "sha1"]
    upper: bool = False
    step: ClassVar[str] = "digest"
    masks: ClassVar[bool] = True
    keeps_null: ClassVar[bool] = False

    def __post_init__(self) -> None:
        checked_column(self.column, self.step)
        if self.algorithm not in ("md5", "sha1"):
            raise OptionError(
                f"{self.step} got algorithm {self.algorithm!r}; it takes 'md5' or 'sha1'",
                option=self.step,
                got=str(self.algorithm),
                takes="'md5' or 'sha1'",
            )

    def _change(self, text: pa.Array) -> pa.Array:
        coded = pc.fill_null(text, "").dictionary_encode()
        function = hashlib.md5 if self.algorithm == "md5" else hashlib.sha1
        different = pc.cast(coded.dictionary, pa.binary()).to_pylist()
        hashed = [function(value, usedforsecurity=False).hexdigest() for value in different]
        sums = pa.array(hashed, pa.string())
        return (pc.ascii_upper(sums) if self.upper else sums).take(coded.indices)
