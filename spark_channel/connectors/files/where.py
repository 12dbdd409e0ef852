r"""The option `where`: a SQL condition, parsed by sqlglot, typed to the columns, and compiled to a `Condition`.

It takes comparisons, IN, BETWEEN, LIKE and ILIKE (with ESCAPE; `\` by default), IS [NOT] NULL, IS [NOT]
TRUE/FALSE, IS [NOT] DISTINCT FROM, AND, OR, NOT and parentheses, between columns and literals. Anything
else is refused by name. Names are found as Spark finds them: exactly, else ignoring case. Times without
a zone are UTC where the column has one.
"""

import re
from collections.abc import Callable
from typing import Any, cast

import pyarrow as pa
import sqlglot
from sqlglot import expressions as exp

from spark_channel.arrow_schema import find_column
from spark_channel.connectors.files.conditions import (
    FLIPPED,
    All,
    AnyOf,
    CompareColumns,
    Condition,
    Constant,
    IsNull,
    Like,
    Member,
)
from spark_channel.connectors.files.literals import comparison, same_step
from spark_channel.errors import OptionError

__all__ = [
    "parse_where",
]


_OPERATORS: dict[type[exp.Expression], str] = {
    exp.EQ: "eq",
    exp.NEQ: "ne",
    exp.LT: "lt",
    exp.LTE: "le",
    exp.GT: "gt",
    exp.GTE: "ge",
}
_TAKES = (
    "comparisons, IN, BETWEEN, LIKE, IS NULL, AND, OR and NOT between columns and literals; "
    "filter the rest with DataFrame.filter after load()"
)
_NOTHING = object()


def parse_where(text: str, schema: pa.Schema) -> Condition:
    """Read `text` against the columns of `schema` (dictionary columns count as their values).

    Raises:
        OptionError: not SQL, an unknown column, a literal that does not fit, or SQL beyond the above.
    """
    try:
        # This dialect takes both "name" and `name`, and leaves backslashes in texts alone.
        parsed = sqlglot.parse(text, read="sqlite")
    except sqlglot.errors.SqlglotError as error:
        detail = re.sub(r"\x1b\[\d*m", "", str(error)).splitlines()[0]
        detail = re.sub(
            r"Required keyword: '\w+' missing for <class '[\w.]+'>", "an operand is missing", detail
        )
        raise OptionError(
            f"option 'where' got {text!r}, which is not a SQL condition: {detail}",
            option="where",
            got=text,
            takes=_TAKES,
        ) from None
    if len(parsed) != 1 or parsed[0] is None:
        raise OptionError(
            f"option 'where' got {text!r}; it takes one SQL condition", option="where", got=text
        )
    try:
        return _Compiler(schema).condition(cast(exp.Expression, parsed[0]))
    except RecursionError:
        raise OptionError(
            "option 'where' is nested too deep; use IN for long lists of values"
        ) from None


def _refused(node: exp.Expression, reason: str = "") -> OptionError:
    sql = node.sql("sqlite")
    sql = sql if len(sql) <= 80 else sql[:77] + "..."
    kind = type(node).__name__
    return OptionError(
        f"option 'where' holds {sql!r} ({kind}){reason and ', ' + reason}; it takes {_TAKES}",
        option="where",
        got=sql,
        takes=_TAKES,
    )


def _plain(node: exp.Expression, *allowed: str) -> None:
    """Refuse a node that carries a modifier which this compiler does not honour."""
    for name, value in node.args.items():
        if value and name not in allowed:
            raise _refused(node, f"with {name}")


class _Compiler:
    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._nodes: dict[type[exp.Expression], Callable[[Any], Condition]] = {
            exp.And: lambda node: self._chain(node, exp.And, All),
            exp.Or: lambda node: self._chain(node, exp.Or, AnyOf),
            exp.Not: lambda node: self.condition(node.this).negated(),
            exp.Paren: lambda node: self.condition(node.this),
            exp.Between: self._between,
            exp.In: self._in,
            exp.Is: self._is,
            exp.NullSafeEQ: self._null_safe,
            exp.NullSafeNEQ: lambda node: self._null_safe(node).negated(),
            exp.Like: lambda node: self._like(node, None),
            exp.ILike: lambda node: self._like(node, None),
            exp.Escape: self._escape,
            exp.Column: self._flag,
            exp.Boolean: lambda node: Constant(bool(node.this)),
            exp.Null: lambda node: Constant(None),
            **dict.fromkeys(_OPERATORS, self._compare),
        }

    def condition(self, node: exp.Expression) -> Condition:
        compiler = self._nodes.get(type(node))
        if compiler is None:
            raise _refused(node)
        condition = compiler(node)
        return condition.negated() if node.args.get("negate") else condition

    def _chain(
        self, node: exp.Expression, kind: type[exp.Expression], make: type[All | AnyOf]
    ) -> Condition:
        # `a OR b OR c ...` nests to the left as deep as its length: walk it instead of recursing.
        parts: list[Condition] = []
        while isinstance(node, kind):
            parts.append(self.condition(node.args["expression"]))
            node = node.args["this"]
        parts.append(self.condition(node))
        return make(tuple(reversed(parts)))

    def _column(self, node: exp.Expression) -> pa.Field | None:
        while isinstance(node, exp.Paren):
            node = node.this
        if not isinstance(node, exp.Column):
            return None
        if node.args.get("table") is not None:
            raise _refused(node, "a field of a table or struct")
        name = node.this.name if isinstance(node.this, exp.Identifier) else ""
        if not name:
            raise _refused(node)
        field = find_column(self._schema, name, "where")
        return (
            field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
        )

    def _literal(self, node: exp.Expression) -> Any:
        """The Python value of a literal; None for NULL; `_NOTHING` when it is none."""
        if isinstance(node, exp.Paren):
            return self._literal(node.this)
        if isinstance(node, exp.Literal):
            return node.this if node.is_string else _decimal(node)
        if isinstance(node, exp.Neg):
            inner = self._literal(node.this)
            return (
                _NOTHING
                if inner is _NOTHING or isinstance(inner, (str, bytes, bool))
                else _minus(inner)
            )
        if isinstance(node, exp.Null):
            return None
        if isinstance(node, exp.Boolean):
            return bool(node.this)
        if isinstance(node, exp.HexString):
            return _hex(node)
        if isinstance(node, (exp.Cast, exp.Date, exp.Timestamp)):
            return self._time(node)
        return _NOTHING

    def _time(self, node: exp.Expression) -> object:
        """DATE '...' and TIMESTAMP '...', which the column's own type reads."""
        inner = node.this
        if not (isinstance(inner, exp.Literal) and inner.is_string):
            return _NOTHING
        if isinstance(node, exp.Cast):
            kind = node.args["to"].sql("sqlite").upper()
            if not kind.startswith(("DATE", "TIMESTAMP")):
                return _NOTHING
        return inner.this

    def _compare(self, node: exp.Expression) -> Condition:
        _plain(node, "this", "expression")
        left, right = node.args["this"], node.args["expression"]
        op = _OPERATORS[type(node)]
        column, other = self._column(left), self._column(right)
        if column is not None and other is not None:
            return self._columns(node, column, op, other)
        if column is None:
            if other is None:
                return self._constants(node, left, op, right)
            column, op, right = other, FLIPPED[op], left
        value = self._literal(right)
        if value is _NOTHING:
            raise _refused(right)
        return Constant(None) if value is None else comparison(column.name, op, value, column.type)

    def _columns(self, node: exp.Expression, left: pa.Field, op: str, right: pa.Field) -> Condition:
        if left.type != right.type:
            raise _refused(node, f"two columns of different types ({left.type}, {right.type})")
        if pa.types.is_floating(left.type) or pa.types.is_nested(left.type):
            raise _refused(node, f"two columns of type {left.type}")
        return CompareColumns(left.name, op, right.name)

    def _constants(
        self, node: exp.Expression, left: exp.Expression, op: str, right: exp.Expression
    ) -> Condition:
        """`1 = 1` and `1 = 0`, which people write to take all rows or none."""
        values = [self._literal(side) for side in (left, right)]
        for side, value in zip((left, right), values, strict=True):
            if value is _NOTHING:
                raise _refused(side)
        if None in values:
            return Constant(None)
        if isinstance(values[0], str) or type(values[0]) is not type(values[1]):
            raise _refused(node, "a comparison of two literals")
        a, b = values
        outcomes = {
            "eq": a == b,
            "ne": a != b,
            "lt": a < b,
            "le": a <= b,
            "gt": a > b,
            "ge": a >= b,
        }
        return Constant(bool(outcomes[op]))

    def _between(self, node: exp.Expression) -> Condition:
        _plain(node, "this", "low", "high", "negate")
        low = exp.GTE(this=node.this, expression=node.args["low"])
        high = exp.LTE(this=node.this, expression=node.args["high"])
        return All((self._compare(low), self._compare(high)))

    def _in(self, node: exp.Expression) -> Condition:
        _plain(node, "this", "expressions", "negate")
        column = self._column(node.this)
        if column is None:
            raise _refused(node)
        literals = node.args.get("expressions") or []
        if not literals:
            raise _refused(node, "an empty list")
        values, ranks, unknown, kind = [], [], False, column.type
        for item in literals:
            value = self._literal(item)
            if value is _NOTHING:
                raise _refused(item)
            if value is None:
                unknown = True
                continue
            same = same_step(column.name, value, column.type)
            if same is not None:
                values.append(same[0])
                ranks.append(same[1])
                kind = same[2]
        return Member(column.name, tuple(values), kind, tuple(ranks), unknown)

    def _is(self, node: exp.Expression) -> Condition:
        _plain(node, "this", "expression")
        operand = node.args["expression"]
        negative = isinstance(operand, exp.Not)
        operand = operand.this if negative else operand
        column = self._column(node.this)
        if column is None or not isinstance(operand, (exp.Null, exp.Boolean)):
            raise _refused(node)
        condition = self._same(column, self._literal(operand))
        return condition.negated() if negative else condition

    def _null_safe(self, node: exp.Expression) -> Condition:
        _plain(node, "this", "expression")
        left, right = node.args["this"], node.args["expression"]
        column = self._column(left)
        if column is None:
            column, right = self._column(right), left
        value = _NOTHING if column is None else self._literal(right)
        if column is None or value is _NOTHING:
            raise _refused(node)
        return self._same(column, value)

    def _same(self, column: pa.Field, value: object) -> Condition:
        if value is None:
            return IsNull(column.name)
        return All(
            (comparison(column.name, "eq", value, column.type), IsNull(column.name, negative=True))
        )

    def _escape(self, node: exp.Expression) -> Condition:
        _plain(node, "this", "expression", "negate")
        escape = self._literal(node.args["expression"])
        if (
            not isinstance(node.this, (exp.Like, exp.ILike))
            or not isinstance(escape, str)
            or len(escape) != 1
        ):
            raise _refused(node, "ESCAPE takes one character")
        condition = self._like(node.this, escape)
        return condition.negated() if node.this.args.get("negate") else condition

    def _like(self, node: exp.Expression, escape: str | None) -> Condition:
        _plain(node, "this", "expression", "negate")
        column = self._column(node.this)
        pattern_node = node.args["expression"]
        if isinstance(pattern_node, exp.Escape):
            escape = self._literal(pattern_node.args["expression"])
            pattern_node = pattern_node.this
        pattern = self._literal(pattern_node)
        if column is None or pattern is _NOTHING or isinstance(pattern, (bytes, bool)):
            raise _refused(node)
        if pattern is None:
            return Constant(None)
        kind = column.type
        if not (
            pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view()
        ):
            raise _refused(node, f"on column {column.name!r} of type {kind}, which is not text")
        regex = _like_regex(str(pattern), escape or "\\", node)
        return Like(column.name, regex, isinstance(node, exp.ILike))

    def _flag(self, node: exp.Expression) -> Condition:
        column = self._column(node)
        if column is None or not pa.types.is_boolean(column.type):
            raise _refused(node, "which is not a condition")
        return comparison(column.name, "eq", True, column.type)


def _decimal(node: exp.Literal) -> object:
    from decimal import Decimal, InvalidOperation

    try:
        return Decimal(str(node.this))
    except InvalidOperation:
        raise _refused(node) from None


def _minus(value: Any) -> object:
    return None if value is None else value.copy_negate()


def _hex(node: exp.HexString) -> bytes:
    try:
        return bytes.fromhex(str(node.this))
    except ValueError:
        raise _refused(node, "X'..' takes pairs of hexadecimal digits") from None


def _like_regex(pattern: str, escape: str, node: exp.Expression) -> str:
    parts, characters = [], iter(pattern)
    for character in characters:
        if character == escape:
            following = next(characters, None)
            if following is None or following not in ("%", "_", escape):
                raise _refused(node, f"{escape!r} in LIKE must be followed by %, _ or itself")
            parts.append(re.escape(following))
        elif character == "%":
            parts.append(".*")
        elif character == "_":
            parts.append(".")
        else:
            parts.append(re.escape(character))
    return r"(?s)\A" + "".join(parts) + r"\z"
