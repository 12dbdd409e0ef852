"""How a source is cut into splits of about equal rows, by its key or by the partition column."""

from collections.abc import Mapping
from datetime import datetime
from itertools import pairwise
from typing import Any

import pyarrow as pa

from spark_channel.connectors.sql.mysql.column_types import arrow_type, parts
from spark_channel.connectors.sql.mysql.dives import even_ranges
from spark_channel.connectors.sql.mysql.options import MysqlReadOptions
from spark_channel.connectors.sql.mysql.session import Session
from spark_channel.connectors.sql.mysql.source import ReadSource
from spark_channel.connectors.sql.mysql.tables import same_name
from spark_channel.connectors.sql.stride import Bound, boundaries, parse_bound
from spark_channel.errors import OptionError, SourceError
from spark_channel.planning import Split

__all__ = ["cursor_conditions", "cursor_literal", "make_splits", "mean_row_bytes", "split_conditions"]

_SAMPLE_ROWS = 1_000
_MARIADB_EXPLAINS = 10
"""So many columns has a plan of MariaDB's; MySQL's have two more."""
_LARGE_BYTES = 64 << 20
"""From here on a scan of the keys costs a server more than the exact number of rows is worth."""


def make_splits(session: Session, source: ReadSource, options: MysqlReadOptions, advice: int) -> list[Split]:
    """At most `advice` splits and one of NULLs; [] for a source without rows.

    A large table with an integer key is cut by its index's estimates; else the keys are counted and stepped through.
    """
    row_bytes = mean_row_bytes(session, source)
    if options.partition_column is not None:
        return _by_partition_column(session, source, options, advice, row_bytes)
    key = source.table.split_key() if source.table is not None and not source.table.is_view else None
    if key is None or advice == 1:
        some = session.rows(source.sql(["1"]) + " LIMIT 1")
        return [Split({"kind": "all", "row_bytes": row_bytes})] if some else []
    if len(key) == 1 and source.condition is None and _is_large(session, source):
        least, most = session.rows(source.sql([f"{end}({source.column(key[0])})" for end in ("MIN", "MAX")]))[
            0
        ]
        if isinstance(least, int) and isinstance(most, int):
            return _estimated(session, source, key, least, most, advice, row_bytes)
    count = int(session.value(source.sql(["COUNT(*)"])))
    if count == 0:
        return []
    advice = min(advice, count)
    places = [count * part // advice for part in range(1, advice)]
    found = _stepped(session, source, key, count, places)
    counts = [end - start for start, end in pairwise([0, *places, count])]
    return [
        _range(key, lower, upper, rows, row_bytes)
        for (lower, upper), rows in zip(pairwise([None, *found, None]), counts, strict=False)
    ]


def split_conditions(session: Session, source: ReadSource, split: Split) -> list[str]:
    """The conditions of a split, as SQL."""
    within = split.params.get("cursor")
    more = cursor_conditions(session, source, within) if within else []
    return [*_key_conditions(session, source, split), *more]


def cursor_conditions(session: Session, source: ReadSource, within: Mapping[str, Any]) -> list[str]:
    """Rows after `within["after"]` (None: all), up to `within["upto"]` (None: no row), of a cursor column."""
    if within["upto"] is None:
        return ["FALSE"]
    name = within["column"]
    column = source.column(name)
    conditions = [f"{column} <= {cursor_literal(session, source, name, within['upto'])}"]
    if within["after"] is not None:
        conditions.append(f"{column} > {cursor_literal(session, source, name, within['after'])}")
    return conditions


def cursor_literal(session: Session, source: ReadSource, name: str, value: Any) -> str:
    """A cursor value as its column compares it: a decimal that is compared with a text is compared as a float.

    Raises:
        SourceError: no value of such a column.
    """
    declared = source.declared(name)
    kind = arrow_type(name, declared)
    if pa.types.is_integer(kind) != isinstance(value, int) or isinstance(value, float):
        raise SourceError(
            f"the checkpoint {value!r} is no position in cursor column {name!r} ({declared}): it is damaged, or of "
            "another source. Reset the tunnel, or begin with a new checkpoint directory"
        )
    literal = session.literal(value)
    if pa.types.is_decimal(kind):
        return f"CAST({literal} AS DECIMAL({kind.precision},{kind.scale}))"
    if pa.types.is_date(kind):
        return f"CAST({literal} AS DATE)"
    return f"CAST({literal} AS DATETIME(6))" if pa.types.is_timestamp(kind) else literal


def _key_conditions(session: Session, source: ReadSource, split: Split) -> list[str]:
    params = split.params
    if params["kind"] == "all":
        return []
    columns = [_comparable(source, name) for name in params["key"]]
    if params["kind"] == "null":
        return [f"{columns[0]} IS NULL"]
    conditions = []
    if params["lower"] is not None:
        conditions.append(_at_least(columns, [session.literal(each) for each in params["lower"]]))
    if params["upper"] is not None:
        conditions.append(_below(columns, [session.literal(each) for each in params["upper"]]))
    return conditions or [f"{columns[0]} IS NOT NULL"]


def _at_least(columns: list[str], values: list[str]) -> str:
    """(a, b) >= (x, y), said so that an index on a is used."""
    if len(columns) == 1:
        return f"{columns[0]} >= {values[0]}"
    rest = _at_least(columns[1:], values[1:])
    return f"{columns[0]} >= {values[0]} AND ({columns[0]} > {values[0]} OR ({rest}))"


def _below(columns: list[str], values: list[str]) -> str:
    if len(columns) == 1:
        return f"{columns[0]} < {values[0]}"
    rest = _below(columns[1:], values[1:])
    return f"{columns[0]} <= {values[0]} AND ({columns[0]} < {values[0]} OR ({rest}))"


def _comparable(source: ReadSource, name: str) -> str:
    """A column as what its order and its comparisons with literals agree on."""
    column = source.column(name)
    kind = parts(source.declared(name))[0]
    if kind in ("enum", "set", "json"):
        return f"CAST({column} AS CHAR CHARACTER SET utf8mb4) COLLATE utf8mb4_bin"
    if kind == "bit":
        return f"CAST({column} AS UNSIGNED)"
    return f"({column} + 0e0)" if kind == "float" else column


def _is_large(session: Session, source: ReadSource) -> bool:
    assert source.table is not None
    size = session.value(
        "SELECT data_length FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
        (source.table.database, source.table.name),
    )
    return int(size or 0) >= _LARGE_BYTES


def _estimated(
    session: Session,
    source: ReadSource,
    key: tuple[str, ...],
    least: int,
    most: int,
    advice: int,
    row_bytes: int,
) -> list[Split]:
    column = source.column(key[0])

    def estimate(*conditions: str) -> int:
        row = session.rows("EXPLAIN " + source.sql(["1"], conditions))[0]
        return int(row[8 if len(row) == _MARIADB_EXPLAINS else 9] or 0)

    ranges = even_ranges(
        least, most, advice, lambda start, end: estimate(f"{column} >= {start}", f"{column} < {end}")
    )
    total = estimate()
    return [
        _range(
            key,
            (start,) if start > least else None,
            (end,) if end <= most else None,
            round(total * share),
            row_bytes,
        )
        for start, end, share in ranges
    ]


def _stepped(
    session: Session, source: ReadSource, key: tuple[str, ...], count: int, places: list[int]
) -> list[tuple[Any, ...]]:
    """The keys at `places` of a unique key, each found by stepping on from the one before."""
    columns = [source.column(name) for name in key]
    if not places:
        return []
    if len(key) == 1 and source.condition is None:
        least, most = session.rows(source.sql([f"MIN({columns[0]})", f"MAX({columns[0]})"]))[0]
        if isinstance(least, int) and isinstance(most, int) and most - least + 1 == count:
            return [(least + place,) for place in places]
    found: list[tuple[Any, ...]] = []
    before = 0
    for place in places:
        conditions = [_at_least(columns, [session.literal(each) for each in found[-1]])] if found else []
        rows = session.rows(
            source.sql(columns, conditions) + f" ORDER BY {', '.join(columns)} LIMIT {place - before}, 1"
        )
        if not rows:
            break
        found.append(tuple(rows[0]))
        before = place
    return found


def _by_partition_column(
    session: Session, source: ReadSource, options: MysqlReadOptions, advice: int, row_bytes: int
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
    column = _comparable(source, name)
    total, present = session.rows(source.sql(["COUNT(*)", f"COUNT({source.column(name)})"]))[0]
    splits: list[Split] = []
    if present:
        if options.lower_bound is not None and options.upper_bound is not None:
            kind = arrow_type(name, source.declared(name))
            lower = parse_bound(options.lower_bound, kind, "lowerBound")
            upper = parse_bound(options.upper_bound, kind, "upperBound")
            keys = [_text(bound) for bound in boundaries(lower, upper, advice)]
        else:
            keys = _quantiles(session, source, column, present, min(advice, present))
        for start, end in pairwise([None, *keys, None]):
            rows = present if not keys else None
            splits.append(
                _range(
                    (name,),
                    None if start is None else (start,),
                    None if end is None else (end,),
                    rows,
                    row_bytes,
                )
            )
    if total > present:
        params = {"kind": "null", "key": [name], "row_bytes": row_bytes}
        splits.append(Split(params, total - present, (total - present) * row_bytes))
    return splits


def _quantiles(session: Session, source: ReadSource, column: str, count: int, parts: int) -> list[Any]:
    """Boundaries of `parts` ranges of about equal rows over a column that need be neither unique nor indexed."""
    places = sorted({count * part // parts + 1 for part in range(1, parts)})
    if not places:
        return []
    ranked = source.sql(
        [f"{column} AS k", f"ROW_NUMBER() OVER (ORDER BY {column}) AS n"], [f"{column} IS NOT NULL"]
    )
    rows = session.rows(
        f"SELECT k FROM ({ranked}) AS ranked WHERE n IN ({', '.join(map(str, places))}) ORDER BY n"  # noqa: S608
    )
    least = session.value(source.sql([f"MIN({column})"]))
    found: list[Any] = []
    for (value,) in rows:
        if value != (found[-1] if found else least):
            found.append(value)
    return found


def _range(
    key: tuple[str, ...],
    lower: tuple[Any, ...] | None,
    upper: tuple[Any, ...] | None,
    rows: int | None,
    row_bytes: int,
) -> Split:
    params = {"kind": "range", "key": list(key), "lower": lower, "upper": upper, "row_bytes": row_bytes}
    return Split(params, rows, None if rows is None else rows * row_bytes)


def _text(bound: Bound) -> int | str:
    if isinstance(bound, datetime):
        return bound.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
    return bound if isinstance(bound, int) else bound.isoformat()


def mean_row_bytes(session: Session, source: ReadSource) -> int:
    """Arrow bytes of a row: fixed widths, and the mean of texts and blobs over the first rows."""
    fixed, varying = 0, []
    for column in source.columns:
        if column.is_raw:
            varying.append(f"COALESCE(OCTET_LENGTH({source.column(column.name)}), 0)")
        else:
            fixed += max(1, int(column.kind.bit_width) // 8)
    if not varying:
        return max(1, fixed)
    sample = source.sql([f"{' + '.join(varying)} AS size"]) + f" LIMIT {_SAMPLE_ROWS}"
    mean = session.value(f"SELECT AVG(size) FROM ({sample}) AS sampled") or 0  # noqa: S608 - quoted above
    return max(1, fixed + 4 * len(varying) + round(mean))
