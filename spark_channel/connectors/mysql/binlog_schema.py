"""Followed table: requirements, DDL, remembered columns."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from spark_channel.connectors.mysql.dialect import MysqlTable
from spark_channel.connectors.mysql.session import MysqlSession, quoted
from spark_channel.connectors.sql.source import ReadSource
from spark_channel.errors import ChannelError, OptionError, SourceError

__all__ = [
    "TRUNCATES",
    "charsets",
    "check_server",
    "check_table",
    "effect_of",
]


# What a server and a table must have so that the binary log tells every change of the table's rows.


_NEEDED = (
    ("binlog_format", "ROW", "changes are statements there, and not rows"),
    ("binlog_row_image", "FULL", "rows lack columns there"),
    ("binlog_row_metadata", "FULL", "rows do not name their columns there"),
)


def check_server(session: MysqlSession, database: str) -> None:
    """Hold the server to write every change of `database` to its log, as whole rows.

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
    found = session.rows(
        f"SHOW GLOBAL VARIABLES WHERE variable_name IN ({', '.join(map(repr, names))})"
    )
    settings = {str(name).lower(): str(value) for name, value in found}
    if settings.get("log_bin") != "ON":
        raise SourceError(
            f"{session.place} writes no binary log, which the change feed reads: "
            "set log_bin and a server_id in its configuration, and restart it"
        )
    for name, wanted, why in _NEEDED:
        if name not in settings:
            raise SourceError(
                f"{session.place} has no setting {name}, which the change feed needs: it takes MariaDB 10.5 and MySQL "
                "8.0, or newer. Follow the table by 'cursorColumn'"
            )
        if settings[name].upper() != wanted:
            raise SourceError(
                f"{session.place} has {name} = {settings[name]}: {why}. "
                f"Run SET GLOBAL {name} = '{wanted}', and set it in the server's configuration; "
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
        except ChannelError:
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
        except ChannelError:
            continue
        only, never = (
            [each.strip() for each in row.get(name, "").split(",") if each.strip()]
            for name in ("binlog_do_db", "binlog_ignore_db")
        )
        if (only and database not in only) or database in never:
            raise SourceError(
                f"{session.place} leaves database {database!r} out of its binary log (binlog_do_db, binlog_ignore_db): "
                "change the server's configuration, or follow the table by 'cursorColumn'"
            )
        return


def check_table(session: MysqlSession, source: ReadSource) -> None:
    """Hold the table to have nothing that changes its rows outside the log.

    Raises:
        OptionError: not a plain table. SourceError: foreign keys whose cascades are not logged.
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
        what = f"a {kind.lower()}" if kind else "a query"
        raise OptionError(
            f"the binary log has the changes of one plain table, and {source.label} is {what}: "
            "name a table with 'dbtable', or follow it by 'cursorColumn'",
            option="dbtable",
        )
    cascades = session.rows(
        "SELECT constraint_name, delete_rule, update_rule FROM information_schema.referential_constraints "
        "WHERE constraint_schema = %s AND table_name = %s",
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


def charsets(session: MysqlSession) -> dict[int, str]:
    """The character set of each collation by the number that the log has."""
    found: dict[int, str] = {}
    for statement in (
        "SELECT id, character_set_name FROM information_schema.collations WHERE id IS NOT NULL",
        "SELECT id, character_set_name FROM information_schema.collation_character_set_applicability",
    ):
        try:
            rows = session.rows(statement)
        except ChannelError:
            continue  # MariaDB 10.10 has numbers in the second, MySQL in the first
        found |= {
            int(number): str(charset) for number, charset in rows if number is not None and charset
        }
    return found


# What a statement in the binary log means for one table. Pure.
#
# With rows in the log, statements are what changes tables as a whole: TRUNCATE, and DDL. A
# statement that changes rows
# is there only if a session has switched to another format.


TRUNCATES = "truncates"

_TOKEN = re.compile(
    r"/\*(?!M?!).*?\*/|/\*M?!\d*|\*/|--[ \t][^\n]*|\#[^\n]*|'(?:[^'\\]|''|\\.)*'|\"(?:[^\"\\]|\"\"|\\.)*\""
    r"|`(?:[^`]|``)*`|[\w$@\u0080-\uffff]+|\S",
    re.DOTALL,
)
_COMMENT = ("/*", "*/", "--", "#")
_READS = 4096
"""Characters in which a DDL statement names its tables."""
_ROWS = frozenset({"insert", "replace", "update", "delete", "load", "with", "call", "execute"})
_OF_PARTITIONS = frozenset({"truncate", "drop", "exchange", "discard", "import", "convert"})


@dataclass(frozen=True, slots=True)
class _Word:
    text: str
    quoted: bool

    def says(self, *words: str) -> bool:
        return not self.quoted and self.text.lower() in words


def effect_of(
    statement: str, default: str, database: str, table: str, *, folds: bool = False
) -> str | None:
    """None: it does nothing to the rows of `database.table`; TRUNCATES; else why the table cannot be followed on.

    `default`: the database of names without one. `folds`: names of tables are equal in any case.
    """
    words = list(_words(statement[:_READS]))
    if not words:
        return None
    ours = _Ours(default, database, table, folds)
    first = words[0].text.lower()
    if first in _ROWS:
        named = re.search(rf"(?<![\w$]){re.escape(table)}(?![\w$])", statement, re.IGNORECASE)
        return "changes its rows by a statement, and not by rows" if named else None
    if first == "truncate":
        names = words[2:] if len(words) > 1 and words[1].says("table") else words[1:]
        return TRUNCATES if ours.at(names, 0) else None
    if first == "drop":
        return _drop(words, ours)
    if first == "rename" and len(words) > 1 and words[1].says("table", "tables"):
        return "renames it" if ours.anywhere(words[2:]) else None
    if first == "create":
        return _create(words, ours)
    if first == "alter":
        return _alter(words, ours)
    return None


class _Ours:
    """Recognises the name of the table."""

    def __init__(self, default: str, database: str, table: str, folds: bool) -> None:
        self._folds = folds
        self.database, self._table = self.same(database), self.same(table)
        self._is_default = self.same(default) == self.database

    def same(self, name: str) -> str:
        return name.lower() if self._folds else name

    def at(self, words: Sequence[_Word], place: int) -> bool:
        """Whether a name begins at `place`, and is the table's."""
        if place >= len(words):
            return False
        name = self.same(words[place].text)
        if place + 2 < len(words) and words[place + 1].says("."):
            return name == self.database and self.same(words[place + 2].text) == self._table
        return self._is_default and name == self._table

    def anywhere(self, words: Sequence[_Word]) -> bool:
        return any(
            self.at(words, place)
            for place in range(len(words))
            if not (place and words[place - 1].says("."))
        )


def _drop(words: Sequence[_Word], ours: _Ours) -> str | None:
    if len(words) < 3:
        return None
    if words[1].says("database", "schema"):
        return (
            "drops its database" if ours.same(words[-1].text.rstrip(";")) == ours.database else None
        )
    return "drops it" if words[1].says("table", "tables") and ours.anywhere(words[2:]) else None


def _create(words: Sequence[_Word], ours: _Ours) -> str | None:
    """A table that was not there has lost no rows."""
    is_replaced = len(words) > 4 and words[1].says("or") and words[3].says("table")
    return "creates it again" if is_replaced and ours.at(words, 4) else None


def _alter(words: Sequence[_Word], ours: _Ours) -> str | None:
    place = next((number for number, word in enumerate(words[:4]) if word.says("table")), None)
    if place is None:
        return None
    rest = words[place + 1 :]
    if rest and rest[0].says("if"):
        rest = rest[2:]
    own = ours.at(rest, 0)
    name_ends = 3 if len(rest) > 1 and rest[1].says(".") else 1
    actions = rest[name_ends:]
    for number, word in enumerate(actions):
        after = actions[number + 1] if number + 1 < len(actions) else None
        if after is None or not (own or ours.anywhere(actions[number + 1 :])):
            continue
        if word.says("rename") and not after.says("column", "index", "key"):
            return "renames it"
        if word.says(*_OF_PARTITIONS) and after.says("partition", "tablespace"):
            return "removes or replaces rows of whole partitions"
    return None


def _words(text: str) -> list[_Word]:
    found = []
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token.startswith(_COMMENT):
            continue
        if token[0] == "`":
            found.append(_Word(token[1:-1].replace("``", "`"), True))
        elif token[0] in "'\"":
            found.append(_Word(token[1:-1], True))
        else:
            found.append(_Word(token, False))
    return found
