"""How a source is cut into splits of about equal rows: by a key's quantiles, JDBC's stride, or pages.

Quantiles come from the statistics of ANALYZE where they are fresh, else from a sample of pages, and from all
rows of what is small, a view or a query. Bounds travel as PostgreSQL's own texts: a quoted literal takes the
type of the column that it is compared with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from itertools import pairwise
from typing import Any

import pyarrow as pa
import sqlglot
from sqlglot import exp

from spark_channel.connectors.sql.postgresql.catalog import same_name
from spark_channel.connectors.sql.postgresql.decode import ReadColumn
from spark_channel.connectors.sql.postgresql.options import PostgresReadOptions
from spark_channel.connectors.sql.postgresql.session import Session, literal
from spark_channel.connectors.sql.postgresql.source import ReadSource
from spark_channel.connectors.sql.statements import Node, identifier
from spark_channel.connectors.sql.stride import Bound, boundaries, parse_bound
from spark_channel.errors import OptionError
from spark_channel.planning import Split

__all__ = ["cursor_conditions", "make_splits", "mean_row_bytes", "split_conditions"]

_SMALL_PAGES = 4096
"""A table of at most so many pages (32 MiB) is looked at whole."""
_PAGES_PER_SPLIT = 1000
"""Sampled for each split: the rows of a range then vary by about 3 %."""
_MIN_SAMPLED_PAGES = 3000
_STALE = 0.05
_ROWS_LOOKED_AT = 256

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Quantiles:
    """Inner boundaries of ranges of equal rows, how many rows there are, and whether some key is NULL."""

    bounds: list[Key]
    rows: int | None
    nulls: int | None


def make_splits(session: Session, source: ReadSource, options: PostgresReadOptions, advice: int, *,
                held: bool) -> list[Split]:  # fmt: skip
    """At most about `advice` splits; [] for a source without rows. `held`: a snapshot is held open."""
    if not session.rows(source.select([exp.Literal.number(1)]).limit(1).sql("postgres")):
        return []
    row_bytes = mean_row_bytes(session, source)
    if options.partition_column is not None:
        return _by_partition_column(session, source, options, advice, row_bytes)
    table = source.table
    if held and table is not None and table.kind in ("r", "m"):
        return _by_pages(table.pages, advice, row_bytes)
    key: tuple[str, ...] = ()
    if table is not None:
        key = table.key or ((table.nullable_key,) if table.nullable_key is not None else ())
    if not key:
        return [_split({"kind": "all"}, None, row_bytes)]
    return _by_key(session, source, key, advice, row_bytes)


def split_conditions(source: ReadSource, split: Split) -> list[Node]:
    """The conditions under which a row belongs to `split`."""
    within = split.params.get("cursor")
    return [*_key_conditions(source, split), *(cursor_conditions(source, within) if within else ())]


def cursor_conditions(source: ReadSource, within: Mapping[str, Any]) -> list[Node]:
    """Rows after `within["after"]` (None: all), up to `within["upto"]`, of column `within["column"]`."""
    if within["upto"] is None:
        return [exp.false()]  # the table was empty
    column = source.column(within["column"])
    upto = exp.LTE(this=column, expression=literal(within["upto"]))
    if within["after"] is None:
        return [upto]
    return [exp.GT(this=column.copy(), expression=literal(within["after"])), upto]


def _key_conditions(source: ReadSource, split: Split) -> list[Node]:
    params = split.params
    if params["kind"] == "all":
        return []
    if params["kind"] == "null":
        return [exp.Is(this=source.column(params["key"][0]), expression=exp.Null())]
    columns = [source.column(name) for name in params["key"]]
    conditions: list[Node] = []
    for bound, compare in ((params["lower"], exp.GTE), (params["upper"], exp.LT)):
        if bound is not None:
            conditions.append(_compare(compare, columns, bound))
    if not conditions:
        conditions.append(exp.Not(this=exp.Is(this=columns[0], expression=exp.Null())))
    return conditions


def _compare(kind: type[Node], columns: Sequence[Node], bound: Sequence[str]) -> Node:
    values = [literal(value) for value in bound]
    if len(columns) == 1:
        return kind(this=columns[0].copy(), expression=values[0])
    return kind(
        this=exp.Tuple(expressions=[column.copy() for column in columns]),
        expression=exp.Tuple(expressions=values),
    )


def _split(params: dict[str, Any], rows: int | None, row_bytes: int) -> Split:
    return Split({**params, "row_bytes": row_bytes}, rows, None if rows is None else rows * row_bytes)


def _ranges(key: Sequence[str], bounds: Sequence[Key], rows: int | None, row_bytes: int) -> list[Split]:
    each = None if rows is None else max(1, rows // (len(bounds) + 1))
    edges: list[Key | None] = [None, *bounds, None]
    return [
        _split(
            {
                "kind": "range",
                "key": list(key),
                "lower": None if lower is None else list(lower),
                "upper": None if upper is None else list(upper),
            },
            each,
            row_bytes,
        )
        for lower, upper in pairwise(edges)
    ]


def _by_pages(pages: int, advice: int, row_bytes: int) -> list[Split]:
    """Ranges of the table's pages: good for as long as one snapshot is held, since an update moves a row."""
    parts = max(1, min(advice, pages))
    bounds = [(f"({pages * part // parts},0)",) for part in range(1, parts)]
    return _ranges(("ctid",), bounds, None, row_bytes)


def _by_key(
    session: Session, source: ReadSource, key: tuple[str, ...], advice: int, row_bytes: int
) -> list[Split]:
    nullable = source.table is None or key != source.table.key
    found = _from_statistics(session, source, key, advice) or _from_rows(session, source, key, advice)
    if found.rows == 0 and not found.nulls:  # none of the sampled rows meets the condition
        return [_split({"kind": "all"}, None, row_bytes)]
    splits = _ranges(key, found.bounds, found.rows, row_bytes)
    if nullable and found.nulls != 0:
        splits.append(_split({"kind": "null", "key": list(key)}, found.nulls, row_bytes))
    return splits


def _from_statistics(
    session: Session, source: ReadSource, key: tuple[str, ...], advice: int
) -> _Quantiles | None:
    """The histogram that ANALYZE made of a unique column, where few rows have changed since."""
    table = source.table
    if table is None or source.condition is not None or len(key) != 1 or key not in table.unique:
        return None
    if table.pages <= _SMALL_PAGES or table.kind == "p":
        return None
    query = (
        "SELECT s.histogram_bounds::text::text[], c.reltuples::bigint, "
        "coalesce(t.n_mod_since_analyze, 0)::bigint "
        "FROM pg_catalog.pg_stats s JOIN pg_catalog.pg_class c ON c.oid = {oid} "
        "LEFT JOIN pg_catalog.pg_stat_all_tables t ON t.relid = c.oid "
        "WHERE s.schemaname = {schema} AND s.tablename = {table} AND s.attname = {column} "
        "AND s.most_common_vals IS NULL AND NOT s.inherited AND s.histogram_bounds IS NOT NULL"
    )
    rows = session.rows(
        query.format(
            oid=table.oid,
            schema=literal(table.schema).sql("postgres"),
            table=literal(table.name).sql("postgres"),
            column=literal(key[0]).sql("postgres"),
        )
    )
    if not rows:
        return None
    bounds, count, changed = rows[0]
    buckets = len(bounds) - 1
    parts = min(
        (part for part in range(1, buckets + 1) if buckets % part == 0), key=lambda part: abs(part - advice)
    )
    if changed > _STALE * count or not advice * 0.75 <= parts <= advice * 1.5:
        return None
    step = buckets // parts
    return _Quantiles([(str(bounds[part * step]),) for part in range(1, parts)], int(count), None)


def _from_rows(session: Session, source: ReadSource, key: tuple[str, ...], advice: int) -> _Quantiles:
    sampled, share = _sample(source, advice)
    columns = [source.column(name) for name in key]
    if len(key) == 1:
        found = _of_one_column(session, sampled, source.condition, columns[0], advice)
    else:
        found = _of_several_columns(session, sampled, source.condition, columns, advice)
    if share == 1.0:
        return found
    rows = None if found.rows is None else round(found.rows / share)
    return _Quantiles(found.bounds, rows, None)


def _sample(source: ReadSource, advice: int) -> tuple[Node, float]:
    """What stands in FROM to look at some pages of the table, and the share of them; else at all rows."""
    table = source.table
    wanted = max(_MIN_SAMPLED_PAGES, _PAGES_PER_SPLIT * advice)
    if table is None or table.is_view or table.pages <= max(_SMALL_PAGES, wanted):
        return source.source.expression, 1.0
    share = wanted / table.pages
    tree = sqlglot.parse_one(
        f"SELECT 1 FROM t TABLESAMPLE SYSTEM ({100 * share:.6f}) REPEATABLE (0)",  # noqa: S608 - a number
        read="postgres",
    )
    place = tree.find(exp.Table)
    assert place is not None
    real = table.source.expression
    place.set("this", real.this.copy())
    place.set("db", real.args["db"].copy())
    place.set("alias", exp.TableAlias(this=identifier(source.source.name)))
    return place, share


def _from(sampled: Node, condition: Node | None, expressions: Sequence[Node]) -> exp.Select:
    tree = exp.select(*expressions).from_(sampled.copy())
    return tree if condition is None else tree.where(condition.copy())


def _of_one_column(
    session: Session, sampled: Node, condition: Node | None, column: exp.Column, advice: int
) -> _Quantiles:
    """One aggregate gives the number of rows, of NULLs, and the values at 0, 1/n, 2/n, ..."""
    shares = ", ".join(repr(part / advice) for part in range(advice))
    template = sqlglot.parse_one(
        f"SELECT CAST(percentile_disc(ARRAY[{shares}]) WITHIN GROUP (ORDER BY c) AS TEXT[])",
        read="postgres",
    )
    for place in list(template.find_all(exp.Column)):
        place.replace(column.copy())
    counts = [exp.Count(this=exp.Star()), exp.Count(this=column.copy())]
    query = _from(sampled, condition, [*counts, template.expressions[0]])
    rows, present, values = session.rows(query.sql("postgres"))[0]
    bounds: list[Key] = []
    if values:
        first = str(values[0])
        for value in map(str, values[1:]):
            if value != first and (not bounds or bounds[-1] != (value,)):
                bounds.append((value,))
    return _Quantiles(bounds, int(present), int(rows) - int(present))


def _of_several_columns(
    session: Session, sampled: Node, condition: Node | None, columns: list[exp.Column], advice: int
) -> _Quantiles:
    order = exp.Order(expressions=[column.copy() for column in columns])
    inner = _from(
        sampled,
        condition,
        [
            *(
                exp.alias_(exp.cast(column.copy(), "text"), f"k{number}")
                for number, column in enumerate(columns)
            ),
            exp.alias_(exp.Window(this=exp.RowNumber(), order=order), "n"),
            exp.alias_(exp.Window(this=exp.Count(this=exp.Star())), "total"),
        ],
    ).subquery("ranked")
    names = [exp.column(f"k{number}") for number in range(len(columns))]
    # The first row of each part but the first: floor(total * part / advice) + 1.
    firsts = [f"total * {part} / {advice} + 1" for part in range(1, advice)] or ["1"]
    chosen = exp.In(
        this=exp.column("n"), expressions=[sqlglot.parse_one(text, read="postgres") for text in firsts]
    )
    query = exp.select(*names, "total", "n").from_(inner).where(chosen).order_by("n")
    found = session.rows(query.sql("postgres"))
    bounds = [tuple(map(str, row[:-2])) for row in found if row[-1] > 1]
    return _Quantiles(bounds, int(found[0][-2]) if found else 0, 0)


def _by_partition_column(
    session: Session, source: ReadSource, options: PostgresReadOptions, advice: int, row_bytes: int
) -> list[Split]:
    assert options.partition_column is not None
    names = [column.name for column in source.all_columns]
    name = same_name(options.partition_column, names)
    if name is None:
        raise OptionError(
            f"option 'partitionColumn' names {options.partition_column!r}, which is not there; "
            f"columns: {', '.join(names)}",
            option="partitionColumn",
            got=options.partition_column,
            takes=", ".join(names),
        )
    column = source.column(name)
    not_null = source.table is not None and any(
        each.name == name and each.not_null for each in source.table.columns
    )
    if options.lower_bound is None or options.upper_bound is None:
        found = _from_rows(session, source, (name,), advice)
        splits = _ranges((name,), found.bounds, found.rows, row_bytes) if found.rows != 0 else []
        nulls = found.nulls
        if not splits and not nulls:
            return [_split({"kind": "all"}, None, row_bytes)]
    else:
        about = next(each for each in source.all_columns if each.name == name)
        splits = _ranges((name,), _stride(about, options, advice), None, row_bytes)
        nulls = None
    if nulls is None and not not_null:
        is_null = exp.Is(this=column, expression=exp.Null())
        some = session.rows(source.select([exp.Literal.number(1)], [is_null]).limit(1).sql("postgres"))
        nulls = None if some else 0
    if not not_null and nulls != 0:
        splits.append(_split({"kind": "null", "key": [name]}, nulls, row_bytes))
    return splits


def _stride(about: ReadColumn, options: PostgresReadOptions, advice: int) -> list[Key]:
    kind = pa.int64() if about.typname == "numeric" else about.kind
    assert options.lower_bound is not None
    assert options.upper_bound is not None
    lower = parse_bound(options.lower_bound, kind, "lowerBound")
    upper = parse_bound(options.upper_bound, kind, "upperBound")
    return [(_text(bound),) for bound in boundaries(lower, upper, advice)]


def _text(bound: Bound) -> str:
    if isinstance(bound, datetime):
        return bound.isoformat(sep=" ", timespec="microseconds")
    return bound.isoformat() if isinstance(bound, date) else str(bound)


def mean_row_bytes(session: Session, source: ReadSource) -> int:
    """Arrow bytes of a row: fixed widths, and the mean of the others over some rows."""
    fixed = sum(_width(column.kind) for column in source.columns)
    varying = [column for column in source.columns if not _width(column.kind)]
    if not varying:
        return max(1, fixed)
    sizes = [
        exp.func("coalesce", exp.Anonymous(this="octet_length", expressions=[
            exp.cast(source.column(column.name), "text")]), exp.Literal.number(0))
        for column in varying
    ]  # fmt: skip
    total: Node = sizes[0]
    for size in sizes[1:]:
        total = exp.Add(this=total, expression=size)
    looked_at = source.select([exp.alias_(total, "size")]).limit(_ROWS_LOOKED_AT).subquery("looked_at")
    mean = session.value(
        exp.select(exp.cast(exp.func("avg", exp.column("size")), "float8")).from_(looked_at).sql("postgres")
    )
    return max(1, fixed + 4 * len(varying) + round(mean or 0))


def _width(kind: pa.DataType) -> int:
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return 0
