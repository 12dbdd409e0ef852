"""Column lists in Spark's syntax (`id BIGINT, price DECIMAL(10, 2)`), as Arrow and SQL types."""

from functools import cache
from typing import Any

import pyarrow as pa

from spark_channel.connectors.sql.parser import exp, sqlglot
from spark_channel.errors import OptionError

__all__ = ["arrow_columns", "sql_columns"]


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
    return {name: _arrow(kind, name, text, option) for name, kind in _definitions(text, option).items()}


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
    found: dict[str, exp.DataType] = {}
    for column in tree.this.expressions:
        kind = column.args.get("kind") if isinstance(column, exp.ColumnDef) else None
        if not isinstance(kind, exp.DataType) or column.args.get("constraints"):
            raise wrong
        if column.name.lower() in (name.lower() for name in found):
            raise OptionError(
                f"option {option!r} names column {column.name!r} twice", option=option, got=text
            )
        found[column.name] = kind
    if not found:
        raise wrong
    return found


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
