"""What a run asks of the servers, for those who answer for them: locks, staging, log that is kept, and rights."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from spark_channel.clock import utc_now
from spark_channel.connectors.base.feed import FollowsTables, LogFacts
from spark_channel.connectors.sql.read.reader import SqlReader
from spark_channel.connectors.sql.read.rights import lacking_to_read
from spark_channel.connectors.sql.write.job import SqlWriter
from spark_channel.connectors.sql.write.rights import lacking_to_write
from spark_channel.errors import ChannelError
from spark_channel.option_types import resolve_references
from spark_channel.progress.report import short
from spark_channel.replication.config import Replication
from spark_channel.replication.deletes import with_columns
from spark_channel.replication.drift import LoadColumns
from spark_channel.replication.masks import MaskColumns
from spark_channel.replication.table_run import reader_of, why_of, writer_of
from spark_channel.replication.tables import TableCopy, connector_of
from spark_channel.replication.tunnels import log_options, options_of, store_of
from spark_channel.transform.transformer import Transformer, prepare
from spark_channel.tunnel.source import StreamSource

__all__ = [
    "ROW_ESTIMATES",
    "estimated_rows",
    "followed_columns",
    "locks_of",
    "log_facts_of",
    "log_kept",
    "staging_of",
    "store_lacks",
    "unfollowed",
    "unreadable",
    "unwritable",
]

ROW_ESTIMATES: Mapping[str, tuple[str, float]] = {
    "postgresql": (
        "pg_class, within about 10 %: autovacuum analyzes a table after so many changes",
        0.1,
    ),
    "mysql": ("information_schema.tables, within about 50 %: InnoDB samples pages", 0.5),
    "duckdb": ("duckdb_tables()", 0.0),
    "sqlite": ("the span of the keys: at most so many", 0.0),
}
"""Where a source's numbers of rows come from, and by how much they may be wrong."""

_READS: Mapping[str, str] = {
    "postgresql": "ACCESS SHARE while a statement runs",
    "mysql": "a metadata lock while a statement runs, and no row",
    "sqlite": "shared, while a statement runs",
    "duckdb": "the file is open for reading during the run",
}
_WRITES: Mapping[str, tuple[str, str, str]] = {
    "postgresql": (
        "ACCESS EXCLUSIVE from TRUNCATE to the publish's commit; it waits 2 s for that, and tries again",
        "ROW EXCLUSIVE while the rows are published",
        "ROW EXCLUSIVE and the changed rows, while they are published",
    ),
    "mysql": (
        "all its rows (DELETE) while the rows are published",
        "the new rows and a metadata lock, while they are published",
        "the changed rows and a metadata lock, while they are published",
    ),
    "sqlite": ("the whole file while the rows are published",) * 3,
    "duckdb": ("the whole file during the run: one process at a time may write it",) * 3,
}
"""The locks of an overwrite, of an append, and of a write by key."""
_NO_LOCK = "none: the rows become visible by one commit of the table's log"
_STAGED = ("postgresql", "mysql", "sqlite", "duckdb")
"""Databases have the rows twice until they are published; files are written once."""


def estimated_rows(source: str, rows: int | None) -> tuple[int, int] | None:
    """Between which numbers the rows are, if the catalog is as exact as it usually is; None = it does not say."""
    if rows is None:
        return None
    error = ROW_ESTIMATES.get(source, ("", 0.0))[1]
    return int(rows * (1 - error)), -int(-rows * (1 + error) // 1)


def locks_of(source: str, target: str, writes: str) -> tuple[str, str]:
    """The locks on the source's table and on the target's; `writes` is "overwrite", "append" or "key"."""
    index = ("overwrite", "append", "key").index(writes)
    return _READS.get(source, "those of a SELECT"), _WRITES.get(target, (_NO_LOCK,) * 3)[index]


def staging_of(target: str, nbytes: int | None) -> int | None:
    """The bytes that the target stages for a table, about; 0 of files, whose staging is the new files themselves."""
    return nbytes if target in _STAGED else 0


def unreadable(replication: Replication, copies: Sequence[TableCopy]) -> dict[str, str]:
    """The streams whose tables the source's login may not read, each with what to do.

    Raises:
        ChannelError: the source does not answer.
    """
    tables = {copy.stream: copy.table for copy in copies if copy.table and not copy.fault}
    reader = next((reader_of(copy) for copy in copies if copy.stream in tables), None)
    if not isinstance(reader, SqlReader):
        return {}
    lacking = lacking_to_read(reader, {(table.schema, table.name) for table in tables.values()})
    refusals = {name: lacking.get((table.schema, table.name), "") for name, table in tables.items()}
    return {name: reason for name, reason in refusals.items() if reason}


def unwritable(copy: TableCopy, *, alters: bool = False) -> str:
    """What to do for the rights that the target's login lacks; "" = it has them, or the target is not asked.

    Raises:
        ChannelError: the target does not answer.
    """
    follows = copy.mode == "full_then_changes" and not copy.is_lake
    applied = {"writeMode": "apply"} if follows else {}
    writer = writer_of(replace(copy, writer={**copy.writer, **applied}))
    if not isinstance(writer, SqlWriter):
        return ""
    return lacking_to_write(writer.database, overwrite=copy.mode == "full", alters=alters)


def unfollowed(replication: Replication, copy: TableCopy) -> str:
    """Why the log of a table that the login may not read cannot be followed either; "" = it can, or is not to be."""
    if copy.mode != "full_then_changes" or copy.table is None:
        return ""
    try:
        StreamSource(options_of(replication, [copy])).feed.joining(copy.table.dbtable, again=False)
    except ChannelError as error:
        return why_of(error)
    return ""


def store_lacks(replication: Replication) -> str:
    """What to do for the rights that the tunnel's store in a database of PostgreSQL asks for; "" = it has them.

    Raises:
        ChannelError: the store does not answer.
    """
    store, target = store_of(replication), connector_of(replication.target, "writer")
    if store is None or target.name != "postgresql":
        return ""
    options = {"url": store, "dbtable": "spark_channel_tunnels", "ledger": "none"}
    writer, _ = target.writer_with({**options, "writeMode": "apply"})
    assert isinstance(writer, SqlWriter)
    return lacking_to_write(writer.database, overwrite=False)


def followed_columns(replication: Replication, copy: TableCopy) -> pa.Schema:
    """The columns that the target gets of a table that is followed. Holds its log to have its changes.

    Raises:
        ChannelError: the log does not have them, or the table cannot be followed; says what to do.
    """
    assert copy.table is not None
    name = copy.table.dbtable
    source = StreamSource(
        {
            **resolve_references(replication.source.options()),
            **log_options(replication, [name]),
            "dbtable": name,
            "onSchemaChange": "evolve",
        }
    )
    source.feed.schema()
    StreamSource(options_of(replication, [copy])).feed.joining(name, again=False)
    masks = copy.options.columns
    steps: list[Transformer] = [MaskColumns.for_stream(copy.stream, masks)] if masks else []
    if copy.options.load_columns:
        steps.append(LoadColumns("plan", utc_now()))
    return with_columns(prepare(steps, source.reader.schema()).output_schema, copy.deletes)


def log_facts_of(replication: Replication) -> LogFacts | None:
    """What the source's log asks of the login and of the server; None = its connector does not say.

    Raises:
        ChannelError: the source does not answer.
    """
    options = {**resolve_references(replication.source.options()), **log_options(replication)}
    source = StreamSource({**options, "tables": "*"})
    reader = source.reader
    if not isinstance(reader, FollowsTables):
        return None
    return reader.log_facts(source.options.slot)


def log_kept(facts: LogFacts, seconds: float | None) -> str:
    """The log that the server keeps for a run: while existing rows are copied, and after that."""
    if facts.bytes_per_second is None or seconds is None:
        return facts.keeps
    while_copying = (
        f"about {short(facts.bytes_per_second * seconds)}B while the existing rows are copied"
    )
    return f"{facts.keeps}; {while_copying}, at the rate at which the server has written WAL on average"
