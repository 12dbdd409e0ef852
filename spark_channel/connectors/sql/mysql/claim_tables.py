"""Claims in MySQL: InnoDB tables without triggers, by default in the target's database."""

from spark_channel.connectors.sql.claims import CLAIMS, PLANS, TASKS, ClaimDialect
from spark_channel.connectors.sql.ledger import Ledger
from spark_channel.connectors.sql.mysql.session import quoted
from spark_channel.connectors.sql.mysql.write_session import MysqlWriteSession

__all__ = ["claim_dialect"]

_TABLES = (CLAIMS, TASKS, PLANS)
# By equality: MariaDB opens only the tables that are named so.
_TABLE = (
    "SELECT table_name, table_type, engine, NULL FROM information_schema.tables "
    "WHERE table_schema = %s AND table_name = %s"
)
_TRIGGERS = (
    "SELECT event_object_table, NULL, NULL, trigger_name FROM information_schema.triggers "
    "WHERE event_object_schema = %s AND event_object_table = %s"
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
        """MySQL's tables have no owner: what a role can do to them is a trigger, or another kind of table."""
        faults = self._found.get(self._ledger.name(table), [])
        return faults[0] if faults else None

    def _look(self) -> None:
        asked = f"{_TABLE} UNION ALL {_TRIGGERS}"
        query = " UNION ALL ".join([asked] * len(_TABLES))
        names = [self._ledger.name(name) for name in _TABLES for _ in (_TABLE, _TRIGGERS)]
        rows = self._session.rows(query, [each for name in names for each in (self._ledger.schema, name)])
        found: dict[str, list[str]] = {str(name): [] for name, kind, _, _ in rows if kind is not None}
        for name, kind, engine, trigger in rows:
            faults = found.get(str(name), [])
            if trigger is not None:
                faults.append(f"it has the trigger {str(trigger)!r}")
            elif str(kind) != "BASE TABLE":
                faults.append(f"it is a {str(kind).lower()}")
            elif str(engine).lower() != "innodb":
                faults.append(f"its engine is {engine}, not InnoDB")
        self._found = found


def claim_dialect(session: MysqlWriteSession, ledger: Ledger) -> ClaimDialect:
    """One for each session, which looks for the tables once."""
    found: ClaimDialect = session.kept(ledger, lambda: _claim_dialect(session, ledger))
    return found


def _claim_dialect(session: MysqlWriteSession, ledger: Ledger) -> ClaimDialect:
    known = _Known(session, ledger)
    return ClaimDialect(
        table=lambda name: f"{quoted(ledger.schema)}.{quoted(ledger.name(name))}",
        exists=known.exists,
        mark=lambda _number: "%s",
        after=" ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        share="LOCK IN SHARE MODE",
        update="FOR UPDATE",
        distrust=known.distrust,
        stage=ledger.stage,
    )
