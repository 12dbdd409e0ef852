"""The ledger as MySQL keeps it: an InnoDB table beside the target."""

from spark_channel.connectors.sql.kept import KEPT
from spark_channel.connectors.sql.ledger import LEDGER, LedgerDialect, RowSession, TableLedger
from spark_channel.connectors.sql.mysql.session import quoted

__all__ = ["ledger_of"]


def _mark(_number: int) -> str:
    return "%s"


def ledger_of(session: RowSession, database: str, target: str) -> TableLedger:
    """The ledger in `database`, for the table `target`."""
    table = f"{quoted(database)}.{LEDGER}"
    literal = database.replace("\\", "\\\\").replace("'", "''")
    exists = f"SELECT 1 FROM information_schema.tables WHERE table_schema = '{literal}' AND table_name = "  # noqa: S608 - quoted
    return TableLedger(
        session,
        target,
        LedgerDialect(
            table=table,
            create=(
                (
                    f"CREATE TABLE IF NOT EXISTS {table} ("
                    "job VARCHAR(200) NOT NULL, batch BIGINT NOT NULL, task BIGINT NOT NULL, attempt BIGINT NOT NULL, "
                    "table_name VARCHAR(200) NOT NULL, txn_app_id VARCHAR(500), txn_version BIGINT, "
                    "row_count BIGINT NOT NULL, byte_count BIGINT NOT NULL, published_at VARCHAR(32) NOT NULL, "
                    "PRIMARY KEY (job, batch, task)) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
                ),
            ),
            exists=f"{exists}'{LEDGER}'",
            prune=(
                f"DELETE FROM {table} WHERE txn_app_id IS NULL AND published_at < "  # noqa: S608 - a quoted name
                "DATE_FORMAT(UTC_TIMESTAMP() - INTERVAL 30 DAY, '%Y-%m-%dT%H:%i:%sZ')"
            ),
            mark=_mark,
            kept=f"{quoted(database)}.{KEPT}",
            kept_exists=f"{exists}'{KEPT}'",
        ),
    )
