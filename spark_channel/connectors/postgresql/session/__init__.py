"""Sessions: psycopg looks at tables and writes rows, ADBC reads rows as Arrow."""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.connectors.postgresql.session.adbc_session import PgReadSession
    from spark_channel.connectors.postgresql.session.connection import PgSession, literal_sql
    from spark_channel.connectors.postgresql.session.psycopg_session import PgPlanSession
    from spark_channel.connectors.postgresql.session.write_session import PgWriteSession
else:
    __getattr__, __dir__ = lazy.exports(
        __name__,
        {
            "adbc_session": ["PgReadSession"],
            "connection": ["PgSession", "literal_sql"],
            "psycopg_session": ["PgPlanSession"],
            "write_session": ["PgWriteSession"],
        },
    )

__all__ = ["PgPlanSession", "PgReadSession", "PgSession", "PgWriteSession", "literal_sql"]
