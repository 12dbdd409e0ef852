"""calculate: a column's number becomes the text of a sum, difference, product, quotient, remainder or power."""

import re
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import ClassVar, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from spark_channel.errors import OptionError, SchemaError
from spark_channel.transform.contract import (
    Column,
    Outcome,
    Refused,
    Transformer,
    checked_column,
    column_index,
)
from spark_channel.transform.text import as_text, has_text

__all__ = ["Calculate", "Operation"]

Operation = Literal["+", "-", "*", "/", "%", "^"]
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?")
_WHOLE = re.compile(r"\+?[0-9]{1,9}")
_TRIMMED = "".join(map(chr, range(33)))
"""What Java's `trim` removes."""
_DIGITS = 1_000
"""The most of a number, as it is written without an exponent."""
_LONGEST = 100_000
"""The most digits of a power."""
_EXACT = Context(prec=2 * _LONGEST, Emax=999_999_999, Emin=-999_999_999, traps=[Inexact, InvalidOperation])
_DEFAULT_SCALE = 2


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
            raise self._wrong("operation", self.operation, "one of " + ", ".join(get_args(Operation)))
        if self.operation == "^":
            if not _WHOLE.fullmatch(self.number.strip(_TRIMMED)):
                raise self._wrong("number", self.number, "a whole number from 0 for a power")
            return
        found = _parsed(self.number)
        if found is None or (self.operation in "/%" and not found):
            what = "a number other than 0" if self.operation in "/%" else "a number"
            raise self._wrong("number", self.number, what)

    def _wrong(self, what: str, got: str, takes: str) -> OptionError:
        return OptionError(
            f"{self.step} got {what} {got!r}; it takes {takes}", option=self.step, got=got, takes=takes
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

    def apply(self, batch: pa.RecordBatch) -> Outcome:
        index = column_index(batch.schema, self.column, self.step)
        name, array = batch.schema.names[index], batch.column(index)
        output = self.output_schema(batch.schema).field(index)
        made = self._quick(array)
        if made is None:
            text = _plain(array, name)
            coded = text.dictionary_encode()
            results = [self._result(value) for value in coded.dictionary.to_pylist()]
            made = pa.array(results, pa.string()).take(coded.indices)
            bad = pc.and_(pc.is_valid(text), pc.is_null(made))
            if pc.any(bad, min_count=0).as_py():
                reason = f"{self.step}: column {name!r} is not a number, or one of more than {_DIGITS} digits"
                good = pc.invert(bad)
                return Outcome(
                    batch.filter(good).set_column(index, output, made.filter(good)),
                    (Refused(batch.filter(bad), reason),),
                )
        return Outcome(batch.set_column(index, output, made))

    def _quick(self, array: pa.Array) -> pa.Array | None:
        """By Arrow, where its types hold the result; their scales are those of Java."""
        kind, number = array.type, _parsed(self.number)
        if self.operation not in "+-*" or number is None or int(number.as_tuple().exponent) > 0:
            return None
        if pa.types.is_integer(kind):
            array = pc.cast(array, pa.decimal128(20, 0))
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
            made = _power(value, int(self.number.strip(_TRIMMED)))
        else:
            number = _parsed(self.number)
            assert number is not None
            if self.operation == "/":
                made = _quotient(value, number, _scale(text))
            elif self.operation == "%":
                made = _remainder(value, number)
            elif self.operation == "*":
                made = _EXACT.multiply(value, number)
            else:
                made = (_EXACT.add if self.operation == "+" else _EXACT.subtract)(value, number)
        if made is None:
            return None
        return str(made or abs(made))  # Java has no -0


def _plain(array: pa.Array, name: str) -> pa.Array:
    """The texts of numbers, without the exponents with which Arrow writes large and small doubles."""
    text = as_text(array, name)
    if not pa.types.is_floating(array.type):
        return text
    short = pc.match_substring(text, "e")
    if not pc.any(short, min_count=0).as_py():
        return text
    plain = [format(Decimal(each), "f") for each in text.filter(pc.fill_null(short, False)).to_pylist()]
    return pc.replace_with_mask(text, pc.fill_null(short, False), pa.array(plain, text.type))


def _parsed(text: str) -> Decimal | None:
    """What Java's Double and BigDecimal both take for a number; None = another text, or too many digits."""
    trimmed = text.strip(_TRIMMED)
    if len(trimmed) > 2 * _DIGITS or not _NUMBER.fullmatch(trimmed):
        return None
    value = Decimal(trimmed)
    digits, exponent = len(value.as_tuple().digits), int(value.as_tuple().exponent)
    return value if digits <= _DIGITS and abs(exponent) <= _DIGITS and digits + exponent <= _DIGITS else None


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
    whole, rest = divmod(abs(top) * 10**scale, abs(bottom))
    whole += 2 * rest >= abs(bottom)
    return _made(whole if (top < 0) == (bottom < 0) else -whole, scale)


def _remainder(value: Decimal, number: Decimal) -> Decimal:
    """With the scale that Java gives it: zeros at the end of the whole quotient shorten it."""
    top, bottom = _integers(value, number)
    whole, rest = divmod(abs(top), abs(bottom))
    scale, wanted = -_exponent(value), -_exponent(number)
    if whole and wanted > scale:
        zeros = len(str(whole)) - len(str(whole).rstrip("0"))
        scale = wanted - min(wanted - scale, zeros)
    low = min(_exponent(value), _exponent(number), 0)
    exact = _made(-rest if top < 0 else rest, -low)
    return exact.quantize(Decimal(1).scaleb(-scale), context=_EXACT)


def _power(value: Decimal, exponent: int) -> Decimal | None:
    scale = -_exponent(value)
    if exponent * max(len(value.as_tuple().digits), abs(scale)) > _LONGEST:
        return None
    return _made(int(_EXACT.scaleb(value, scale)) ** exponent, scale * exponent)
