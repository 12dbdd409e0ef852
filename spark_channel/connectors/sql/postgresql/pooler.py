"""Whether a connection pooler answers at an address."""

import psycopg

from spark_channel.connectors.sql.postgresql.options import PostgresOptions

__all__ = ["PROCESS", "is_pooler", "is_pooled"]

PROCESS = "SELECT pg_backend_pid()"


def is_pooled(connection: "psycopg.Connection[object]") -> bool:
    """Whether the protocol names another process than the one that runs statements, as it does behind a pooler."""
    row = connection.execute(PROCESS).fetchone()
    return row is None or row != (connection.info.backend_pid,)


def is_pooler(options: PostgresOptions) -> bool:
    """As `is_pooled`, by a connection of its own.

    Raises:
        OSError: there is no connection.
    """
    try:
        with psycopg.connect(options.conninfo("spark-channel"), autocommit=True, prepare_threshold=None) as connection:
            return is_pooled(connection)
    except psycopg.Error as error:
        raise OSError(str(error)) from error
