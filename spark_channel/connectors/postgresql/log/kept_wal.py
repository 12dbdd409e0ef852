"""Warn of the WAL that the server keeps for a slot while a table's base is read before its changes."""

from typing import cast

from spark_channel.connectors.postgresql.catalog import PgTable
from spark_channel.connectors.postgresql.session import PgReadSession
from spark_channel.connectors.sql.read.source import ReadSource
from spark_channel.errors import SourceError
from spark_channel.plain_text import log_of

__all__ = ["warn_of_kept_wal"]

_log = log_of(__name__)


_RATE = """
SELECT (wal_bytes / greatest(1, extract(epoch FROM now() - stats_reset)) * 3600)::bigint FROM pg_catalog.pg_stat_wal
"""


def warn_of_kept_wal(session: PgReadSession, source: ReadSource, reason: str, slot: str) -> None:
    """Log that the table is read before its changes, why, and how much WAL that keeps."""
    nbytes = int(session.value(f"SELECT pg_table_size({cast(PgTable, source.table).oid})::bigint"))
    try:
        rate = f", about {_mebibytes(int(session.value(_RATE)))} an hour at its present rate"
    except SourceError:  # before PostgreSQL 14
        rate = ""
    _log.warning(
        "%s (%s) is read as a whole before its changes: %s. Until then slot %r makes the server keep all WAL "
        "that it writes%s. Copy it without a low limit, or set max_slot_wal_keep_size on the server",
        source.label,
        _mebibytes(nbytes),
        reason,
        slot,
        rate,
    )


def _mebibytes(nbytes: int) -> str:
    return f"{max(1, nbytes >> 20):,} MiB".replace(",", " ")
