"""Reads a table, a view or a query."""

from firebird_connector.dialect import FirebirdDialect
from firebird_connector.options import FirebirdReadOptions
from firebird_connector.session import FirebirdSession
from spark_channel.connectors.sql import SqlReader
from spark_channel.errors import SourceError

__all__ = ["FirebirdReader"]


class FirebirdReader(SqlReader):
    """Splits by ranges of the primary key. A split sees one state of its table."""

    Options = FirebirdReadOptions

    def __init__(self, options: FirebirdReadOptions) -> None:
        super().__init__(options, FirebirdDialect())

    def connect(self, purpose: str) -> FirebirdSession:
        return FirebirdSession(self.options, SourceError, reads=True)
