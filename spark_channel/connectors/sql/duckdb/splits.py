"""Splits by row number, which DuckDB finds without reading a column, and quantiles by its own aggregate."""

from typing import Any

from spark_channel.connectors.sql.splits import Quantiles, Splitter, distinct
from spark_channel.planning import Split

__all__ = ["DuckdbSplitter"]

_BUCKETS = 64
"""Ranges of row numbers that are counted for each split: boundaries are this fine."""
_EVEN = 1.2


class DuckdbSplitter(Splitter):
    """One column is scanned at most; its row numbers twice, where most rows have few of them."""

    def ranges(self) -> list[Split] | None:
        source, session = self.source, self.session
        rowid = source.column("rowid")
        count, least, most = session.rows(source.sql(["count(*)", f"min({rowid})", f"max({rowid})"]))[0]
        parts = min(self.advice, count)
        if parts <= 1:
            return [self.whole(count)]
        step = max(1, (most - least + 1) // (parts * _BUCKETS))
        buckets = session.rows(
            source.sql([f"({rowid} - {least}) // {step}", "count(*)"]) + " GROUP BY 1 ORDER BY 1"
        )
        edges, counts = _merge(buckets, count, parts)
        starts: list[Any] = [[least + edge * step] for edge in edges]
        if len(counts) < parts or max(counts) > _EVEN * min(counts):  # most rows are in few buckets
            starts = self._boundaries(rowid)
            counts = [count // (len(starts) + 1)] * (len(starts) + 1)
        return self.cut(["rowid"], starts, counts)

    def quantiles(self, name: str) -> Quantiles:
        column = self.source.column(name)
        total, present = self.session.rows(self.source.sql(["count(*)", f"count({column})"]))[0]
        bounds = self._boundaries(column) if present else []
        return Quantiles(bounds, present, total - present)

    def _boundaries(self, column: str) -> list[Any]:
        """Texts of the boundaries of ranges of about equal rows."""
        if self.advice < 2:
            return []
        places = ", ".join(str(part / self.advice) for part in range(self.advice))
        values = self.source.sql(
            [f"unnest(quantile_disc({column}, [{places}])) AS k"], [f"{column} IS NOT NULL"]
        )
        rows = self.session.rows(f"SELECT DISTINCT k, CAST(k AS VARCHAR) FROM ({values}) ORDER BY k")  # noqa: S608 - quoted
        return distinct([str(text) for _, text in rows])


def _merge(buckets: list[tuple[Any, ...]], count: int, parts: int) -> tuple[list[int], list[int]]:
    """The boundaries in ascending (bucket, rows) that make at most `parts` parts of about equal rows."""
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
