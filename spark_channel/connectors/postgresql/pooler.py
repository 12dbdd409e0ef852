"""Whether a connection pooler answers at an address."""

from typing import Any

import psycopg

__all__ = ["is_pooler"]


def is_pooler(conninfo: str, **login: Any) -> bool:
    """Whether the protocol names another process than the one that runs statements; by a connection of its own.

    Raises:
        OSError: there is no connection.
    """
    try:
        with psycopg.connect(
            conninfo, autocommit=True, prepare_threshold=None, **login
        ) as connection:
            found = connection.execute("SELECT pg_backend_pid()").fetchone()
            return found != (connection.info.backend_pid,)
    except psycopg.Error as error:
        raise OSError(str(error)) from error
