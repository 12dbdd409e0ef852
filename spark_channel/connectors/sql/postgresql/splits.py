"""Splits by a key's quantiles, or by pages under a held snapshot.

Quantiles come from the statistics of ANALYZE where they are fresh, else from a sample of pages, and from all
rows of what is small, a view or a query. Under a limit few pages do, so that the server sorts for milliseconds.
Bounds travel as PostgreSQL's own texts.
"""

from collections.abc import Sequence
from dataclasses import replace

from spark_channel.connectors.sql.postgresql.catalog import PgTable
from spark_channel.connectors.sql.source import ReadSource
from spark_channel.connectors.sql.splits import Key, Quantiles, Splitter, distinct
from spark_channel.planning import Split

__all__ = ["PostgresSplitter"]

_SMALL_PAGES = 4096
"""A table of at most so many pages (32 MiB) is looked at whole."""
_PAGES_PER_SPLIT = 1000
"""Sampled for each split: the rows of a range then vary by about 3 %."""
_MIN_SAMPLED_PAGES = 3000
_MOST_SAMPLED_PAGES = 50_000
"""400 MiB, whose keys the server sorts in seconds. The many splits of a limited job then vary more, by about 20 %."""
_GENTLE_PAGES, _GENTLE_ROWS = 200, 8
"""Sampled under a limit, where that many rows are found for each split: the rows of a range may vary by a third."""
_STALE = 0.05


class PostgresSplitter(Splitter):
    """`held`: a snapshot is held open, so that rows stay in their pages."""

    held = False

    def ranges(self) -> list[Split] | None:
        table = self._table
        assert table is not None
        if self.held and table.kind in ("r", "m"):
            return self._by_pages(table.pages)
        key = self.source.dialect.split_key(table)
        if not key:
            return None
        found = self._from_statistics(table, key) or self._from_rows(key)
        if found.rows == 0 and not found.nulls:  # none of the sampled rows meets the condition
            return None
        return [*self.cut(key, found.bounds, found.rows), *self.nulls(key[0], found.nulls)]

    def quantiles(self, name: str) -> Quantiles:
        return self._from_rows((name,))

    @property
    def _table(self) -> PgTable | None:
        table = self.source.table
        assert table is None or isinstance(table, PgTable)
        return table

    def _by_pages(self, pages: int) -> list[Split]:
        """Good for as long as one snapshot is held, since an update moves a row."""
        parts = max(1, min(self.advice, pages))
        return self.cut(["ctid"], [[f"({pages * part // parts},0)"] for part in range(1, parts)], None)

    def _from_statistics(self, table: PgTable, key: Sequence[str]) -> Quantiles | None:
        """The histogram that ANALYZE made of a unique column, where few rows have changed since."""
        if self.source.condition is not None or len(key) != 1 or tuple(key) not in table.unique:
            return None
        if table.pages <= _SMALL_PAGES or table.kind == "p":
            return None
        schema, name, column = (
            self.source.dialect.literal(each, None) for each in (table.schema, table.name, key[0])
        )
        rows = self.session.rows(
            "SELECT s.histogram_bounds::text::text[], c.reltuples::bigint, "  # noqa: S608 - quoted
            "coalesce(t.n_mod_since_analyze, 0)::bigint "
            f"FROM pg_catalog.pg_stats s JOIN pg_catalog.pg_class c ON c.oid = {table.oid} "
            "LEFT JOIN pg_catalog.pg_stat_all_tables t ON t.relid = c.oid "
            f"WHERE s.schemaname = {schema} AND s.tablename = {name} AND s.attname = {column} "
            "AND s.most_common_vals IS NULL AND NOT s.inherited AND s.histogram_bounds IS NOT NULL"
        )
        if not rows:
            return None
        bounds, count, changed = rows[0]
        buckets = len(bounds) - 1
        even = (part for part in range(1, buckets + 1) if buckets % part == 0)
        parts = min(even, key=lambda part: abs(part - self.advice))
        if changed > _STALE * count or not self.advice * 0.75 <= parts <= self.advice * 1.5:
            return None
        step = buckets // parts
        return Quantiles([[str(bounds[part * step])] for part in range(1, parts)], int(count), None)

    def _from_rows(self, key: Sequence[str]) -> Quantiles:
        sampled, share = (
            self._sampled(_GENTLE_PAGES, 4 * _GENTLE_PAGES) if self.gently else (self.source, 1.0)
        )
        found = self._found(sampled, key) if share < 1.0 else None
        if found is None or (found.rows or 0) < _GENTLE_ROWS * self.advice:
            sampled, share = self._sampled()
            found = self._found(sampled, key)
        if share == 1.0:
            return found
        return Quantiles(found.bounds, None if found.rows is None else round(found.rows / share), None)

    def _found(self, sampled: ReadSource, key: Sequence[str]) -> Quantiles:
        return self._of_one(sampled, key[0]) if len(key) == 1 else self._of_several(sampled, key)

    def _sampled(self, wanted: int | None = None, small: int = _SMALL_PAGES) -> tuple[ReadSource, float]:
        """Some pages of the table, and the share of them; all rows of one of `small` pages."""
        if wanted is None:
            wanted = min(max(_MIN_SAMPLED_PAGES, _PAGES_PER_SPLIT * self.advice), _MOST_SAMPLED_PAGES)
        table = self._table
        if table is None or table.is_view or table.pages <= max(small, wanted):
            return self.source, 1.0
        share = wanted / table.pages
        sample = f"{self.source.origin} TABLESAMPLE SYSTEM ({100 * share:.6f}) REPEATABLE (0)"
        return replace(self.source, origin=sample), share

    def _of_one(self, sampled: ReadSource, name: str) -> Quantiles:
        """One aggregate gives the number of rows, of NULLs, and the values at 0, 1/n, 2/n, ..."""
        column = sampled.column(name)
        shares = ", ".join(repr(part / self.advice) for part in range(self.advice))
        values = f"CAST(percentile_disc(ARRAY[{shares}]) WITHIN GROUP (ORDER BY {column}) AS text[])"
        rows, present, found = self.session.rows(sampled.sql(["count(*)", f"count({column})", values]))[0]
        bounds = distinct([str(value) for value in found]) if found else []
        return Quantiles(bounds, int(present), int(rows) - int(present))

    def _of_several(self, sampled: ReadSource, key: Sequence[str]) -> Quantiles:
        columns = [sampled.column(name) for name in key]
        names = [f"k{number}" for number in range(len(key))]
        texts = [f"CAST({column} AS text) AS {name}" for column, name in zip(columns, names, strict=True)]
        ranked = sampled.sql(
            [*texts, f"row_number() OVER (ORDER BY {', '.join(columns)}) AS n", "count(*) OVER () AS total"]
        )
        # The first row of each part is floor(total * part / advice) + 1. Of row n that part is asked, not of each part
        # its row: for many parts that would take longer than the sort.
        parts = self.advice
        found = self.session.rows(
            f"SELECT {', '.join(names)}, total, n FROM ({ranked}) AS ranked "  # noqa: S608 - quoted
            f"WHERE ((n - 1) * {parts} + total - 1) / total * total / {parts} = n - 1 ORDER BY n"
        )
        bounds: list[Key] = [list(map(str, row[:-2])) for row in found if row[-1] > 1]
        return Quantiles(bounds, int(found[0][-2]) if found else 0, 0)
