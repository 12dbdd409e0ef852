"""Arrow types: inferred from texts, read from column lists in Spark's syntax, compared and widened.

An inferred type changes no value: a text belongs to a type when it can be rebuilt from the value, except for spaces
around a number and zeros at the end of a fraction. So `007`, `+49`, `0x10` and `1e5` are texts, and a number with
more digits than a double keeps is a decimal.
"""

import re
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from spark_channel import lazy
from spark_channel.errors import OptionError
from spark_channel.lazy import compute as pc

__all__ = [
    "SMALL_INT",
    "Node",
    "arrow_columns",
    "changed_by",
    "exact_type",
    "exp",
    "fits",
    "integer_digits",
    "is_longer",
    "is_plain",
    "keeps",
    "may_hold_changed",
    "merge_numbers",
    "number_type",
    "plain_kind",
    "plain_numbers",
    "sql_columns",
    "sqlglot",
    "tokens",
    "widened",
]


SMALL_INT = pa.int32()
"""Among inferred types: whole numbers that a double holds, too. It is read as int64."""

_DIGITS = 38
_SAFE_DIGITS = 15
"""A number of so many significant digits comes back from a double."""
_DOUBLE_INTS = 2**53
_INT = r"^(0|-?[1-9][0-9]*)$"
_NUMBER = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?$"
_FLOAT = r"^(-?(0|[1-9][0-9]*)(\.[0-9]+)?|NaN|-?Infinity)$"
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}(:?[0-9]{2})?)?$"
_ZONED_TIME = _TIME.removesuffix("?$") + "$"
_SUSPECT = re.compile(
    rb"(?:\A|[^\w.+-])(?:\+|-?(?:0[0-9xX]|\.[0-9]|[iI][nN][fF]|[nN][aA][nN])|-0(?!\.))|[0-9.]{16}|"
    rb"[0-9](?:[eE]|\.(?![0-9]))"
)
_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
_WIDER = {pa.uint8(): 16, pa.uint16(): 32, pa.uint32(): 64}
_INTEGERS = (
    pa.int8(),
    pa.uint8(),
    pa.int16(),
    pa.uint16(),
    pa.int32(),
    pa.uint32(),
    pa.int64(),
    pa.uint64(),
)
_FLOATS = (pa.float32(), pa.float64())
_WIDENED_DIGITS = 38
_TEXT = re.compile(r"(?:character varying|varchar)\s*\(\s*(\d+)\s*\)", re.IGNORECASE)
_ENDLESS = frozenset(
    {"text", "longtext", "mediumtext", "varchar", "character varying", "string", "clob"}
)


def may_hold_changed(data: bytes) -> bool:
    """Whether text in `data` may be a number that a type would change: a quick look, sure only when it says no."""
    return _SUSPECT.search(data) is not None


def exact_type(texts: pa.Array, parsed: pa.DataType) -> pa.DataType:
    """`parsed`, which a parser took `texts` (without NULL) for, or the type that changes none of them."""
    types = pa.types
    if types.is_integer(parsed) or types.is_floating(parsed):
        return _number_type(pc.utf8_trim_whitespace(texts))
    if types.is_date(parsed):
        return parsed if _all(texts, _DATE) else pa.string()
    if types.is_timestamp(parsed):
        return parsed if _all(texts, _TIME) else pa.string()
    return parsed


def changed_by(texts: pa.Array, kind: pa.DataType) -> pa.BooleanArray:
    """Which of `texts` a number or time of type `kind` would not give back; NULL where there is none."""
    texts = pc.utf8_trim_whitespace(texts)
    if pa.types.is_integer(kind):
        return pc.invert(pc.match_substring_regex(texts, _INT))
    if pa.types.is_decimal(kind):
        return pc.invert(pc.match_substring_regex(texts, _NUMBER))
    if pa.types.is_floating(kind):
        return pc.or_(pc.invert(pc.match_substring_regex(texts, _FLOAT)), _rounded(texts))
    if pa.types.is_timestamp(kind):
        return pc.invert(pc.match_substring_regex(texts, _TIME if kind.tz is None else _ZONED_TIME))
    return pc.and_(pc.is_null(texts), False)


def plain_numbers(texts: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray | None:
    """The numbers of type `kind`; None = one of them does not give back its text, or has blanks around it."""
    types = pa.types
    try:
        numbers = pc.cast(texts, kind)
        numbers.validate(full=types.is_decimal(kind))  # of which Arrow makes some with more digits
    except pa.ArrowInvalid:
        return None
    if types.is_integer(kind):
        return numbers if pc.cast(numbers, pa.string()).equals(texts) else None
    pattern = _NUMBER if types.is_decimal(kind) else _FLOAT
    if pc.all(pc.match_substring_regex(texts, pattern)).as_py() is False:
        return None
    rounds = types.is_floating(kind) and pc.any(_rounded(texts.combine_chunks())).as_py()
    return None if rounds else numbers


def is_plain(text: str, kind: pa.DataType) -> bool:
    """Whether one text is written as a value of `kind` is, so that the value gives it back."""
    types = pa.types
    if types.is_integer(kind) or types.is_decimal(kind):
        return re.fullmatch(_INT, text) is not None
    if types.is_floating(kind):
        return re.fullmatch(_NUMBER, text) is not None and keeps(text)
    if types.is_date(kind):
        return re.fullmatch(_DATE, text) is not None
    return not types.is_timestamp(kind) or re.fullmatch(_TIME, text) is not None


def number_type(text: str) -> pa.DataType:
    """The type of one number as JSON writes it, where an exponent is a number's usual form."""
    if re.match(_INT, text):
        whole = int(text) if len(text) < _DIGITS + 2 else None
        if whole is None or not -(2**63) <= whole < 2**63:
            return _decimal_type(len(text.lstrip("-")), 0)
        return SMALL_INT if abs(whole) <= _DOUBLE_INTS else pa.int64()
    value = Decimal(text)
    if keeps(text):
        return pa.float64()
    scale = max(0, -int(value.as_tuple().exponent))
    return _decimal_type(max(value.adjusted() + 1, 1) + scale, scale)


def _decimal_type(digits: int, scale: int) -> pa.DataType:
    """The widest decimal of that scale, if `digits` fit; else text."""
    return pa.decimal128(_DIGITS, scale) if digits <= _DIGITS else pa.string()


def merge_numbers(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The number that holds the numbers of both exactly; None = there is none, or they are no numbers."""
    kinds = {one, other}
    types = pa.types
    if kinds == {SMALL_INT, pa.int64()}:
        return pa.int64()
    if kinds == {SMALL_INT, pa.float64()}:
        return pa.float64()
    decimals = [kind for kind in kinds if types.is_decimal(kind)]
    others = [kind for kind in kinds if not types.is_decimal(kind)]
    if not decimals or any(not types.is_integer(kind) for kind in others):
        return None
    scale = max(kind.scale for kind in decimals)
    whole = 19 if others else 0
    whole = max([whole, *(kind.precision - kind.scale for kind in decimals if kind.scale < scale)])
    return _decimal_type(whole + scale, scale) if others or len(decimals) > 1 else decimals[0]


def _number_type(texts: pa.Array) -> pa.DataType:
    if _all(texts, _INT):
        longest = pc.max(pc.utf8_length(texts)).as_py()
        if longest <= _SAFE_DIGITS:
            return SMALL_INT
        values = [int(text) for text in texts.to_pylist()] if longest <= _DIGITS + 1 else None
        if values is None:
            return pa.string()
        low, high = min(values), max(values)
        if low >= -_DOUBLE_INTS and high <= _DOUBLE_INTS:
            return SMALL_INT
        return (
            pa.int64()
            if low >= -(2**63) and high < 2**63
            else _decimal_type(len(str(max(high, -low))), 0)
        )
    if not _all(texts, _FLOAT):
        return pa.string()
    if not pc.any(_rounded(texts)).as_py():
        return pa.float64()
    if not _all(texts, _NUMBER):
        return pa.string()
    parts = [text.lstrip("-").partition(".") for text in texts.to_pylist()]
    scale = max(len(fraction) for _, _, fraction in parts)
    return _decimal_type(max(len(whole) for whole, _, _ in parts) + scale, scale)


def _all(texts: pa.Array, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, pattern)).as_py())


def _rounded(texts: pa.Array) -> pa.BooleanArray:
    """Numbers that a double does not give back. Few have so many digits that they must be looked at."""
    many = pc.greater(pc.binary_length(texts), _SAFE_DIGITS)
    if not pc.any(many).as_py():
        return many
    digits = pc.replace_substring_regex(texts, r"^-?0*\.?0*|\.", "")
    long = pc.greater(pc.utf8_length(digits), _SAFE_DIGITS)
    if not pc.any(long).as_py():
        return long
    is_rounded = [
        None if text is None else bool(is_long) and not keeps(text)
        for text, is_long in zip(texts.to_pylist(), long.to_pylist(), strict=True)
    ]
    return pa.array(is_rounded, pa.bool_())


def keeps(text: str) -> bool:
    """Whether a double gives the number back."""
    try:
        value = float(text)
        return abs(value) != float("inf") and Decimal(repr(value)) == Decimal(text)
    except (ValueError, ArithmeticError):
        return text in ("NaN", "Infinity", "-Infinity")


# Importing sqlglot takes 30 to 60 ms in each Python process that plans a Spark job, and a job that names a plain table
# does not need it.
if TYPE_CHECKING:
    import sqlglot
    from sqlglot import exp

    tokens: Any
    Node: TypeAlias = exp.Expr
else:
    sqlglot, exp, tokens = map(
        lazy.LazyModule, ("sqlglot", "sqlglot.expressions", "sqlglot.tokens")
    )
    Node = Any
"""Any part of a parsed statement."""


@cache
def _simple_types() -> dict[Any, pa.DataType]:
    types = exp.DataType.Type
    instant, local = pa.timestamp("us", "UTC"), pa.timestamp("us")
    return {
        types.BOOLEAN: pa.bool_(),
        types.TINYINT: pa.int8(),
        types.SMALLINT: pa.int16(),
        types.INT: pa.int32(),
        types.BIGINT: pa.int64(),
        types.FLOAT: pa.float32(),
        types.DOUBLE: pa.float64(),
        types.TEXT: pa.string(),
        types.VARCHAR: pa.string(),
        types.CHAR: pa.string(),
        types.BINARY: pa.binary(),
        types.DATE: pa.date32(),
        types.TIMESTAMP: instant,
        types.TIMESTAMPTZ: instant,
        types.TIMESTAMPLTZ: instant,
        types.TIMESTAMPNTZ: local,
    }


def arrow_columns(text: str, option: str) -> dict[str, pa.DataType]:
    """Column name -> Arrow type, of a list in Spark's words; `option` is what errors name.

    Raises:
        OptionError: not such a list, a column twice, or a type that is not known.
    """
    return {
        name: _arrow(kind, name, text, option) for name, kind in _definitions(text, option).items()
    }


def sql_columns(text: str, option: str) -> dict[str, str]:
    """Column name -> the SQL type as text, from the same kind of list.

    Raises:
        OptionError: not such a list, or a column twice.
    """
    return {name: kind.sql("spark") for name, kind in _definitions(text, option).items()}


def _definitions(text: str, option: str) -> "dict[str, exp.DataType]":
    takes = "columns with types, such as: id BIGINT, price DECIMAL(10, 2)"
    wrong = OptionError(
        f"option {option!r} got {text!r}; it takes {takes}", option=option, got=text, takes=takes
    )
    try:
        trees = sqlglot.parse(f"CREATE TABLE t ({text})", read="spark")
    except sqlglot.errors.SqlglotError:
        raise wrong from None
    tree = trees[0] if len(trees) == 1 else None
    if not isinstance(tree, exp.Create) or not isinstance(tree.this, exp.Schema):
        raise wrong
    kinds: dict[str, exp.DataType] = {}
    for column in tree.this.expressions:
        kind = column.args.get("kind") if isinstance(column, exp.ColumnDef) else None
        if not isinstance(kind, exp.DataType) or column.args.get("constraints"):
            raise wrong
        if column.name.lower() in (name.lower() for name in kinds):
            raise OptionError(
                f"option {option!r} names column {column.name!r} twice", option=option, got=text
            )
        kinds[column.name] = kind
    if not kinds:
        raise wrong
    return kinds


def _arrow(kind: "exp.DataType", name: str, text: str, option: str) -> pa.DataType:
    if kind.this == exp.DataType.Type.DECIMAL:
        sizes = [int(size.name) for size in kind.expressions]
        precision, scale = (*sizes, 0)[:2] if sizes else (10, 0)
        if 1 <= precision <= 38 and 0 <= scale <= precision:
            return pa.decimal128(precision, scale)
    elif kind.this in _simple_types():
        return _simple_types()[kind.this]
    raise OptionError(
        f"option {option!r}: column {name!r} has type {kind.sql('spark')}, "
        "which is not one of Spark's simple types",
        option=option,
        got=text,
    )


def plain_kind(kind: pa.DataType) -> pa.DataType:
    """The one type that stands for all which hold the same values: of texts, bytes, dates, times and timestamps."""
    if pa.types.is_dictionary(kind):
        return plain_kind(kind.value_type)
    if pa.types.is_large_string(kind) or kind == pa.string_view():
        return pa.string()
    if (
        pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or kind == pa.binary_view()
    ):
        return pa.binary()
    if pa.types.is_date(kind):
        return pa.date32()
    if pa.types.is_time(kind):
        return pa.time64("us")
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    return kind


def integer_digits(kind: pa.DataType) -> int:
    """Decimal digits that the largest value of an integer type has."""
    return 20 if kind == pa.uint64() else _INTEGER_DIGITS[kind.bit_width]


def fits(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether `target` holds each value of `source` exactly, so that reading it back gives an equal value."""
    if source.equals(target):
        return True
    if pa.types.is_integer(target):
        return _fits_integer(source, target)
    if pa.types.is_floating(target):
        if pa.types.is_floating(source):
            return bool(source.bit_width <= target.bit_width)
        return bool(
            pa.types.is_integer(source)
            and source.bit_width <= (32 if target == pa.float64() else 16)
        )
    if pa.types.is_decimal(target):
        whole = target.precision - target.scale
        if pa.types.is_integer(source):
            return bool(integer_digits(source) <= whole)
        if pa.types.is_decimal(source):
            return bool(source.scale <= target.scale and source.precision - source.scale <= whole)
    if pa.types.is_timestamp(target) and pa.types.is_timestamp(source):
        units = ("s", "ms", "us", "ns")
        return bool(
            (source.tz is None) == (target.tz is None)
            and units.index(source.unit) <= units.index(target.unit)
        )
    return False


def _fits_integer(source: pa.DataType, target: pa.DataType) -> bool:
    if pa.types.is_boolean(source):
        return True
    if pa.types.is_decimal(source):
        return bool(source.scale == 0 and source.precision < integer_digits(target))
    if not pa.types.is_integer(source):
        return False
    if pa.types.is_unsigned_integer(target):
        return bool(pa.types.is_unsigned_integer(source) and source.bit_width <= target.bit_width)
    if pa.types.is_unsigned_integer(source):
        return source in _WIDER and _WIDER[source] <= target.bit_width
    return bool(source.bit_width <= target.bit_width)


def widened(column: pa.DataType, rows: pa.DataType) -> pa.DataType | None:
    """The smallest number type in which each value of both is the same number; None = there is none.

    Texts, times and other types have none: they do not differ by which numbers they hold.
    """
    kinds = plain_kind(column), plain_kind(rows)
    if not all(map(_is_number, kinds)):
        return None
    if any(map(pa.types.is_floating, kinds)):
        return next(
            (number for number in _FLOATS if all(fits(kind, number) for kind in kinds)), None
        )
    if not any(map(pa.types.is_decimal, kinds)):
        kind = next(
            (integer for integer in _INTEGERS if all(fits(kind, integer) for kind in kinds)), None
        )
        return pa.decimal128(integer_digits(pa.uint64()), 0) if kind is None else kind
    scale = max(_scale(kind) for kind in kinds)
    digits = scale + max(_whole_digits(kind) for kind in kinds)
    return pa.decimal128(digits, scale) if digits <= _WIDENED_DIGITS else None


def is_longer(was: str, now: str) -> bool:
    """Whether a column declared `now` holds every text of one declared `was`, and longer ones."""
    before, after = _TEXT.fullmatch(was.strip()), _TEXT.fullmatch(now.strip())
    if before is None:
        return False
    if after is None:
        return now.strip().lower() in _ENDLESS
    return int(after[1]) > int(before[1])


def _is_number(kind: pa.DataType) -> bool:
    is_decimal = pa.types.is_decimal(kind) and 0 <= kind.scale <= kind.precision
    is_float = pa.types.is_float32(kind) or pa.types.is_float64(kind) or pa.types.is_float16(kind)
    return bool(pa.types.is_integer(kind) or is_decimal or is_float)


def _scale(kind: pa.DataType) -> int:
    return int(kind.scale) if pa.types.is_decimal(kind) else 0


def _whole_digits(kind: pa.DataType) -> int:
    return int(kind.precision - kind.scale) if pa.types.is_decimal(kind) else integer_digits(kind)
