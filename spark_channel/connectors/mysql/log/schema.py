"""Requirements on a server and a table, so that the binary log has every change of the table's rows."""

import re

from spark_channel.connectors.mysql.dialect import MysqlTable
from spark_channel.connectors.mysql.log.statements import KEEPING_ENGINES
from spark_channel.connectors.mysql.session import MysqlSession, is_away, quoted
from spark_channel.connectors.sql.read.source import ReadSource
from spark_channel.errors import ChannelError, OptionError, SourceError
from spark_channel.plain_text import log_of

__all__ = ["PLAIN", "charsets", "check_server", "check_table", "logs_cascades"]

_log = log_of(__name__)


PLAIN = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")

_NEEDED = (
    ("binlog_format", "ROW", "changes are statements there, and not rows"),
    ("binlog_row_image", "FULL", "rows lack columns there"),
    ("binlog_row_metadata", "FULL", "rows do not name their columns there"),
)


def check_server(session: MysqlSession, database: str) -> None:
    """Check that the server writes every change of `database` to its log, as whole rows.

    Raises:
        SourceError: names the setting, and the statement that sets it.
    """
    names = [name for name, _, _ in _NEEDED]
    names += [
        "log_bin",
        "gtid_mode",
        "binlog_row_value_options",
        "log_slave_updates",
        "log_replica_updates",
    ]
    rows = session.rows(
        f"SHOW GLOBAL VARIABLES WHERE variable_name IN ({', '.join(map(repr, names))})"
    )
    settings = {str(name).lower(): str(value) for name, value in rows}
    if settings.get("log_bin") != "ON":
        raise SourceError(
            f"{session.place} writes no binary log, which the change feed reads: "
            "set log_bin and a server_id in its configuration, and restart it"
        )
    for name, needed, reason in _NEEDED:
        if name not in settings:
            raise SourceError(
                f"{session.place} has no setting {name}, which the change feed needs: it takes MariaDB 10.5 and MySQL "
                "8.0, or newer. Follow the table by 'cursorColumn'"
            )
        if settings[name].upper() != needed:
            raise SourceError(
                f"{session.place} has {name} = {settings[name]}: {reason}. "
                f"Run SET GLOBAL {name} = '{needed}', and set it in the server's configuration; "
                "sessions that are open keep the old value until they reconnect"
            )
    if settings.get("binlog_row_value_options"):
        raise SourceError(
            f"{session.place} has binlog_row_value_options = {settings['binlog_row_value_options']}: updates have "
            "parts of JSON values only. Run SET GLOBAL binlog_row_value_options = ''"
        )
    if not session.is_mariadb and settings.get("gtid_mode") != "ON":
        raise SourceError(
            f"{session.place} has gtid_mode = {settings.get('gtid_mode', 'OFF')}, so positions in its log are lost "
            "with a fail-over. Run, one after another: SET GLOBAL enforce_gtid_consistency = ON; SET GLOBAL gtid_mode "
            "= OFF_PERMISSIVE; SET GLOBAL gtid_mode = ON_PERMISSIVE; SET GLOBAL gtid_mode = ON"
        )
    updates = settings.get("log_slave_updates", settings.get("log_replica_updates"))
    if updates != "ON" and _is_replica(session):
        raise SourceError(
            f"{session.place} is a replica that does not log what it replicates: set log_slave_updates (MySQL 8.0.26: "
            "log_replica_updates) in its configuration and restart it, or read from its primary"
        )
    _check_filters(session, database)


def _is_replica(session: MysqlSession) -> bool:
    for statement in ("SHOW REPLICA STATUS", "SHOW SLAVE STATUS"):
        try:
            return bool(session.rows(statement))
        except ChannelError as error:
            if is_away(error):
                raise
            continue  # another version's word, or no right to ask
    return False


def _check_filters(session: MysqlSession, database: str) -> None:
    """Databases may be left out of the log."""
    for statement in ("SHOW BINLOG STATUS", "SHOW BINARY LOG STATUS", "SHOW MASTER STATUS"):
        try:
            row = {
                str(name).lower(): str(value or "")
                for name, value in session.named(statement).items()
            }
        except ChannelError as error:
            if is_away(error):
                raise
            continue
        only, never = (
            [item.strip() for item in row.get(name, "").split(",") if item.strip()]
            for name in ("binlog_do_db", "binlog_ignore_db")
        )
        if (only and database not in only) or database in never:
            raise SourceError(
                f"{session.place} leaves database {database!r} out of its binary log (binlog_do_db, binlog_ignore_db): "
                "change the server's configuration, or follow the table by 'cursorColumn'"
            )
        return


def check_table(session: MysqlSession, source: ReadSource) -> None:
    """Check that the table has nothing that changes its rows outside the log.

    Raises:
        OptionError: not a plain table. SourceError: foreign keys whose cascades are not logged
            (findings/mariadb-binlog-lacks-cascades.sh).
    """
    table = source.table
    plain = "BASE TABLE"
    kind = ""
    if isinstance(table, MysqlTable):
        kind = str(
            session.value(
                "SELECT table_type FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
                [table.schema, table.name],
            )
        )
    if not isinstance(table, MysqlTable) or kind != plain:
        sort = f"a {kind.lower()}" if kind else "a query"
        raise OptionError(
            f"the binary log has the changes of one plain table, and {source.label} is {sort}: "
            "name a table with 'dbtable', or follow it by 'cursorColumn'",
            option="dbtable",
        )
    if str(table.engine).lower() not in KEEPING_ENGINES:
        raise SourceError(
            f"{source.label} has the engine {table.engine}, whose rows are not those that the binary log has: "
            "follow it by 'cursorColumn'"
        )
    if logs_cascades(session):
        return
    cascades = session.rows(
        "SELECT constraint_name, delete_rule, update_rule FROM information_schema.referential_constraints "
        "WHERE constraint_catalog = 'def' AND constraint_schema = %s AND table_name = %s",
        [table.schema, table.name],
    )
    for name, on_delete, on_update in cascades:
        rules = [
            f"ON {event} {rule}"
            for event, rule in (("DELETE", str(on_delete)), ("UPDATE", str(on_update)))
            if rule.upper() not in ("RESTRICT", "NO ACTION")
        ]
        if rules:
            raise SourceError(
                f"foreign key {name!r} of {source.label} is {' '.join(rules)}: InnoDB changes "
                "the table's rows by it without a record in the binary log, so a copy would differ. "
                f"Make it RESTRICT (ALTER TABLE {quoted(table.name)} DROP FOREIGN KEY {quoted(str(name))}, "
                "ADD FOREIGN KEY ...), or follow the table by 'cursorColumn'"
            )


def logs_cascades(session: MysqlSession) -> bool:
    """Whether the log has the rows that foreign keys change: MySQL 9.6, unless InnoDB is told to change them itself."""
    rows = session.rows("SHOW GLOBAL VARIABLES LIKE 'innodb\\_native\\_foreign\\_keys'")
    return [str(value) for _, value in rows] == ["OFF"]


def charsets(session: MysqlSession) -> dict[int, str]:
    """The character set of each collation by the number that the log has."""
    names: dict[int, str] = {}
    for statement in (
        "SELECT id, character_set_name FROM information_schema.collations WHERE id IS NOT NULL",
        "SELECT id, character_set_name FROM information_schema.collation_character_set_applicability",
    ):
        try:
            rows = session.rows(statement)
        except ChannelError as error:
            if is_away(error):
                raise
            continue  # MariaDB 10.10 has numbers in the second, MySQL in the first
        names |= {
            int(number): str(charset) for number, charset in rows if number is not None and charset
        }
    return names
