"""Splits a large table by the server's index estimates, other tables by stepping through the key."""

from spark_channel.connectors.sql.mysql.dialect import MysqlTable
from spark_channel.connectors.sql.mysql.dives import even_ranges
from spark_channel.connectors.sql.splits import Splitter
from spark_channel.planning import Split

__all__ = ["MysqlSplitter"]

_MARIADB_EXPLAINS = 10
"""So many columns has a plan of MariaDB's; MySQL's have two more."""
_LARGE_BYTES = 64 << 20
"""From here on a scan of the keys costs a server more than the exact number of rows is worth."""


class MysqlSplitter(Splitter):
    """Ranges by index estimates for a table of 64 MiB or more, else by steps through its key."""

    def ranges(self) -> list[Split] | None:
        source = self.source
        assert isinstance(source.table, MysqlTable)
        key = source.dialect.split_key(source.table)
        if not key or self.advice == 1:
            return None
        if len(key) == 1 and source.condition is None and self._is_large(source.table):
            column = source.column(key[0])
            least, most = self.session.rows(source.sql([f"MIN({column})", f"MAX({column})"]))[0]
            if isinstance(least, int) and isinstance(most, int):
                return self._estimated(key[0], least, most)
        return self.stepped(key)

    def _is_large(self, table: MysqlTable) -> bool:
        dialect = self.source.dialect
        size = self.session.value(
            f"SELECT data_length FROM information_schema.tables WHERE table_schema = "  # noqa: S608 - quoted
            f"{dialect.literal(table.schema, None)} AND table_name = {dialect.literal(table.name, None)}"
        )
        return int(size or 0) >= _LARGE_BYTES

    def _estimated(self, key: str, least: int, most: int) -> list[Split]:
        column = self.source.column(key)

        def estimate(*conditions: str) -> int:
            row = self.session.rows("EXPLAIN " + self.source.sql(["1"], conditions))[0]
            return int(row[8 if len(row) == _MARIADB_EXPLAINS else 9] or 0)

        ranges = even_ranges(
            least, most, self.advice, lambda start, end: estimate(f"{column} >= {start}", f"{column} < {end}")
        )
        total = estimate()
        return self.cut(
            [key], [[start] for start, _, _ in ranges[1:]], [round(total * each) for _, _, each in ranges]
        )
