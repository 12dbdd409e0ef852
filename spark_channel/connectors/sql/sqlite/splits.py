"""How a source is cut into splits of about equal rows, by rowid, key, or the partition column."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from itertools import pairwise
from typing import Any

import pyarrow as pa
from sqlglot import exp

from spark_channel.connectors.sql.cursor import range_conditions
from spark_channel.connectors.sql.sqlite.column_types import is_text_decimal
from spark_channel.connectors.sql.sqlite.database import Session
from spark_channel.connectors.sql.sqlite.options import SqliteReadOptions
from spark_channel.connectors.sql.sqlite.source import ReadSource
from spark_channel.connectors.sql.sqlite.tables import same_name
from spark_channel.connectors.sql.statements import Node
from spark_channel.connectors.sql.stride import Bound, boundaries, parse_bound
from spark_channel.errors import OptionError
from spark_channel.planning import Split

__all__ = ["make_splits", "mean_row_bytes", "split_conditions"]

_PROBES = 64
_SAMPLE_ROWS = 256

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Range:
    """Rows whose key is at least `lower` and below `upper`; None = open."""

    lower: Key | None
    upper: Key | None
    rows: int | None


def make_splits(session: Session, source: ReadSource, options: SqliteReadOptions, advice: int) -> list[Split]:
    """At most about `advice` splits; [] for a source without rows. One scan of keys at most."""
    if options.partition_column is not None:
        return _by_partition_column(session, source, options, advice)
    key = _key(source)
    if key is None:
        some = session.rows(source.select([exp.Literal.number(1)]).limit(1).sql("sqlite"))
        return [_split({"kind": "all"}, None, mean_row_bytes(session, source, None))] if some else []
    count = _count(session, source)
    if count == 0:
        return []
    row_bytes = mean_row_bytes(session, source, key)
    ranges = _quantiles(session, source, key, count, min(advice, count))
    return [
        _split(
            {"kind": "range", "key": list(key), "lower": each.lower, "upper": each.upper},
            each.rows,
            row_bytes,
        )
        for each in ranges
    ]


def split_conditions(source: ReadSource, split: Split) -> tuple[list[Node], list[Any]]:
    """The conditions of a split, and their parameters in order."""
    conditions, values = _key_conditions(source, split)
    if (within := split.params.get("cursor")) is not None:
        more, bounds = range_conditions(source.column(within["column"]), within)
        return [*conditions, *more], [*values, *bounds]
    return conditions, values


def _key_conditions(source: ReadSource, split: Split) -> tuple[list[Node], list[Any]]:
    params = split.params
    if params["kind"] == "all":
        return [], []
    if params["kind"] == "null":
        return [exp.Is(this=source.column(params["key"][0]), expression=exp.Null())], []
    key = [source.column(name) for name in params["key"]]
    conditions: list[Node] = []
    values: list[Any] = []
    for bound, compare in ((params["lower"], exp.GTE), (params["upper"], exp.LT)):
        if bound is not None:
            conditions.append(_compare(compare, key))
            values.extend(bound)
    if not conditions:
        conditions.append(exp.Not(this=exp.Is(this=key[0], expression=exp.Null())))
    return conditions, values


def _split(params: dict[str, Any], rows: int | None, row_bytes: int) -> Split:
    return Split({**params, "row_bytes": row_bytes}, rows, None if rows is None else rows * row_bytes)


def _compare(kind: type[Node], key: Sequence[Node]) -> Node:
    marks: list[Node] = [exp.Placeholder() for _ in key]
    if len(key) == 1:
        return kind(this=key[0].copy(), expression=marks[0])
    return kind(
        this=exp.Tuple(expressions=[each.copy() for each in key]), expression=exp.Tuple(expressions=marks)
    )


def _key(source: ReadSource) -> tuple[str, ...] | None:
    """What orders the rows without a sort and is unique: the rowid, or the key of a table WITHOUT ROWID."""
    table = source.table
    if table is None or table.is_view:
        return None
    if table.without_rowid:
        return table.key
    if table.rowid is not None:
        return (table.rowid,)
    alias = table.rowid_alias()
    return None if alias is None else (alias,)


def _count(session: Session, source: ReadSource) -> int:
    return int(session.value(source.select([exp.Count(this=exp.Star())]).sql("sqlite")))


def _quantiles(
    session: Session, source: ReadSource, key: tuple[str, ...], count: int, parts: int
) -> list[_Range]:
    """`parts` ranges of `count` rows in all, each boundary found by stepping on from the one before."""
    columns = [source.column(name) for name in key]
    places = [count * part // parts for part in range(1, parts)]
    found: list[Key] = []
    if places and len(key) == 1 and source.condition is None:
        least, most = session.rows(
            source.select([exp.func("min", columns[0].copy()), exp.func("max", columns[0].copy())]).sql(
                "sqlite"
            )
        )[0]
        if isinstance(least, int) and isinstance(most, int) and most - least + 1 == count:
            found = [(least + place,) for place in places]
    if not found:
        before = 0
        for place in places:
            conditions = [_compare(exp.GTE, columns)] if found else []
            query = (
                source.select([column.copy() for column in columns], conditions)
                .order_by(*(column.copy() for column in columns))
                .limit(1)
                .offset(place - before)
            )
            rows = session.rows(query.sql("sqlite"), found[-1] if found else ())
            if not rows:
                break
            found.append(rows[0])
            before = place
    edges: list[Key | None] = [None, *found, None]
    counts = [end - start for start, end in zip([0, *places], [*places, count], strict=True)]
    return [
        _Range(lower, upper, rows)
        for lower, upper, rows in zip(edges[:-1], edges[1:], counts[: len(edges) - 1], strict=True)
    ]


def _by_partition_column(
    session: Session, source: ReadSource, options: SqliteReadOptions, advice: int
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
    row_bytes = mean_row_bytes(session, source, None)
    total, present = session.rows(
        source.select([exp.Count(this=exp.Star()), exp.Count(this=column.copy())]).sql("sqlite")
    )[0]
    splits: list[Split] = []
    if present:
        if options.lower_bound is not None and options.upper_bound is not None:
            keys = _stride(source, name, options, advice)
        else:
            keys = _column_quantiles(session, source, column, present, min(advice, present))
        edges = [None, *keys, None]
        for lower, upper in pairwise(edges):
            params = {
                "kind": "range",
                "key": [name],
                "lower": None if lower is None else [lower],
                "upper": None if upper is None else [upper],
            }
            splits.append(_split(params, None if len(keys) else present, row_bytes))
    if total > present:
        splits.append(_split({"kind": "null", "key": [name]}, total - present, row_bytes))
    return splits


def _column_quantiles(
    session: Session, source: ReadSource, column: exp.Column, count: int, parts: int
) -> list[Any]:
    """Boundaries of `parts` ranges of equal rows over a column that need be neither unique nor indexed."""
    places = sorted({count * part // parts for part in range(1, parts)})
    if not places:
        return []
    number = exp.Window(this=exp.RowNumber(), order=exp.Order(expressions=[column.copy()]))
    ranked = source.select(
        [exp.alias_(column.copy(), "k"), exp.alias_(number, "n")],
        [exp.Not(this=exp.Is(this=column.copy(), expression=exp.Null()))],
    ).subquery("ranked")
    # The row at place p is number p + 1.
    query = (
        exp.select("k")
        .from_(ranked)
        .where(exp.In(this=exp.column("n"), expressions=[exp.Literal.number(place + 1) for place in places]))
        .order_by("n")
    )
    found: list[Any] = []
    for (value,) in session.rows(query.sql("sqlite")):
        if not found or found[-1] != value:
            found.append(value)
    return found


def _stride(source: ReadSource, name: str, options: SqliteReadOptions, advice: int) -> list[Any]:
    about = next((column for column in source.columns if column.name == name), None)
    declared = next(column.declared for column in source.all_columns if column.name == name)
    if is_text_decimal(declared):
        raise OptionError(
            f"option 'partitionColumn' names {name!r}, which keeps its decimals as text: a stride of numbers "
            "does not fit it. Leave 'lowerBound' and 'upperBound' away",
            option="partitionColumn",
            got=name,
        )
    kind = about.kind if about is not None else _kind(declared)
    assert options.lower_bound is not None
    assert options.upper_bound is not None
    lower = parse_bound(options.lower_bound, kind, "lowerBound")
    upper = parse_bound(options.upper_bound, kind, "upperBound")
    return [_stored(bound) for bound in boundaries(lower, upper, advice)]


def _kind(declared: str) -> pa.DataType:
    from spark_channel.connectors.sql.sqlite.column_types import arrow_type

    return arrow_type(declared) or pa.int64()


def _stored(bound: Bound) -> int | str:
    """A bound as this connector stores such a value."""
    if isinstance(bound, datetime):
        zone = "" if bound.tzinfo is None else "Z"
        return bound.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds") + zone
    if isinstance(bound, date):
        return bound.isoformat()
    return bound


def mean_row_bytes(session: Session, source: ReadSource, key: tuple[str, ...] | None) -> int:
    """Arrow bytes of a row: fixed widths, and the mean of the others over a sample."""
    fixed = sum(_width(column.kind) for column in source.columns)
    varying = [
        source.column(column.name)
        for column in source.columns
        if pa.types.is_string(column.kind) or pa.types.is_binary(column.kind)
    ]
    if not varying:
        return max(fixed, 1)
    lengths: Node = exp.Literal.number(0)
    for column in varying:
        size = exp.func("length", exp.cast(column, "BLOB", dialect="sqlite"), dialect="sqlite")
        lengths = exp.Add(this=lengths, expression=exp.func("coalesce", size, exp.Literal.number(0)))
    sizes = _probe(session, source, key, lengths) if key and len(key) == 1 else []
    if not sizes:
        sample = source.select([exp.alias_(lengths, "size")]).limit(_SAMPLE_ROWS)
        sizes = [int(size) for (size,) in session.rows(sample.sql("sqlite"))]
    mean = sum(sizes) / len(sizes) if sizes else 0
    return max(1, fixed + 4 * len(varying) + round(mean))


def _probe(session: Session, source: ReadSource, key: tuple[str, ...], lengths: Node) -> list[int]:
    """The varying bytes of rows spread evenly over the values of an integer key."""
    column = source.column(key[0])
    ends = source.select([exp.func("min", column.copy()), exp.func("max", column.copy())])
    least, most = session.rows(ends.sql("sqlite"))[0]
    if not isinstance(least, int) or not isinstance(most, int):
        return []
    query = (
        source.select([exp.alias_(lengths.copy(), "size")], [_compare(exp.GTE, [column])])
        .order_by(column.copy())
        .limit(1)
        .sql("sqlite")
    )
    step = max(1, (most - least) // _PROBES)
    places = range(least, most + 1, step)[: _PROBES + 1]
    return [int(size) for place in places for (size,) in session.rows(query, (place,))]


def _width(kind: pa.DataType) -> int:
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return 0
