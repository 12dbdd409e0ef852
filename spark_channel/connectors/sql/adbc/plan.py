"""What a write through an ADBC driver has to know of its target."""

from dataclasses import dataclass

from spark_channel.connectors.contracts import WritePlan

__all__ = ["AdbcPlan"]


@dataclass(frozen=True)
class AdbcPlan(WritePlan):
    """`names` are the table's for each of the rows' columns; `staging` begins the names of the staging tables.

    `key` tells rows apart when they are merged; of a change feed, the column `_op` is among `names`.
    """

    table_schema: str | None = None
    table: str = ""
    names: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    staging: str = ""

    @property
    def label(self) -> str:
        return self.table if self.table_schema is None else f"{self.table_schema}.{self.table}"
