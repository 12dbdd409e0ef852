"""How a database behind an ADBC driver keeps the claims of writes."""

from spark_channel.connectors.sql.adbc.dialect import AdbcDialect
from spark_channel.connectors.sql.adbc.session import AdbcSession
from spark_channel.connectors.sql.claims import ClaimDialect
from spark_channel.connectors.sql.postgresql import claims as postgresql

__all__ = ["claim_dialect"]


def claim_dialect(session: AdbcSession, schema: str, dialect: str) -> ClaimDialect:
    """The tables that the database's own connector has, where there is one."""
    if dialect == "postgres":
        return postgresql.claim_dialect(session.rows, schema, lambda number: f"${number}")
    space = schema or None

    def trigger(name: str) -> str | None:
        if dialect != "sqlite":
            return None
        query = "SELECT 1 FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ?"
        return "it has a trigger" if session.rows(query, (name,)) else None

    return ClaimDialect(
        table=lambda name: AdbcDialect(dialect).place(space, name),
        exists=lambda name: name in session.tables(space, name),
        mark=lambda number: f"${number}" if dialect == "redshift" else "?",
        distrust=trigger,
    )
