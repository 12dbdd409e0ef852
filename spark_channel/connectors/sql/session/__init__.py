"""Session: rows, stream, load, publish; user scripts."""

from spark_channel.connectors.sql.session.connection import (
    HIDDEN,
    BatchSize,
    BoundSession,
    DriverSession,
    S,
    Session,
    WriteSession,
    committed,
    transaction,
)
from spark_channel.connectors.sql.session.file_session import FileSession
from spark_channel.connectors.sql.session.scripts import (
    BY_ITSELF,
    IN_SESSION,
    IN_TRANSACTION,
    TRANSACTION_WORDS,
    run_in_transaction,
    session_script,
    split_script,
)

__all__ = [
    "BY_ITSELF",
    "HIDDEN",
    "IN_SESSION",
    "IN_TRANSACTION",
    "TRANSACTION_WORDS",
    "BatchSize",
    "BoundSession",
    "DriverSession",
    "FileSession",
    "S",
    "Session",
    "WriteSession",
    "committed",
    "run_in_transaction",
    "session_script",
    "split_script",
    "transaction",
]
