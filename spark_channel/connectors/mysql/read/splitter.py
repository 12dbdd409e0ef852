"""Splits a large table by the server's index estimates, other tables by stepping through the key."""

from dataclasses import replace
from typing import cast

from spark_channel.connectors.mysql.dialect import LOCAL_ENGINES, MysqlTable
from spark_channel.connectors.mysql.read.ranges import even_ranges
from spark_channel.connectors.mysql.session import MysqlSession, code_of
from spark_channel.connectors.sql.read.splits import Splitter
from spark_channel.errors import SourceError
from spark_channel.planning import Split

__all__ = ["MysqlSplitter"]


_NO_SUCH_PLAN = 3999
"""MySQL's hypergraph optimizer has no plans as tables, which are the form that every server has."""
_LARGE_BYTES = 64 << 20
"""From here on a scan of the keys costs a server more than the exact number of rows is worth."""


class MysqlSplitter(Splitter):
    """Ranges by index estimates for a table of 64 MiB or more, or under a limit; else by steps through its key."""

    def ranges(self) -> list[Split] | None:
        source = self.source
        assert isinstance(source.table, MysqlTable)
        key = source.dialect.split_key(source.table)
        if not key or self.advice == 1:
            return None
        counting_is_long = source.condition is None and self._is_large(source.table)
        if len(key) == 1 and (self.gently or counting_is_long):
            column = source.column(key[0])
            of_all = replace(source, condition=None)  # else rows are read until one meets it
            least, most = self.session.rows(of_all.sql([f"MIN({column})", f"MAX({column})"]))[0]
            if isinstance(least, int) and isinstance(most, int):
                try:
                    return self._estimated(key[0], least, most)
                except SourceError as error:
                    if code_of(error) != _NO_SUCH_PLAN:
                        raise
        return self.stepped(key)

    def _is_large(self, table: MysqlTable) -> bool:
        dialect = self.source.dialect
        size = self.session.value(
            f"SELECT data_length FROM information_schema.tables WHERE table_schema = "  # noqa: S608 - quoted
            f"{dialect.literal(table.schema, None)} AND table_name = {dialect.literal(table.name, None)}"
        )
        return int(size or 0) >= _LARGE_BYTES

    def estimated_rows(self) -> int | None:
        """None also for an engine whose rows are elsewhere: FEDERATED, SPIDER, CONNECT."""
        table = self.source.table
        if isinstance(table, MysqlTable) and str(table.engine).lower() not in LOCAL_ENGINES:
            return None
        try:
            return self._planned()
        except SourceError as error:
            if code_of(error) != _NO_SUCH_PLAN:
                raise
            return None

    def _planned(self, *conditions: str) -> int:
        session = cast(MysqlSession, self.session)
        plan = session.named(f"EXPLAIN FORMAT=TRADITIONAL {self.source.sql(['1'], conditions)}")
        return int(plan["rows"] or 0)

    def _estimated(self, key: str, least: int, most: int) -> list[Split]:
        column = self.source.column(key)
        ranges = even_ranges(
            least,
            most,
            self.advice,
            lambda start, end: self._planned(f"{column} >= {start}", f"{column} < {end}"),
        )
        total = self._planned()
        return self.cut(
            [key],
            [[start] for start, _, _ in ranges[1:]],
            [round(total * share) for _, _, share in ranges],
        )
