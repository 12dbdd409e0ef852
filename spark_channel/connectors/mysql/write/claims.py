"""Claims in MySQL: InnoDB tables without triggers, by default in the target's database."""

from spark_channel.connectors.mysql.session import (
    MysqlWriteSession,
    quoted,
)
from spark_channel.connectors.mysql.write.staging import DROP_SECONDS
from spark_channel.connectors.sql.write.claim_tables import (
    CLAIMS,
    PLANS,
    PUBLISHED,
    TASKS,
    ClaimDialect,
    Ledger,
)

__all__ = [
    "claims_of",
]

_TABLES = (CLAIMS, TASKS, PLANS)
# By equality: MariaDB opens only the tables that are named so.
# CONCAT: Dolt's engine has no union of an ENUM with NULL.
_TABLE = (
    "SELECT table_name, CONCAT(table_type), engine, NULL FROM information_schema.tables "
    "WHERE table_schema = %s AND table_name = %s"
)
_TRIGGERS = (
    "SELECT event_object_table, NULL, NULL, trigger_name FROM information_schema.triggers "
    "WHERE event_object_catalog = 'def' AND event_object_schema = %s AND event_object_table = %s"
)
_INDEX = (
    "SELECT index_name, 'INDEX', NULL, NULL FROM information_schema.statistics "
    "WHERE table_schema = %s AND table_name = %s AND index_name = %s AND seq_in_index = 1"
)


class _Known:
    """The claim tables in the catalog, queried once; a missing table is queried again."""

    def __init__(self, session: MysqlWriteSession, ledger: Ledger) -> None:
        self._session, self._ledger = session, ledger
        self._found: dict[str, list[str]] = {}

    def exists(self, table: str) -> bool:
        table = self._ledger.name(table)
        if table not in self._found:
            self._look()
        return table in self._found

    def distrust(self, table: str) -> str | None:
        """MySQL's tables have no owner: a role can only add a trigger, or replace them by another kind of table."""
        faults = self._found.get(self._ledger.name(table), [])
        return faults[0] if faults else None

    def _look(self) -> None:
        table_query = f"{_TABLE} UNION ALL {_TRIGGERS}"
        query = " UNION ALL ".join([*[table_query] * len(_TABLES), _INDEX])
        schema, index = self._ledger.schema, self._ledger.name(PUBLISHED)
        names = [self._ledger.name(name) for name in _TABLES for _ in (_TABLE, _TRIGGERS)]
        asked_for = [value for name in names for value in (schema, name)]
        rows = self._session.rows(query, [*asked_for, schema, self._ledger.name(CLAIMS), index])
        faults_of: dict[str, list[str]] = {
            str(name): [] for name, kind, _, _ in rows if kind is not None
        }
        for name, kind, engine, trigger in rows:
            faults = faults_of.get(str(name), [])
            if trigger is not None:
                faults.append(f"it has the trigger {str(trigger)!r}")
            elif str(kind) == "INDEX":
                continue
            elif str(kind) != "BASE TABLE":
                faults.append(f"it is a {str(kind).lower()}")
            elif str(engine).lower() != "innodb":
                faults.append(f"its engine is {engine}, not InnoDB")
        self._found = faults_of


def claims_of(session: MysqlWriteSession, ledger: Ledger) -> ClaimDialect:
    """One for each session, which looks for the tables once."""
    dialect: ClaimDialect = session.kept(ledger, lambda: _claims_of(session, ledger))
    return dialect


def _claims_of(session: MysqlWriteSession, ledger: Ledger) -> ClaimDialect:
    catalog = _Known(session, ledger)
    index = f"INDEX {quoted(ledger.name(PUBLISHED))} (kind, published_at)"
    table = f"{quoted(ledger.schema)}.{quoted(ledger.name(CLAIMS))}"
    return ClaimDialect(
        table=lambda name: f"{quoted(ledger.schema)}.{quoted(ledger.name(name))}",
        exists=catalog.exists,
        mark=lambda _number: "%s",
        after=" ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        share="LOCK IN SHARE MODE",
        update="FOR UPDATE",
        distrust=catalog.distrust,
        stage=ledger.stage,
        index=f"ALTER TABLE {table} ADD {index}",
        index_in_table=f", {index}",
        hurry=f"SET SESSION lock_wait_timeout = {DROP_SECONDS}",
        hurry_end="SET SESSION lock_wait_timeout = DEFAULT",
    )
