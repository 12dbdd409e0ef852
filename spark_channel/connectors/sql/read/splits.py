"""Splits of about equal rows, and the condition of each split.

A split is all rows, those without a key, or a range of a key: {"kind": "range", "key": names, "lower": values or None,
"upper": values or None}, at least `lower` and below `upper`. It may be narrowed by a "cursor" (see `cursor.py`).
A range or the rows without a key may be divided once more: by a "part", {"key": names, "lower": ..., "upper": ...}.
Splits of some rows are {"kind": "keys", "key": names, "values": keys}, and {"kind": "ranges", "key": names,
"ranges": [[lower, upper]]}, of which none overlap.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa

from spark_channel.connectors.sql.options import SqlReadOptions
from spark_channel.connectors.sql.read.cursor import cursor_conditions
from spark_channel.connectors.sql.read.quantiles import (
    LARGE,
    Key,
    Quantiles,
    beginnings,
    is_odd,
    places_of,
    quantiles_of,
)
from spark_channel.connectors.sql.read.source import ReadSource
from spark_channel.connectors.sql.read.strides import boundaries, parse_bound
from spark_channel.connectors.sql.session import Session
from spark_channel.connectors.sql.statements import known_name
from spark_channel.errors import OptionError
from spark_channel.planning import Split

__all__ = [
    "Key",
    "Quantiles",
    "Splitter",
    "conditions_of",
    "distinct",
    "row_bytes",
    "split_conditions",
]


_SAMPLE_ROWS = 256


class Splitter:
    """Makes the splits of one source. A database overrides `ranges` and `quantiles` with what it can do faster.

    `gently`: the job has a limit, so splits of equal rows are worth less than a short look.
    """

    gently = False
    undivided = ""
    """Why a value that many rows have is one split all the same, as a remark for people."""

    def __init__(
        self, session: Session, source: ReadSource, options: SqlReadOptions, advice: int
    ) -> None:
        self.session, self.source, self.options, self.advice = session, source, options, advice
        self.row_bytes, self._sampled_rows = row_bytes(session, source)

    def splits(self) -> list[Split]:
        """At most about `advice` splits and one of NULLs; [] for a source without rows."""
        sampled = self._sampled_rows
        if not (self.has_rows() if sampled is None else sampled):
            return []
        if self.options.partition_column is not None:
            return self._by_column(self.options.partition_column)
        is_small = sampled is not None and sampled < _SAMPLE_ROWS
        if self.advice == 1 and is_small and not self.gently:  # else ranges that can be made finer
            return [self.whole(sampled)]
        table = self.source.table
        return (None if table is None or table.is_view else self.ranges()) or [self.whole()]

    def ranges(self) -> list[Split] | None:
        """Splits of a table by what its rows are ordered by; None = it has no such thing."""
        table = self.source.table
        key = () if table is None else self.source.dialect.split_key(table)
        return self.stepped(key) if key else None

    def quantiles(self, name: str) -> Quantiles:
        """About `advice` ranges of equal rows over a column that need be neither unique nor indexed.

        The database itself says which values are equal, by its collation.
        """
        source, column = self.source, self.source.ordered(name)
        total, present = self.session.rows(
            source.sql(["COUNT(*)", f"COUNT({source.column(name)})"])
        )[0]
        parts = min(self.advice, present)
        count = min(places_of(parts), present) if parts > 1 else 0
        starts: list[tuple[Any, float]] = []
        if count:
            ranked = source.sql(
                [f"{column} AS k", f"ROW_NUMBER() OVER (ORDER BY {column}) AS n"],
                [f"{source.column(name)} IS NOT NULL"],
            )
            numbers = ", ".join(str(present * place // count + 1) for place in range(count))
            rows_found = self.session.rows(
                f"SELECT k, MIN(n) FROM ({ranked}) ranked WHERE n IN ({numbers}) GROUP BY k ORDER BY 2"  # noqa: S608 - a query that was parsed
            )
            starts = beginnings([(value, int(row_number) - 1) for value, row_number in rows_found])
        return quantiles_of(starts, present, total - present, self.advice)

    def stepped(self, key: Sequence[str]) -> list[Split] | None:
        """Ranges of a unique key, each boundary found by stepping on from the one before."""
        source = self.source
        count = int(self.session.value(source.sql(["COUNT(*)"])))
        parts = max(1, min(self.advice, count))
        places = [count * part // parts for part in range(1, parts)]
        columns = [source.column(name) for name in key]
        bounds: list[Key] = self._dense(columns, count, places)
        before = 0
        for row_number in () if bounds else places:
            conditions = [self.at_least(key, bounds[-1])] if bounds else []
            query = f"{source.sql(columns, conditions)} ORDER BY {', '.join(columns)}"
            rows = self.session.rows(source.dialect.limited(query, 1, row_number - before))
            if not rows:
                break
            bounds.append(list(rows[0]))
            before = row_number
        counts = [end - start for start, end in pairwise([0, *places, count])]
        return self.cut(key, bounds, counts)

    def _dense(self, columns: Sequence[str], count: int, places: Sequence[int]) -> list[Key]:
        """The boundaries of whole numbers without a gap, or []."""
        if len(columns) != 1 or self.source.condition is not None or not places:
            return []
        least, most = self.session.rows(
            self.source.sql([f"MIN({columns[0]})", f"MAX({columns[0]})"])
        )[0]
        whole = isinstance(least, int) and isinstance(most, int) and most - least + 1 == count
        return [[least + row_number] for row_number in places] if whole else []

    def _by_column(self, column: str) -> list[Split]:
        source, options = self.source, self.options
        name = known_name(column, source.names, source.dialect.same_name, "partitionColumn")
        about = source.about(name)
        assert about is not None
        kind = source.dialect.key_type(about, source.read_as(name))
        if kind is None:
            raise OptionError(
                f"option 'partitionColumn' names {name!r}, which is {about.declared}: its values have no "
                "ranges. Name a column of numbers, texts, dates or times, or omit the option",
                option="partitionColumn",
                got=name,
            )
        if options.lower_bound is not None and options.upper_bound is not None:
            lower = parse_bound(options.lower_bound, kind, "lowerBound")
            upper = parse_bound(options.upper_bound, kind, "upperBound")
            steps = boundaries(lower, upper, self.advice)
            quantiles = Quantiles(
                [[source.dialect.bound(step, about)] for step in steps], None, None
            )
        else:
            quantiles = self.quantiles(name)
        if quantiles.rows == 0 and quantiles.nulls is None:  # none of the rows that were looked at
            return [self.whole()]
        return self.by_quantiles(name, quantiles)

    def by_quantiles(self, name: str, quantiles: Quantiles) -> list[Split]:
        """The ranges of a column and its NULLs; those of too many rows are divided."""
        is_known = quantiles.rows and quantiles.counts is not None
        rows = quantiles.counts if is_known else quantiles.rows
        splits = [] if quantiles.rows == 0 else self.cut([name], quantiles.bounds, rows)
        return self.divided([*splits, *self.nulls(name, quantiles.nulls)])

    def divided(self, splits: list[Split]) -> list[Split]:
        """`splits`, of which those with far more than a fair part of the rows are divided by another key."""
        fair = max(1.0, sum(split.rows or 0 for split in splits) / self.advice)
        most = max(LARGE * fair, _SAMPLE_ROWS)
        large = {number: split for number, split in enumerate(splits) if (split.rows or 0) >= most}
        if not large:
            return splits
        key = self.divider()
        if not key:
            self.undivided = self._undivided(list(large.values()), fair)
            return splits
        counts = [round((split.rows or 0) / fair) for split in large.values()]
        bounds = dict(zip(large, self._part_bounds(key, list(large.values()), counts), strict=True))
        return [
            part
            for number, split in enumerate(splits)
            for part in (self._parts(split, key, bounds[number]) if number in large else [split])
        ]

    def divider(self) -> tuple[str, ...]:
        """The key by whose ranges any rows can be divided, so that each is read as surely as by its own key.

        A row that is changed must keep it. () = there is none.
        """
        table = self.source.table
        if table is None or table.is_view:
            return ()
        key, about = self.source.dialect.split_key(table), self.source.about
        columns = [column for name in key if (column := about(name)) is not None]
        never_null = all(self.source.dialect.is_never_null(table, column) for column in columns)
        return tuple(key) if len(columns) == len(key) and never_null else ()

    def looked_at(self) -> tuple[ReadSource, float]:
        """The rows that the ranges were made from, and the share of them."""
        return self.source, 1.0

    def bound_text(self, text: str) -> str:
        """`text`, a column, as what a boundary is taken from."""
        return text

    def _undivided(self, large: Sequence[Split], fair: float) -> str:
        names = ", ".join(dict.fromkeys(str(split.params["key"][0]) for split in large))
        most = max(split.rows or 0 for split in large) / fair
        return (
            f"{self.source.label} has about {most:.1f} times the rows of a fair split with one value of {names}, or "
            f"with NULL, and they stay one split: {self.why_undivided()}"
        )

    def why_undivided(self) -> str:
        """What is missing to divide the rows of one value, and what to do."""
        table = self.source.table
        if table is None or table.is_view:
            return "a view and a query have no other key to divide them by. Name a 'partitionColumn' of more values"
        return (
            "the table has no key of NOT NULL columns to divide them by. Add one, or name a 'partitionColumn' of more "
            "values"
        )

    def _part_bounds(
        self, key: Sequence[str], large: Sequence[Split], counts: Sequence[int]
    ) -> list[list[Key]]:
        """The inner boundaries in `key` that divide each of `large` into so many parts of equal rows: one statement."""
        source, share = self.looked_at()
        conditions = [_all_of(split_conditions(source, split)) for split in large]
        cases = " ".join(f"WHEN {text} THEN {number}" for number, text in enumerate(conditions))
        number_sql = f"CASE {cases} END"
        columns = [source.ordered(name) for name in key]
        ranked = source.sql(
            [
                f"{number_sql} AS g",
                *(f"{column} AS k{index}" for index, column in enumerate(columns)),
                f"ROW_NUMBER() OVER (PARTITION BY {number_sql} ORDER BY {', '.join(columns)}) AS n",
            ],
            [" OR ".join(conditions)],
        )
        chosen = []
        for number, (split, count) in enumerate(zip(large, counts, strict=True)):
            rows = round((split.rows or 0) * share)
            places = sorted({rows * part // count + 1 for part in range(1, count)} - {1})
            if places:
                chosen.append(f"(g = {number} AND n IN ({', '.join(map(str, places))}))")
        bounds: list[list[Key]] = [[] for _ in large]
        if chosen:
            values = ", ".join(self.bound_text(f"k{index}") for index in range(len(key)))
            query = f"SELECT g, {values} FROM ({ranked}) ranked WHERE {' OR '.join(chosen)} ORDER BY g, n"  # noqa: S608 - a query that was parsed
            for number, *values_found in self.session.rows(query):
                if not any(map(is_odd, values_found)):
                    bounds[int(number)].append(values_found)
        return bounds

    def _parts(self, split: Split, key: Sequence[str], bounds: Sequence[Key]) -> list[Split]:
        if not bounds:
            return [split]
        rows = (split.rows or 0) // (len(bounds) + 1)
        edges = [None, *(list(bound) for bound in bounds), None]
        return [
            self._split(
                {**split.params, "part": {"key": list(key), "lower": lower, "upper": upper}}, rows
            )
            for lower, upper in pairwise(edges)
        ]

    def nulls(self, name: str, rows: int | None) -> list[Split]:
        """The split of the rows without a key, where there are such."""
        table, about = self.source.table, self.source.about(name)
        never = (
            table is not None
            and about is not None
            and self.source.dialect.is_never_null(table, about)
        )
        if never or rows == 0:
            return []
        if rows is None and not self.has_rows(self.source.is_null(name)):
            return []
        return [self._split({"kind": "null", "key": [name]}, rows)]

    def cut(
        self, key: Sequence[str], bounds: Sequence[Key], rows: int | Sequence[int] | None
    ) -> list[Split]:
        """The ranges between `bounds`; `rows` are those of all together, or of each."""
        edges = [None, *(list(bound) for bound in bounds), None]
        if rows is None or isinstance(rows, int):
            rows = [-1 if rows is None else max(1, rows // (len(bounds) + 1))] * (len(bounds) + 1)
        return [
            self._split(
                {"kind": "range", "key": list(key), "lower": lower, "upper": upper},
                rows_of_one if rows_of_one >= 0 else None,
            )
            for (lower, upper), rows_of_one in zip(pairwise(edges), rows, strict=False)
        ]

    def whole(self, rows: int | None = None) -> Split:
        """One split of all rows; those of a table that were not counted are estimated by the server."""
        table = self.source.table
        if rows is None and table is not None and not table.is_view:
            rows = self.estimated_rows()
        return self._split({"kind": "all"}, rows)

    def estimated_rows(self) -> int | None:
        """How many rows of a table the server's planner expects, without reading them; None = it does not say."""
        return None

    def has_rows(self, *conditions: str) -> bool:
        """Whether a row meets the user's condition and these."""
        return bool(
            self.session.rows(self.source.dialect.limited(self.source.sql(["1"], conditions), 1))
        )

    def at_least(self, key: Sequence[str], bound: Key) -> str:
        """The condition of rows from `bound` on."""
        return _compared(self.source, key, bound, ">", ">=")

    def _split(self, params: dict[str, Any], rows: int | None) -> Split:
        is_known = rows is not None and self.row_bytes is not None
        nbytes = rows * self.row_bytes if is_known else None  # type: ignore[operator] # known: neither is None
        return Split({**params, "row_bytes": self.row_bytes}, rows, nbytes)


def _all_of(conditions: Sequence[str]) -> str:
    return "(" + " AND ".join(f"({condition})" for condition in conditions) + ")"


def distinct(values: Sequence[Any]) -> list[Key]:
    """Boundaries of ascending values, the first of which is the least: each once, and none below which nothing is."""
    bounds: list[Key] = []
    for value in values[1:]:
        if not is_odd(value) and value != (bounds[-1][0] if bounds else values[0]):
            bounds.append([value])
    return bounds


def split_conditions(source: ReadSource, split: Split) -> list[str]:
    """The conditions under which a row belongs to `split`."""
    return conditions_of(source, split.params)


def conditions_of(source: ReadSource, params: Mapping[str, Any]) -> list[str]:
    """`split_conditions` of a split's parameters."""
    within, part = params.get("cursor"), params.get("part")
    return [
        *_key_conditions(source, params),
        *(_in_part(source, **part) if part else ()),
        *(cursor_conditions(source, within) if within else ()),
    ]


def _key_conditions(source: ReadSource, params: Mapping[str, Any]) -> list[str]:
    if params["kind"] == "all":
        return []
    key = params["key"]
    if params["kind"] == "null":
        return [source.is_null(key[0])]
    if params["kind"] == "keys":
        return [_any_of(source, key, params["values"])]
    if params["kind"] == "ranges":
        ranges = [_in_range(source, key, *bounds) for bounds in params["ranges"]]
        return [" OR ".join(f"({' AND '.join(conditions)})" for conditions in ranges)]
    return _in_range(source, key, params["lower"], params["upper"])


def _in_range(source: ReadSource, key: Key, lower: Key | None, upper: Key | None) -> list[str]:
    if lower is None and upper is None:
        return [f"NOT ({source.is_null(key[0])})"]
    conditions = [] if lower is None else [_compared(source, key, lower, ">", ">=")]
    return conditions if upper is None else [*conditions, _compared(source, key, upper, "<", "<")]


def _in_part(source: ReadSource, key: Key, lower: Key | None, upper: Key | None) -> list[str]:
    """Its key is never NULL: without a bound it is all rows."""
    return [] if lower is None and upper is None else _in_range(source, key, lower, upper)


def _any_of(source: ReadSource, key: Sequence[str], values: Sequence[Key]) -> str:
    """(a, b) is one of these; said so that an index is used."""
    if len(key) == 1:
        values_sql = ", ".join(source.literal(key[0], value) for (value,) in values)
        return f"{source.column(key[0])} IN ({values_sql})"
    return " OR ".join(
        "("
        + " AND ".join(
            f"{source.column(name)} = {source.literal(name, part)}"
            for name, part in zip(key, value, strict=True)
        )
        + ")"
        for value in values
    )


def _compared(source: ReadSource, key: Sequence[str], bound: Key, inner: str, last: str) -> str:
    """(a, b) >= (x, y), or <; said so that an index is used."""
    columns = [source.ordered(name) for name in key]
    values = [source.literal(name, value) for name, value in zip(key, bound, strict=True)]
    if len(columns) == 1:
        return f"{columns[0]} {last} {values[0]}"
    if source.dialect.row_values:
        return f"({', '.join(columns)}) {last} ({', '.join(values)})"
    tail = _compared(source, key[1:], bound[1:], inner, last)
    return f"{columns[0]} {inner}= {values[0]} AND ({columns[0]} {inner} {values[0]} OR ({tail}))"


def row_bytes(session: Session, source: ReadSource) -> tuple[int | None, int | None]:
    """Arrow bytes of a row: fixed widths, and the mean of the others over the first rows; None = not known.

    And how many rows were looked at, up to `_SAMPLE_ROWS`; None = none was.
    """
    fixed, varying = 0, []
    for column in source.columns:
        width = _width(column.kind)
        fixed += width
        if not width:
            size = source.dialect.size(source.column(column.name))
            if size is None:
                return None, None
            varying.append(f"COALESCE({size}, 0)")
    if not varying:
        return max(1, fixed), None
    sample = source.dialect.limited(source.sql([f"{_sum(varying)} AS size_of"]), _SAMPLE_ROWS)
    ((total, rows),) = session.rows(f"SELECT SUM(size_of), COUNT(*) FROM ({sample}) sampled")  # noqa: S608 - a query that was parsed
    mean = round(float(total) / int(rows)) if rows else 0
    return max(1, fixed + 4 * len(varying) + mean), int(rows)


def _sum(terms: Sequence[str]) -> str:
    """The terms added in pairs: databases bound the depth of an expression, and a table may have 1 000 columns."""
    if len(terms) == 1:
        return terms[0]
    middle = len(terms) // 2
    return f"({_sum(terms[:middle])} + {_sum(terms[middle:])})"


def _width(kind: pa.DataType) -> int:
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return 0
