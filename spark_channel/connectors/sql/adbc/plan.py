"""What a write through an ADBC driver has to know of its target."""

from dataclasses import dataclass

from spark_channel.connectors.sql.writer import SqlPlan

__all__ = ["AdbcPlan"]


@dataclass(frozen=True)
class AdbcPlan(SqlPlan):
    """`names` are the table's for each of the rows' columns.

    `key` tells rows apart when they are merged; of a change feed, the column `_op` is among `names`.
    """

    names: tuple[str, ...] = ()
    key: tuple[str, ...] = ()

    @property
    def table_schema(self) -> str | None:
        """None = the database has no schemas, or the driver does not tell."""
        return self.place.schema or None

    @property
    def table(self) -> str:
        return self.place.name
