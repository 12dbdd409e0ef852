"""A PostgreSQL table as a change feed: by a cursor column, or by logical replication."""

from typing import TYPE_CHECKING

from spark_channel.connectors.feed import ChangeFeed, FeedOptions
from spark_channel.errors import OptionError

if TYPE_CHECKING:
    from spark_channel.connectors.sql.postgresql.reader import PostgresReader

__all__ = ["postgres_feed"]


def postgres_feed(reader: "PostgresReader", options: FeedOptions) -> ChangeFeed:
    """The feed that `options` ask for.

    Raises:
        OptionError: none, or both.
    """
    if options.slot is not None and options.cursor_column is not None:
        raise OptionError(
            "options 'slot' and 'cursorColumn' are two ways to follow a table: give one of them",
            option="slot",
        )
    if options.cursor_column is not None:
        from spark_channel.connectors.sql.postgresql.cursor_feed import PostgresCursorFeed

        return PostgresCursorFeed(reader, options)
    if options.slot is not None:
        from spark_channel.connectors.sql.postgresql.replication import ReplicationFeed

        return ReplicationFeed(reader, options)
    raise OptionError(
        "a PostgreSQL table is read as a stream by logical replication (options 'slot' and 'publication'), or "
        "by a column that only grows ('cursorColumn')",
        option="slot",
    )
