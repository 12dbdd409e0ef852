"""sqlglot, imported when SQL is first parsed: a job that names a plain table never needs it.

Its import takes 30 to 60 ms, in each Python process that plans a job of Spark.
"""

from typing import TYPE_CHECKING, Any, TypeAlias

from spark_channel import lazy

if TYPE_CHECKING:
    import sqlglot
    from sqlglot import exp

    tokens: Any
    Node: TypeAlias = exp.Expr
else:
    sqlglot, exp, tokens = map(lazy.LazyModule, ("sqlglot", "sqlglot.expressions", "sqlglot.tokens"))
    Node = Any
"""Any part of a parsed statement."""

__all__ = ["Node", "exp", "sqlglot", "tokens"]
