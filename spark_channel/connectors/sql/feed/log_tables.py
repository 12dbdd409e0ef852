"""Feeds of several tables by one log share this: how tables are listed, named in rows, and reported.

Each batch has rows of one table, with that table's columns, and its name in the last column, `_table`.
"""

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from spark_channel.connectors.base.feed import TABLE, FeedOptions
from spark_channel.connectors.sql.feed.schema_rule import SchemaRule
from spark_channel.connectors.sql.options import SqlReadOptions
from spark_channel.connectors.sql.read.source import ReadSource
from spark_channel.errors import ChannelError, OptionError, SchemaError, SourceError
from spark_channel.plain_text import log_of

__all__ = [
    "CHANGE_BYTES",
    "MOST_WAITS",
    "OWN_COLUMNS",
    "RANGE_ROWS",
    "RANGE_SECONDS",
    "READ_AGAIN",
    "REMOVE",
    "base_refused",
    "check_base",
    "check_names",
    "check_options",
    "columns_advice",
    "is_pattern",
    "listed",
    "no_column",
    "not_followed",
    "of_table",
    "renamed",
    "rules_of",
    "warn_of_dropped",
    "warn_of_gone_rows",
]

_log = log_of(__name__)


CHANGE_BYTES = 128
"""A change's size, where a limit is given in bytes alone."""
RANGE_ROWS = 500_000
"""Existing rows of a range, where no limit is given."""
RANGE_SECONDS = 0.4
"""The duration of a range of several tables, so that a chunk of one does not delay the changes of the others."""
MOST_WAITS = 3
"""Ranges of the log alone before the base has its turn, where more changes come than a range takes."""

OWN_COLUMNS = (TABLE, "_op", "_lsn", "_commit_ts")
REMOVE = (
    "`spark-channel tunnel remove-table`, after which the tunnel continues with the others where it is (a channel that "
    "is parked: after `spark-channel tunnel resume`)"
)
READ_AGAIN = (
    "`spark-channel tunnel resnapshot` for this table, which reads it again with the columns that it has now, and does "
    "not report rows deleted meanwhile"
)


def check_options(options: SqlReadOptions, instead: str) -> None:
    """`instead`: how one table is followed.

    Raises:
        OptionError: an option of one table.
    """
    for name, value in (("columns", options.columns), ("customSchema", options.custom_schema)):
        if value:
            raise OptionError(
                f"option {name!r} goes with one table, and 'tables' names several: omit it, or follow the table "
                f"by {instead}",
                option=name,
            )


def listed(text: str, quote: str = '"') -> list[str]:
    """The items of a list of names, of which some are in quotes.

    Raises:
        OptionError: it is empty, or has a quote without its partner.
    """
    name = re.compile(rf"(?:{quote}(?:[^{quote}]|{quote}{quote})*{quote}|[^{quote},])+")
    items = [item.strip() for item in name.findall(text)]
    if not all(items) or name.sub("", text) != "," * (len(items) - 1) or not items:
        raise OptionError(
            f"option 'tables' got {text!r}; it takes names of tables with commas between them, "
            "such as shop.orders, shop.items, or all tables of a schema: shop.*",
            option="tables",
            got=text,
        )
    return items


def is_pattern(item: str) -> bool:
    return item == "*" or item.endswith(".*")


def check_names(source: ReadSource, only: Collection[str] | None = None) -> None:
    """`only`: others of its columns are left out.

    Raises:
        SchemaError: a column has a name of the feed's own.
    """
    for name in source.names:
        if name in OWN_COLUMNS and (only is None or name in only):
            raise SchemaError(
                f"{source.label} has a column {name!r}, which is a name of the feed's own: "
                "rename the column, or omit the table"
            )


def check_base(name: str, reason: str | None, instead: str, joins: str = "") -> None:
    """`reason`: why its existing rows cannot be read beside its changes. `joins`: the message's words for a table that
    a tunnel did not begin with.

    Raises:
        SourceError: they cannot.
    """
    if reason is not None:
        raise SourceError(
            f"table {name!r}{joins and f', {joins},'} cannot be read beside its changes: {reason}. "
            f"Follow it by {instead}, or make a tunnel with it and tunnelType=stream, "
            "which does not read existing rows"
        )


def base_refused(instead: str) -> OptionError:
    """The error for existing rows that are to be read before the changes."""
    return OptionError(
        "option 'tables' reads existing rows beside the changes only: omit 'baseMode' and 'tunnelType', or follow "
        f"each table by {instead}",
        option="tables",
    )


def renamed(name: str, now: str) -> SourceError:
    """The error for a table that has another name now."""
    return SourceError(
        f"table {name!r} of the tunnel is {now!r} now. Rename it back; or run {REMOVE}, and "
        f"`spark-channel tunnel add-table --table {now}`, which reads its existing rows again"
    )


def columns_advice(rule: SchemaRule) -> str:
    """What to do about columns that a table does not continue with."""
    if rule.evolves:
        return f"Run {READ_AGAIN}"
    other = "" if rule.ignores else ", or with ignore to continue without them"
    return f"Start it again with onSchemaChange=evolve to continue with its new columns{other}; or run {READ_AGAIN}"


def rules_of(options: FeedOptions) -> tuple[SchemaRule, SchemaRule]:
    """The rule of ranges that are planned, and that of ranges that were handed out: they are read whatever their tables
    have got or lost since, and the next range reports it.
    """
    evolves, ignores = options.evolves, options.ignores
    advice = columns_advice(SchemaRule(evolves=evolves, ignores=ignores))
    rule = SchemaRule(evolves=evolves, ignores=ignores, advice=advice)
    return rule, rule if ignores else SchemaRule(ignores=True, advice=advice, logs=False)


def not_followed(item: str) -> OptionError:
    """The error for options that name a table which was not one of the tunnel's when it was made."""
    return OptionError(
        f"option 'tables' names {item!r}, which the tunnel does not follow: add it with `spark-channel "
        f"tunnel add-table --table {item}`",
        option="tables",
        got=item,
    )


@contextmanager
def of_table(name: str) -> Iterator[None]:
    """Have the errors raised inside name the table that they are about."""
    try:
        yield
    except ChannelError as error:
        error.tables = error.tables or (name,)
        raise


def warn_of_dropped(name: str) -> None:
    _log.warning(
        "table %r of the tunnel was dropped: its changes up to then are delivered, and the other tables "
        "continue. `spark-channel tunnel remove-table --table %s` removes it from the tunnel",
        name,
        name,
    )


def warn_of_gone_rows(name: str) -> None:
    _log.warning(
        "table %r was dropped before existing rows of it were read, which are gone: its changes in the log are "
        "delivered",
        name,
    )


def no_column(_name: str) -> bool:
    """A position has the columns of its tables: the log has no others."""
    return False
