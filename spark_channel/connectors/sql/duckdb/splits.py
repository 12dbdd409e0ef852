"""How a source is cut into splits of about equal rows: by row number, or by the partition column."""

from collections.abc import Mapping
from datetime import datetime
from itertools import pairwise
from typing import Any

from spark_channel.connectors.sql.duckdb.column_types import arrow_type
from spark_channel.connectors.sql.duckdb.database import Session, literal_cast
from spark_channel.connectors.sql.duckdb.options import DuckdbReadOptions
from spark_channel.connectors.sql.duckdb.source import ReadSource
from spark_channel.connectors.sql.duckdb.tables import same_name
from spark_channel.connectors.sql.stride import Bound, boundaries, parse_bound
from spark_channel.errors import OptionError
from spark_channel.planning import Split

__all__ = ["cursor_conditions", "make_splits", "mean_row_bytes", "split_conditions"]

_BUCKETS = 64
"""Ranges of row numbers that are counted for each split: boundaries are this fine."""
_EVEN = 1.2
_SAMPLE_ROWS = 1_000


def make_splits(session: Session, source: ReadSource, options: DuckdbReadOptions, advice: int) -> list[Split]:
    """At most `advice` splits and one of NULLs; [] for a source without rows.

    One column is scanned at most; its row numbers twice, where most rows have few of them.
    """
    row_bytes = mean_row_bytes(session, source)
    if options.partition_column is not None:
        return _by_partition_column(session, source, options, advice, row_bytes)
    if source.table is None or source.table.is_view:
        some = session.rows(source.sql(["1"]) + " LIMIT 1")
        return [Split({"kind": "all", "row_bytes": row_bytes})] if some else []
    return _by_row_number(session, source, advice, row_bytes)


def split_conditions(source: ReadSource, split: Split) -> list[str]:
    """The conditions of a split, as SQL."""
    within = split.params.get("cursor")
    return [*_key_conditions(source, split), *(cursor_conditions(source, within) if within else ())]


def cursor_conditions(source: ReadSource, within: Mapping[str, Any]) -> list[str]:
    """Rows after `within["after"]` (None: all), up to `within["upto"]` (None: no row), of a cursor column."""
    if within["upto"] is None:
        return ["false"]
    column, declared = source.column(within["column"]).sql("duckdb"), source.declared(within["column"])
    return [
        f"{column} {compare} {literal_cast(str(bound), declared)}"
        for compare, bound in ((">", within["after"]), ("<=", within["upto"]))
        if bound is not None
    ]


def _key_conditions(source: ReadSource, split: Split) -> list[str]:
    params = split.params
    if params["kind"] == "all":
        return []
    column = source.column(params["key"]).sql("duckdb")
    if params["kind"] == "null":
        return [f"{column} IS NULL"]
    declared = params["declared"]
    conditions = [
        f"{column} {compare} {literal_cast(bound, declared)}"
        for compare, bound in ((">=", params["lower"]), ("<", params["upper"]))
        if bound is not None
    ]
    return conditions or [f"{column} IS NOT NULL"]


def _by_row_number(session: Session, source: ReadSource, advice: int, row_bytes: int) -> list[Split]:
    rowid = source.column("rowid").sql("duckdb")
    count, least, most = session.rows(source.sql(["count(*)", f"min({rowid})", f"max({rowid})"]))[0]
    if not count:
        return []
    advice = min(advice, count)
    if advice == 1:
        return [Split({"kind": "all", "row_bytes": row_bytes}, count, count * row_bytes)]
    step = max(1, (most - least + 1) // (advice * _BUCKETS))
    buckets = session.rows(
        source.sql([f"({rowid} - {least}) // {step}", "count(*)"]) + " GROUP BY 1 ORDER BY 1"
    )
    edges, counts = _merge(buckets, count, advice)
    starts = [str(least + edge * step) for edge in edges]
    if len(counts) < advice or max(counts) > _EVEN * min(counts):  # most rows are in few buckets
        starts = _quantiles(session, source, rowid, advice)
        counts = [count // (len(starts) + 1)] * (len(starts) + 1)
    bounds = [None, *starts, None]
    return [
        _range("rowid", "BIGINT", lower, upper, rows, row_bytes)
        for (lower, upper), rows in zip(pairwise(bounds), counts, strict=True)
    ]


def _merge(buckets: list[tuple[Any, ...]], count: int, parts: int) -> tuple[list[int], list[int]]:
    """Where to cut ascending (bucket, rows) so that each of at most `parts` holds about the same."""
    edges: list[int] = []
    counts: list[int] = []
    held = passed = 0
    for bucket, rows in buckets:
        if held and passed + rows / 2 > count * (len(edges) + 1) / parts and len(edges) < parts - 1:
            edges.append(int(bucket))
            counts.append(held)
            held = 0
        held += rows
        passed += rows
    return edges, [*counts, held]


def _by_partition_column(
    session: Session, source: ReadSource, options: DuckdbReadOptions, advice: int, row_bytes: int
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
    column, declared = source.column(name).sql("duckdb"), source.declared(name)
    kind = arrow_type(declared)
    if kind is None:
        raise OptionError(
            f"option 'partitionColumn' names {name!r}, which is {declared}: a nested value has no ranges",
            option="partitionColumn",
            got=name,
        )
    total, present = session.rows(source.sql(["count(*)", f"count({column})"]))[0]
    splits: list[Split] = []
    if present:
        if options.lower_bound is not None and options.upper_bound is not None:
            lower = parse_bound(options.lower_bound, kind, "lowerBound")
            upper = parse_bound(options.upper_bound, kind, "upperBound")
            keys = [_text(bound) for bound in boundaries(lower, upper, advice)]
        else:
            keys = _quantiles(session, source, column, min(advice, present))
        for start, end in pairwise([None, *keys, None]):
            rows = present if not keys else None
            splits.append(_range(name, declared, start, end, rows, row_bytes))
    if total > present:
        params = {"kind": "null", "key": name, "declared": declared, "row_bytes": row_bytes}
        splits.append(Split(params, total - present, (total - present) * row_bytes))
    return splits


def _quantiles(session: Session, source: ReadSource, column: str, parts: int) -> list[str]:
    """Texts of the boundaries of `parts` ranges of about equal rows."""
    if parts < 2:
        return []
    places = ", ".join(str(part / parts) for part in range(1, parts))
    values = source.sql([f"unnest(quantile_disc({column}, [{places}])) AS k"], [f"{column} IS NOT NULL"])
    rows = session.rows(f"SELECT DISTINCT k, CAST(k AS VARCHAR) FROM ({values}) ORDER BY k")  # noqa: S608 - quoted above
    least = session.value(source.sql([f"CAST(min({column}) AS VARCHAR)"]))
    return [str(text) for _, text in rows if text != least]


def _range(
    key: str, declared: str, lower: str | None, upper: str | None, rows: int | None, row_bytes: int
) -> Split:
    params = {"kind": "range", "key": key, "declared": declared, "lower": lower, "upper": upper}
    return Split({**params, "row_bytes": row_bytes}, rows, None if rows is None else rows * row_bytes)


def _text(bound: Bound) -> str:
    if isinstance(bound, datetime):
        return bound.isoformat(sep=" ", timespec="microseconds")
    return str(bound)


def mean_row_bytes(session: Session, source: ReadSource) -> int:
    """Arrow bytes of a row: fixed widths, and the mean of texts and blobs over the first rows."""
    fixed, varying = 0, []
    for column in source.columns:
        try:
            fixed += max(1, int(column.kind.bit_width) // 8)
        except ValueError:
            text = f"CAST({source.column(column.name).sql('duckdb')} AS VARCHAR)"
            varying.append(f"coalesce(strlen({text}), 0)")
    if not varying:
        return max(1, fixed)
    sample = source.sql([f"{' + '.join(varying)} AS size"]) + f" LIMIT {_SAMPLE_ROWS}"
    mean = session.value(f"SELECT avg(size) FROM ({sample})") or 0  # noqa: S608 - quoted above
    return max(1, fixed + 4 * len(varying) + round(mean))
