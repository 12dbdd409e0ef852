"""The ledger as SQLite keeps it."""

from spark_channel.connectors.sql.kept import KEPT
from spark_channel.connectors.sql.ledger import LEDGER, LedgerDialect, TableLedger
from spark_channel.connectors.sql.sqlite.database import Session

__all__ = ["ledger_of"]


def _exists(name: str) -> str:
    return f"SELECT 1 FROM main.sqlite_master WHERE type = 'table' AND name = '{name}'"  # noqa: S608 - a constant


_DIALECT = LedgerDialect(
    table=f"main.{LEDGER}",
    create=(
        (
            f"CREATE TABLE IF NOT EXISTS main.{LEDGER} ("
            "job TEXT NOT NULL, batch INTEGER NOT NULL, task INTEGER NOT NULL, attempt INTEGER NOT NULL, "
            "table_name TEXT NOT NULL, txn_app_id TEXT, txn_version INTEGER, row_count INTEGER NOT NULL, "
            "byte_count INTEGER NOT NULL, published_at TEXT NOT NULL, PRIMARY KEY (job, batch, task)) WITHOUT ROWID"
        ),
    ),
    exists=_exists(LEDGER),
    prune=(
        f"DELETE FROM main.{LEDGER} WHERE txn_app_id IS NULL AND published_at < "  # noqa: S608 - a constant's name
        "strftime('%Y-%m-%dT%H:%M:%SZ', 'now', '-30 days')"
    ),
    kept=f"main.{KEPT}",
    kept_exists=_exists(KEPT),
)


def ledger_of(session: Session, target: str) -> TableLedger:
    """The ledger, for the table `target`."""
    return TableLedger(session, target, _DIALECT)
