"""The defaults and checks of a table that mean the same in a table of another system.

sqlglot parses them. This module carries constants that the column's type holds exactly, the current time, comparisons
of a column with such constants, IN, BETWEEN, IS NULL, and AND, OR and NOT of these, and nothing else.
"""

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from spark_channel.connectors.base.types import Node, exp, plain_kind, sqlglot
from spark_channel.connectors.sql.dialect import WriteDialect

if TYPE_CHECKING:
    from spark_channel.connectors.base.definition import (
        ColumnDefinition,
        ConstraintDefinition,
        TableDefinition,
    )

__all__ = ["DiffersError", "Portable"]

_Kind = Literal[
    "whole", "decimal", "single", "double", "boolean", "text", "day", "local", "instant"
]

_NUMBERS: frozenset[_Kind] = frozenset({"whole", "decimal", "single", "double"})
_TEXTS: Mapping[str, frozenset[str]] = {
    "postgres": frozenset({"text", "character varying"}),
    "mysql": frozenset(
        {"varchar", "char", "tinytext", "text", "mediumtext", "longtext", "enum", "set"}
    ),
    "duckdb": frozenset({"varchar"}),
}
"""The types of texts that hold a constant as it is written. SQLite's do so by any name."""
_LONGEST = 255
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?")
_DAY = re.compile(r"[1-9]\d{3}-\d\d-\d\d")
_MOMENT = re.compile(r"[1-9]\d{3}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?")
_CHECK = re.compile(r"(?:CHECK\s*)?(\(.*\))", re.DOTALL)
_EXACT = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)
"""Rounds nothing: the usual context has 28 digits, and a column up to 76."""
_DIGITS = 15
"""A double gives back so many."""
_OPERATORS = {"EQ": "=", "NEQ": "<>", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">="}
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_UNORDERED = ("=", "<>")
_TWO = frozenset({"this", "expression"})
_TIMES = ("CurrentTimestamp", "Localtimestamp", "UtcTimestamp")
_KNOWN: Mapping[str, frozenset[str]] = {
    **dict.fromkeys((*_OPERATORS, "And", "Or", "Introducer"), _TWO),
    **dict.fromkeys(("Paren", "Not", "Neg", "Any", "Column", "Boolean", "BitString"), _TWO),
    **dict.fromkeys((*_TIMES, "CurrentDate"), _TWO),
    "Is": _TWO | {"negate"},
    "In": frozenset({"this", "expressions"}),
    "Between": frozenset({"this", "low", "high"}),
    "Array": frozenset({"expressions", "bracket_notation"}),
    "Cast": frozenset({"this", "to"}),
    "DataType": frozenset({"this", "expressions", "nested"}),
    "DataTypeParam": _TWO,
    "Identifier": frozenset({"this", "quoted"}),
    "Literal": frozenset({"this", "is_string"}),
    "Null": frozenset(),
    "AtTimeZone": frozenset({"this", "zone"}),
    "Anonymous": frozenset({"this", "expressions"}),
}
"""The nodes of sqlglot's trees that this module understands, with the arguments that each may have."""
_TRUNC = "date_trunc('second', {})"
_UTC = "(CURRENT_TIMESTAMP AT TIME ZONE 'UTC')"
_DUCKDB_UTC = "make_timestamp(epoch_us(now()))"
_NOW: Mapping[tuple[str, str], tuple[str, str]] = {
    ("postgres", "instant"): ("CURRENT_TIMESTAMP", _TRUNC.format("CURRENT_TIMESTAMP")),
    ("postgres", "session"): ("LOCALTIMESTAMP", _TRUNC.format("LOCALTIMESTAMP")),
    ("postgres", "utc"): (_UTC, _TRUNC.format(_UTC)),
    ("mysql", "instant"): ("CURRENT_TIMESTAMP(6)", "(CURRENT_TIMESTAMP)"),
    ("mysql", "session"): ("CURRENT_TIMESTAMP(6)", "(CURRENT_TIMESTAMP)"),
    ("mysql", "utc"): ("(UTC_TIMESTAMP(6))", "(UTC_TIMESTAMP())"),
    ("duckdb", "instant"): ("now()", _TRUNC.format("now()")),
    ("duckdb", "utc"): (_DUCKDB_UTC, _TRUNC.format(_DUCKDB_UTC)),
    ("sqlite", "instant"): (
        "(strftime('%Y-%m-%d %H:%M:%fZ', 'now'))",
        "(strftime('%Y-%m-%d %H:%M:%SZ', 'now'))",
    ),
    ("sqlite", "utc"): ("(strftime('%Y-%m-%d %H:%M:%f', 'now'))", "CURRENT_TIMESTAMP"),
}
"""(with all digits that the system has, to the second), by the target's system and the zone."""


class DiffersError(Exception):
    """The part does not mean the same in both systems, or it is not known whether it does. Its text: why."""


@dataclass(frozen=True, slots=True)
class Portable:
    """What a new table for `rows`, made in another system with `dialect`, gets of `definition`."""

    dialect: WriteDialect
    definition: "TableDefinition"
    rows: pa.Schema

    def default(self, column: "ColumnDefinition") -> str:
        """The default of a column, as the SQL of the new table.

        Raises:
            DiffersError: it has none that means the same.
        """
        kind = self._kind(column)
        node = _bare(self._parsed(str(column.default)))
        if isinstance(node, exp.Null):
            return "NULL"
        default = self._now(node, kind, column)
        if default is None:
            default = self._literal(self._constant(node, kind, column), kind, column)
            if self.dialect.sql == "mysql" and kind == "text":
                return f"({default})"  # as a long text takes it
        return default

    def check(self, constraint: "ConstraintDefinition") -> str:
        """The condition of a check, as the SQL of the new table, in parentheses.

        Raises:
            DiffersError: there is none that means the same.
        """
        match = _CHECK.fullmatch(constraint.text.strip())
        if match is None:
            raise DiffersError(self._unknown)
        return self._condition(self._parsed(match[1]))

    @property
    def _unknown(self) -> str:
        return (
            f"{self.dialect.product} may read its SQL in another way than {self.definition.system}"
        )

    def _parsed(self, text: str) -> Node:
        if self.definition.system == "mysql" and "\\" in text:
            raise DiffersError(self._unknown)  # what it escapes depends on the server's mode
        try:
            tree: Node = sqlglot.parse_one(text, read=self.definition.system)
        except sqlglot.errors.SqlglotError:
            raise DiffersError(self._unknown) from None
        for node in tree.walk():
            arguments = _KNOWN.get(type(node).__name__)
            if arguments is None or any(
                argument for name, argument in node.args.items() if name not in arguments
            ):
                raise DiffersError(self._unknown)
        return tree

    def _kind(self, column: "ColumnDefinition") -> _Kind:
        if column.name not in self.rows.names:
            raise DiffersError(f"the rows lack its column {column.name}")
        type_held = self.rows.field(column.name).type
        kind = (
            None if isinstance(type_held, pa.BaseExtensionType) else _kind_of(plain_kind(type_held))
        )
        words = re.sub(r"\s*\(.*?\)", "", column.declared.lower(), count=1).strip()
        texts = _TEXTS.get(self.definition.system)
        is_text = texts is None or words in texts
        is_known = is_text if kind == "text" else not words.startswith("year")
        if kind is None or column.is_own or not is_known:
            raise DiffersError(f"what a value of type {column.declared} is depends on the system")
        return kind

    # Constants

    def _constant(self, node: Node, kind: _Kind, column: "ColumnDefinition") -> Any:
        """The value, which a column of this kind holds exactly."""
        if kind in _NUMBERS:
            number = _number(node)
            if number is not None and self._holds(column.name, kind, number):
                return number
        elif kind == "boolean":
            truth = _truth(node)
            if truth is not None:
                return truth
        else:
            text = _text(node)
            if text is not None and kind == "text" and _is_held(text, column, self.definition):
                return text
            if text is not None and kind in ("day", "local"):
                moment = _moment(text, kind)
                is_rounded = bool(moment is not None and getattr(moment, "microsecond", 0))
                is_whole = re.search(r"\(|_", column.declared) is not None
                if moment is not None and not (is_rounded and is_whole):
                    return moment
        if kind == "instant":
            raise DiffersError("the systems read an instant in the time zone of a session")
        raise DiffersError(self._unknown)

    def _holds(self, name: str, kind: _Kind, number: Decimal) -> bool:
        type_held = plain_kind(self.rows.field(name).type)
        if kind == "whole":
            signed = pa.types.is_signed_integer(type_held)
            bits = type_held.bit_width - signed
            return number == number.to_integral_value() and (
                (-(1 << bits) if signed else 0) <= number < 1 << bits
            )
        is_short = len(number.normalize(_EXACT).as_tuple().digits) <= _DIGITS
        if kind == "decimal":
            # SQLite itself makes a double of a longer one.
            is_rounded = self.definition.system == "sqlite" and not is_short
            if is_rounded or number.copy_abs() >= Decimal(10) ** (
                type_held.precision - type_held.scale
            ):
                return False
            smallest = number.scaleb(type_held.scale, _EXACT)
            return bool(smallest == smallest.to_integral_value())
        size = (number or Decimal(1)).copy_abs()
        if not is_short or not Decimal("1e-30") <= size <= Decimal("1e30"):
            return False
        return kind == "double" or Decimal(_single(float(number))) == number

    def _literal(self, value: Any, kind: _Kind, column: "ColumnDefinition") -> str:
        system = self.dialect.sql
        if kind == "boolean":
            return str(value).upper() if system in ("postgres", "duckdb") else str(int(value))
        if kind in _NUMBERS:
            text = str(format(value, "f"))
            is_text = system == "sqlite" and self._created(column).startswith("DECIMAL_TEXT")
            return f"'{text}'" if is_text else text
        if kind == "text":
            if system == "mysql":
                return str(self.dialect.literal(value, None))
            return "'" + str(value).replace("'", "''") + "'"
        if kind == "day":
            return f"'{value}'" if system in ("mysql", "sqlite") else f"DATE '{value}'"
        text = value.isoformat(sep=" ", timespec="microseconds")
        return f"'{text}'" if system in ("mysql", "sqlite") else f"TIMESTAMP '{text}'"

    def _created(self, column: "ColumnDefinition") -> str:
        field = self.rows.field(column.name)
        return self.dialect.created_type(field.name, field.type, key=False)

    # The current time

    def _now(self, node: Node, kind: _Kind, column: "ColumnDefinition") -> str | None:
        """The current time as the new table says it; None = the default is something else.

        It is an instant, or the time of the session's zone, or that of UTC; to the second where the source's is so.
        """
        current = _current(node, self.definition.system)
        if current is None:
            return None
        zone, digits = current
        source, target = self.definition.system, self.dialect.sql
        if zone == "day" or kind == "day":
            if (zone, kind) == ("day", "day") and {source, target} == {"postgres", "mysql"}:
                return "CURRENT_DATE" if target == "postgres" else "(CURRENT_DATE)"
            raise DiffersError(f"the day of {self.dialect.product} is that of another time zone")
        if kind not in ("local", "instant"):
            raise DiffersError(self._unknown)
        if source == "mysql":
            sized = re.search(r"\((\d)\)", column.declared)
            digits = min(digits, int(sized[1]) if sized else 0)
        elif re.search(r"\(|_", column.declared):  # the source rounds it
            digits = -1
        if digits not in (0, 6):
            raise DiffersError(f"{self.dialect.product} has a current time of other digits")
        zone = {"instant": "session" if kind == "local" else "instant"}.get(zone, zone)
        if (kind == "instant") is not (zone == "instant"):
            raise DiffersError("the systems read an instant in the time zone of a session")
        spellings = _NOW.get((target, zone))
        if spellings is None:
            raise DiffersError(f"{self.dialect.product} has no current time of a session's zone")
        return spellings[digits == 0]

    # Conditions

    def _condition(self, node: Node) -> str:
        node = _bare(node)
        if isinstance(node, exp.And | exp.Or):
            word = "AND" if isinstance(node, exp.And) else "OR"
            return f"({self._condition(node.this)} {word} {self._condition(node.expression)})"
        if isinstance(node, exp.Not):
            inner = _bare(node.this)
            if isinstance(inner, exp.Is):
                return self._is_null(inner, is_not=True)
            return f"(NOT {self._condition(inner)})"
        if isinstance(node, exp.Is):
            return self._is_null(node)
        if isinstance(node, exp.Between):
            low = self._compared(node.this, ">=", node.args["low"])
            return f"({low} AND {self._compared(node.this, '<=', node.args['high'])})"
        if isinstance(node, exp.In) and node.expressions:
            return self._among(node.this, "IN", node.expressions)
        operator = _OPERATORS.get(type(node).__name__)
        if operator is not None:
            operand, right = node.this, node.expression
            many = _listed(right, operator)
            if many is not None:
                return self._among(operand, "IN" if operator == "=" else "NOT IN", many)
            if self._column(operand) is None:
                operand, right = right, operand
                operator = _TURNED.get(operator, operator)
            return self._compared(operand, operator, right)
        column = self._column(node)
        if column is not None and self._kind(column) == "boolean":
            return (
                f"({self.dialect.quoted(column.name)} = {self._literal(True, 'boolean', column)})"
            )
        raise DiffersError(self._unknown)

    def _column(self, node: Node) -> "ColumnDefinition | None":
        """The column that a part of a condition is."""
        node = _bare(node)
        if isinstance(node, exp.Cast) and _family(node) == "text":
            node = _bare(node.this)  # PostgreSQL compares its varchar as text
        if not isinstance(node, exp.Column):
            return None
        names = [column.name for column in self.definition.columns]
        name = self.dialect.same_name(node.name, names)
        return None if name is None else self.definition.column(name)

    def _is_null(self, node: Node, *, is_not: bool = False) -> str:
        column = self._column(node.this)
        if column is None or not isinstance(node.expression, exp.Null):
            raise DiffersError(self._unknown)
        if column.name not in self.rows.names:
            raise DiffersError(f"the rows lack its column {column.name}")
        if self.definition.system == "mysql" and pa.types.is_temporal(
            self.rows.field(column.name).type
        ):
            raise DiffersError("a zero date is NULL in other systems")
        # PostgreSQL's IS NOT (findings/sqlglot-is-not-null-depends-on-the-dialect.sh)
        is_not = is_not is not bool(node.args.get("negate"))
        return f"({self.dialect.quoted(column.name)} IS {'NOT ' if is_not else ''}NULL)"

    def _compared(self, operand: Node, operator: str, right: Node) -> str:
        column = self._known(operand, ordered=operator not in _UNORDERED)
        kind = self._kind(column)
        value = self._literal(self._constant(_bare(right), kind, column), kind, column)
        return f"({self._named(column, kind, [value])} {operator} {value})"

    def _among(self, operand: Node, words: str, many: Sequence[Node]) -> str:
        column = self._known(operand, ordered=False)
        kind = self._kind(column)
        values = [
            self._literal(self._constant(_bare(value), kind, column), kind, column)
            for value in many
        ]
        return f"({self._named(column, kind, values)} {words} ({', '.join(values)}))"

    def _known(self, node: Node, *, ordered: bool) -> "ColumnDefinition":
        """A column that both systems compare alike with a constant."""
        column = self._column(node)
        if column is None:
            raise DiffersError(self._unknown)
        kind, system = self._kind(column), self.definition.system
        if kind == "text":
            collates = (
                column.collation is not None or "COLLATE" in self.definition.statement.upper()
            )
            if ordered or system == "mysql" or collates:
                raise DiffersError("the systems compare texts by other collations")
        if kind in ("day", "local") and "sqlite" in (system, self.dialect.sql):
            raise DiffersError("SQLite compares times as texts")
        if kind == "boolean" and ordered:
            raise DiffersError(self._unknown)
        is_decimal = kind in ("whole", "decimal")
        for name, declared in (
            (system, column.declared),
            (self.dialect.sql, self._created(column)),
        ):
            if name == "sqlite" and is_decimal and "_TEXT" in declared.upper():
                raise DiffersError("SQLite compares these numbers as texts")
        return column

    def _named(self, column: "ColumnDefinition", kind: _Kind, values: Sequence[str]) -> str:
        """The column as it is compared."""
        name = self.dialect.quoted(column.name)
        if kind != "text" or self.dialect.sql != "mysql":
            return name
        if not all(value.isascii() for value in values):
            raise DiffersError(
                "MySQL compares texts by a collation, and their bytes by a character set"
            )
        return f"CAST({name} AS BINARY)"


def _kind_of(kind: pa.DataType) -> _Kind | None:
    if pa.types.is_timestamp(kind):
        return "local" if kind.tz is None else "instant"
    for test, name in (
        (pa.types.is_boolean, "boolean"),
        (pa.types.is_integer, "whole"),
        (pa.types.is_decimal, "decimal"),
        (pa.types.is_float32, "single"),
        (pa.types.is_float64, "double"),
        (pa.types.is_string, "text"),
        (pa.types.is_date32, "day"),
    ):
        if test(kind):
            kind_found: _Kind = name  # type: ignore[assignment]
            return kind_found
    return None


def _bare(node: Node) -> Node:
    """Without parentheses and the name of a character set."""
    while isinstance(node, exp.Paren | exp.Introducer):
        node = node.this if isinstance(node, exp.Paren) else node.expression
    return node


def _family(cast: Node) -> str:
    """What a cast makes, where it changes no constant of a column of that kind."""
    types, to = exp.DataType.Type, cast.args["to"].this
    if cast.args["to"].expressions:
        return ""
    families = {
        "text": (types.TEXT, types.VARCHAR),
        "whole": (types.SMALLINT, types.INT, types.BIGINT),
        "number": (types.DECIMAL, types.FLOAT, types.DOUBLE),
        "boolean": (types.BOOLEAN,),
        "day": (types.DATE,),
        "local": (types.TIMESTAMP, types.TIMESTAMPNTZ),
    }
    return next((name for name, members in families.items() if to in members), "")


def _number(node: Node) -> Decimal | None:
    node = _bare(node)
    if isinstance(node, exp.Neg):
        number = _number(node.this)
        return None if number is None else _EXACT.minus(number)
    if isinstance(node, exp.Cast):
        number, family = _number(node.this), _family(node)
        is_whole = number is not None and number == number.to_integral_value()
        return number if family == "number" or (family == "whole" and is_whole) else None
    if not isinstance(node, exp.Literal) or not _NUMBER.fullmatch(node.this):
        return None
    try:
        return Decimal(node.this)
    except InvalidOperation:
        return None


def _truth(node: Node) -> bool | None:
    node = _bare(node)
    if isinstance(node, exp.Cast) and _family(node) == "boolean":
        return _truth(node.this)
    if isinstance(node, exp.Boolean):
        return bool(node.this)
    if isinstance(node, exp.Literal | exp.BitString):
        return {"1": True, "t": True, "true": True, "0": False, "f": False, "false": False}.get(
            str(node.this).lower()
        )
    return None


def _text(node: Node) -> str | None:
    node = _bare(node)
    if isinstance(node, exp.Cast) and _family(node) in ("text", "day", "local"):
        return _text(node.this)
    return str(node.this) if isinstance(node, exp.Literal) and node.is_string else None


def _is_held(text: str, column: "ColumnDefinition", definition: "TableDefinition") -> bool:
    """Whether the column of the source gives the text back as it is, and each system takes it."""
    sized = re.search(r"^[a-z ]*char[a-z ]*\((\d+)\)", column.declared.lower())
    longest = min(_LONGEST, int(sized[1]) if sized else _LONGEST)
    is_trimmed = definition.system == "mysql" and text != text.rstrip(" ")
    return "\0" not in text and len(text) <= longest and not is_trimmed


def _moment(text: str, kind: _Kind) -> date | datetime | None:
    if (_DAY if kind == "day" else _MOMENT).fullmatch(text) is None:
        return None
    try:
        return date.fromisoformat(text) if kind == "day" else datetime.fromisoformat(text)
    except ValueError:
        return None


def _single(number: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", number))[0])
    except OverflowError:
        return float("inf")


def _current(node: Node, system: str) -> tuple[str, int] | None:
    """(zone, digits) of the current time; None = the default is something else."""
    if isinstance(node, exp.AtTimeZone):
        zone = _text(node.args["zone"])
        current = _current(_bare(node.this), system)
        is_utc = current is not None and current[0] == "instant" and str(zone).upper() == "UTC"
        return ("utc", current[1]) if current is not None and is_utc else None
    name = node.name.lower() if isinstance(node, exp.Anonymous) else ""
    if system == "postgres" and name == "timezone" and len(node.expressions) == 2:
        zone, moment = node.expressions
        return _current(exp.AtTimeZone(this=moment, zone=zone), system)
    if isinstance(node, exp.CurrentDate) and node.this is None and system != "sqlite":
        return "day", 0
    kind = type(node).__name__  # older releases of sqlglot lack two of them
    digits = 0 if system in ("mysql", "sqlite") else 6
    if kind in _TIMES and node.this is not None:
        if not isinstance(node.this, exp.Literal) or not str(node.this.this).isdecimal():
            return None
        digits = int(node.this.this)
        if system == "postgres" and digits != 6:
            return None  # it is rounded
    if kind == "UtcTimestamp" and system == "mysql":
        return "utc", digits
    if kind == "Localtimestamp" and system in ("postgres", "mysql"):
        return ("session" if system == "postgres" else "instant"), digits
    is_now = system == "duckdb" and name in ("now", "get_current_timestamp")
    if kind == "CurrentTimestamp" or is_now:
        return ("utc" if system == "sqlite" else "instant"), digits
    return None


def _listed(node: Node, operator: str) -> Sequence[Node] | None:
    """The constants of PostgreSQL's forms of IN and NOT IN: = ANY (ARRAY[...]), <> ALL (ARRAY[...])."""
    node = _bare(node)
    if isinstance(node, exp.Any) and operator == "=":
        inner = _bare(node.this)
    elif isinstance(node, exp.Anonymous) and node.name.upper() == "ALL" and operator == "<>":
        inner = _bare(node.expressions[0])
    else:
        return None
    while isinstance(inner, exp.Cast):
        inner = _bare(inner.this)
    return list(inner.expressions) if isinstance(inner, exp.Array) else None
