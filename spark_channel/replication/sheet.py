"""What a run asks of the servers, for those who answer for them: locks, staging, log that is kept, and rights."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import pyarrow as pa

from spark_channel.clock import utc_now
from spark_channel.connectors.base.feed import FollowsTables, LogFacts
from spark_channel.connectors.sql.reader import SqlReader
from spark_channel.connectors.sql.rights import lacking_to_read, lacking_to_write
from spark_channel.connectors.sql.writer import SqlWriter
from spark_channel.option_types import resolve_references
from spark_channel.progress.report import short
from spark_channel.replication.config import Replication
from spark_channel.replication.deletes import with_columns
from spark_channel.replication.drift import LoadColumns
from spark_channel.replication.masks import MaskColumns
from spark_channel.replication.table_run import reader_of, writer_of
from spark_channel.replication.tables import TableCopy, connector_of
from spark_channel.replication.tunnels import log_options, store_of
from spark_channel.transform.transformer import Transformer, prepare
from spark_channel.tunnel.source import StreamSource

__all__ = [
    "NUMBERS",
    "altered",
    "estimated",
    "followed_columns",
    "locks_of",
    "log_facts_of",
    "log_kept",
    "staging_of",
    "store_lacks",
    "unreadable",
    "unwritable",
]

NUMBERS: Mapping[str, tuple[str, float]] = {
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


def estimated(source: str, rows: int | None) -> tuple[int, int] | None:
    """Between which numbers the rows are, if the catalog is as exact as it usually is; None = it does not say."""
    if rows is None:
        return None
    error = NUMBERS.get(source, ("", 0.0))[1]
    return int(rows * (1 - error)), -int(-rows * (1 + error) // 1)


def locks_of(source: str, target: str, writes: str) -> tuple[str, str]:
    """The locks on the source's table and on the target's; `writes` is "overwrite", "append" or "key"."""
    place = ("overwrite", "append", "key").index(writes)
    return _READS.get(source, "those of a SELECT"), _WRITES.get(target, (_NO_LOCK,) * 3)[place]


def staging_of(target: str, nbytes: int | None) -> int | None:
    """The bytes that the target stages for a table, about; 0 of files, whose staging is the new files themselves."""
    return nbytes if target in _STAGED else 0


def altered(object_: str, new: Sequence[pa.Field], there: pa.Schema | None) -> tuple[str, ...]:
    """What will be created or altered in the target."""
    if there is None:
        columns = ", ".join(f"{each.name} {each.type}" for each in new)
        return (f"CREATE {object_} ({columns})",)
    return tuple(f"ALTER {object_} ADD {each.name} {each.type}" for each in new)


def unreadable(replication: Replication, copies: Sequence[TableCopy]) -> dict[str, str]:
    """The streams whose tables the source's login may not read, each with what to do.

    Raises:
        ChannelError: the source does not answer.
    """
    tables = {each.stream: each.table for each in copies if each.table and not each.fault}
    reader = next((reader_of(each) for each in copies if each.stream in tables), None)
    if not isinstance(reader, SqlReader):
        return {}
    lacking = lacking_to_read(reader, {(each.schema, each.name) for each in tables.values()})
    said = {name: lacking.get((each.schema, each.name), "") for name, each in tables.items()}
    return {name: why for name, why in said.items() if why}


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
    return lacking_to_write(writer, overwrite=copy.mode == "full", alters=alters)


def store_lacks(replication: Replication) -> str:
    """What to do for the rights that the tunnel's store in a database of PostgreSQL asks for; "" = it has them.

    Raises:
        ChannelError: the store does not answer.
    """
    store, target = store_of(replication), connector_of(replication.target, "writer")
    if store is None or target.name != "postgresql":
        return ""
    given = {"url": store, "dbtable": "spark_channel_tunnels", "ledger": "none"}
    writer, _ = target.writer_with({**given, "writeMode": "apply"})
    return lacking_to_write(cast(SqlWriter, writer), overwrite=False)


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
    masks = copy.options.columns
    steps: list[Transformer] = [MaskColumns.of(copy.stream, masks)] if masks else []
    if copy.options.load_columns:
        steps.append(LoadColumns("plan", utc_now()))
    return with_columns(prepare(steps, source.reader.schema()).output_schema, copy.deletes)


def log_facts_of(replication: Replication) -> LogFacts | None:
    """What the source's log asks of the login and of the server; None = its connector does not say.

    Raises:
        ChannelError: the source does not answer.
    """
    given = {**resolve_references(replication.source.options()), **log_options(replication)}
    source = StreamSource({**given, "tables": "*"})
    reader = source.reader
    if not isinstance(reader, FollowsTables):
        return None
    return reader.log_facts(source.options.slot)


def log_kept(facts: LogFacts, seconds: float | None) -> str:
    """The log that the server keeps for a run: while existing rows are copied, and after that."""
    if facts.bytes_per_second is None or seconds is None:
        return facts.keeps
    said = f"about {short(facts.bytes_per_second * seconds)}B while the existing rows are copied"
    return f"{facts.keeps}; {said}, at the rate at which the server has written WAL on average"
