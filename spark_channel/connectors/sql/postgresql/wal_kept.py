"""What a slot makes the server keep while the base of a table is read before its changes."""

import logging
from typing import cast

from spark_channel.connectors.sql.postgresql.catalog import PgTable
from spark_channel.connectors.sql.postgresql.read_session import PgReadSession
from spark_channel.connectors.sql.source import ReadSource
from spark_channel.errors import SourceError

__all__ = ["warn_of_kept_wal"]

_log = logging.getLogger(__name__)

_RATE = """
SELECT (wal_bytes / greatest(1, extract(epoch FROM now() - stats_reset)) * 3600)::bigint FROM pg_catalog.pg_stat_wal
"""


def warn_of_kept_wal(session: PgReadSession, source: ReadSource, why: str, slot: str) -> None:
    """Tell that the table is read before its changes, why, and how much WAL that keeps."""
    nbytes = int(session.value(f"SELECT pg_table_size({cast(PgTable, source.table).oid})::bigint"))
    try:
        rate = f", about {_mebibytes(int(session.value(_RATE)))} an hour at its present rate"
    except SourceError:  # before PostgreSQL 14
        rate = ""
    _log.warning(
        "%s (%s) is read as a whole before its changes: %s. Until then slot %r makes the server keep all WAL "
        "that it writes%s. Copy it without a low limit, or set max_slot_wal_keep_size on the server",
        source.label, _mebibytes(nbytes), why, slot, rate,
    )  # fmt: skip


def _mebibytes(nbytes: int) -> str:
    return f"{max(1, nbytes >> 20):,} MiB".replace(",", " ")
