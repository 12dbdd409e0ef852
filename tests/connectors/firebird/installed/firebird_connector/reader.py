"""Reads a table, a view or a query."""

from collections.abc import Iterator
from contextlib import contextmanager

from firebird_connector.dialect import FirebirdDialect
from firebird_connector.options import FirebirdReadOptions
from firebird_connector.session import FirebirdSession
from spark_channel.connectors.sql import SqlReader, session_script
from spark_channel.errors import SourceError

__all__ = ["FirebirdReader"]


class FirebirdReader(SqlReader):
    """Splits by ranges of the primary key. A split sees one state of its table."""

    Options = FirebirdReadOptions

    def __init__(self, options: FirebirdReadOptions) -> None:
        super().__init__(options, FirebirdDialect())

    @contextmanager
    def connect(self, purpose: str) -> Iterator[FirebirdSession]:
        with FirebirdSession(self.options, SourceError, reads=True) as session:
            for statement in session_script(self.options, ""):
                session.rows(statement)
            yield session
