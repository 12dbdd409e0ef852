"""Sessions: ADBC reads, psycopg writes."""

from spark_channel.connectors.postgresql.session.connection import (
    PgReadSession,
    PgSession,
    PgWriteSession,
    literal_sql,
)

__all__ = ["PgReadSession", "PgSession", "PgWriteSession", "literal_sql"]
