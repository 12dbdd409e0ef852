"""The ledger as DuckDB keeps it."""

from spark_channel.connectors.sql.duckdb.database import Session
from spark_channel.connectors.sql.kept import KEPT
from spark_channel.connectors.sql.ledger import LEDGER, LedgerDialect, TableLedger

__all__ = ["ledger_of"]


def _exists(name: str) -> str:
    return (
        "SELECT 1 FROM duckdb_tables() WHERE database_name = current_database() AND schema_name = 'main' "  # noqa: S608 - a constant
        f"AND table_name = '{name}'"
    )


_DIALECT = LedgerDialect(
    table=f"main.{LEDGER}",
    create=(
        (
            f"CREATE TABLE IF NOT EXISTS main.{LEDGER} ("
            "job VARCHAR NOT NULL, batch BIGINT NOT NULL, task BIGINT NOT NULL, attempt BIGINT NOT NULL, "
            "table_name VARCHAR NOT NULL, txn_app_id VARCHAR, txn_version BIGINT, row_count BIGINT NOT NULL, "
            "byte_count BIGINT NOT NULL, published_at VARCHAR NOT NULL, PRIMARY KEY (job, batch, task))"
        ),
    ),
    exists=_exists(LEDGER),
    prune=(
        f"DELETE FROM main.{LEDGER} WHERE txn_app_id IS NULL AND published_at < "  # noqa: S608 - a constant's name
        "strftime(now()::TIMESTAMP - INTERVAL 30 DAY, '%Y-%m-%dT%H:%M:%SZ')"
    ),
    kept=f"main.{KEPT}",
    kept_exists=_exists(KEPT),
)


def ledger_of(session: Session, target: str) -> TableLedger:
    return TableLedger(session, target, _DIALECT)
