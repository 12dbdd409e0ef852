"""Puts staged rows into the table, inside a transaction that the caller has begun."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from spark_channel.connectors.sql.merge import PLACE, Merge
from spark_channel.connectors.sql.mysql.options import MysqlWriteOptions
from spark_channel.connectors.sql.mysql.session import LostConnectionError, Session, quoted
from spark_channel.connectors.sql.mysql.staging import create_stage
from spark_channel.connectors.sql.mysql.tables import table_named
from spark_channel.connectors.sql.mysql.target import Target, declared_columns
from spark_channel.connectors.sql.script import TRANSACTION_WORDS, split_script
from spark_channel.errors import ChannelError, TargetError

__all__ = [
    "COMMITTING_WORDS",
    "check_table",
    "hold",
    "insert_staged",
    "run_script",
    "take_over",
    "transaction",
]

COMMITTING_WORDS = TRANSACTION_WORDS | {
    "ALTER", "ANALYZE", "CHANGE", "CHECK", "CREATE", "DROP", "FLUSH", "GRANT", "INSTALL", "LOCK", "OPTIMIZE", "RENAME",
    "REPAIR", "RESET", "REVOKE", "STOP", "TRUNCATE", "UNINSTALL", "UNLOCK",
}  # fmt: skip
"""First words of statements that commit the transaction in which they run."""
_MERGED = "spark_channel_merged"
_LAST = "spark_channel_last"
_LOCK_SECONDS = 600
_OLDER_SECONDS = 60
"""How long an older attempt of a task may hold its lock once a newer one wants it."""


@contextmanager
def transaction(session: Session) -> Iterator[None]:
    session.rows("START TRANSACTION")
    try:
        yield
        session.rows("COMMIT")
    except BaseException as error:
        if not isinstance(error, LostConnectionError):
            try:
                session.rows("ROLLBACK")
            except (ChannelError, LostConnectionError):
                pass  # the connection's end rolls back too
        raise


def hold(session: Session, name: str) -> None:
    """Take the lock `name` until the session ends: also a session whose client is gone holds it to its end.

    Raises:
        TargetError: another session holds it for very long.
    """
    if session.value("SELECT GET_LOCK(%s, %s)", (name, _LOCK_SECONDS)) != 1:
        raise TargetError(f"another write holds the lock {name!r} for longer than {_LOCK_SECONDS} s")


def take_over(session: Session, name: str) -> None:
    """`hold` that ends a session which keeps the lock for long: that of a host that hangs would keep it for hours.

    Raises:
        TargetError: the server could not end it.
    """
    if session.value("SELECT GET_LOCK(%s, %s)", (name, _OLDER_SECONDS)) == 1:
        return
    holder = session.value("SELECT IS_USED_LOCK(%s)", (name,))
    if holder is not None:
        try:
            session.rows(f"KILL {int(holder)}")
        except ChannelError:
            pass  # it has ended meanwhile
    hold(session, name)


def run_script(session: Session, texts: Iterable[str], option: str) -> None:
    for statement in split_script(texts, option, "mysql"):
        session.rows(statement)


def check_table(session: Session, target: Target) -> None:
    """Hold the table to be as the plan found it.

    Raises:
        TargetError: it went or changed since the plan was made.
    """
    table = table_named(session, target.database, target.name)
    if table is None:
        raise TargetError(f"table {target.label!r} was dropped while its rows were written")
    found = {name: declared.lower() for name, declared in declared_columns(table)}
    changed = [name for name, declared in target.declared if not _same(found.get(name), declared)]
    if changed or (target.create is None and len(found) != len(target.declared)):
        raise TargetError(
            f"table {target.label!r} was created or altered while its rows were written: it has "
            f"{_listed(declared_columns(table))}, and the plan has {_listed(target.declared)}"
        )


def _same(found: str | None, planned: str) -> bool:
    """Servers add display widths to integers: `int` is shown as `int(11)`."""
    import re

    def bare(text: str) -> str:
        return re.sub(r"^((?:small|medium|big)?int|tinyint)(?:\((?!1\))\d+\))", r"\1", text.lower())

    return found is not None and bare(found) == bare(planned)


def insert_staged(
    session: Session,
    target: Target,
    options: MysqlWriteOptions,
    stages: Sequence[str],
    *,
    indexed: bool = False,
) -> None:
    """Insert the rows of `stages` (tables, as SQL) as `writeMode` says; `indexed`: the one stage has the key.

    Raises:
        TargetError: the server refused a row, or two rows have one key.
    """
    names = ", ".join(quoted(column.target) for column in target.columns)
    if options.write_mode == "insert":
        for stage in stages:
            session.rows(f"INSERT INTO {target.sql} ({names}) SELECT {names} FROM {stage} ORDER BY {PLACE}")  # noqa: S608
        return
    if indexed and len(stages) == 1:
        merged = stages[0]
    else:
        merged = quoted(_MERGED)
        staged = ", ".join(quoted(column.target) for column in target.staged)
        session.rows(f"DROP TEMPORARY TABLE IF EXISTS {merged}")
        create_stage(session, merged, target.staged, temporary=True, key=target.key)
        for stage in stages:
            session.rows(f"INSERT INTO {merged} ({staged}) SELECT {staged} FROM {stage} ORDER BY {PLACE}")  # noqa: S608
    columns = [column.target for column in target.columns]
    _MysqlMerge(session.rows, target.sql, merged, columns, target.key, options.write_mode, "mysql").bring()


class _MysqlMerge(Merge):
    """MySQL knows no ON CONFLICT, and reads a temporary table once in a statement."""

    def _keep_last(self) -> None:
        last = self.quoted(_LAST)
        self._run(f"DROP TEMPORARY TABLE IF EXISTS {last}")
        self._run(
            f"CREATE TEMPORARY TABLE {last} (place BIGINT PRIMARY KEY) ENGINE=InnoDB AS "  # noqa: S608 - quoted names
            f"SELECT MAX({PLACE}) AS place FROM {self._rows} GROUP BY {self.listed(self._key)}"
        )
        self._run(
            f"DELETE s FROM {self._rows} AS s LEFT JOIN {last} AS l ON s.{PLACE} = l.place WHERE l.place IS NULL"
        )

    def _delete(self) -> None:
        joined = f"{self._target} AS t JOIN {self._rows} AS s ON {self._same}"
        self._run(f"DELETE t FROM {joined} WHERE {self.gone('s.')}")

    def _write(self, *, update: bool) -> None:
        if update and self.others:
            sets = ", ".join(f"t.{self.quoted(each)} = s.{self.quoted(each)}" for each in self.others)
            self._run(f"UPDATE {self._target} AS t JOIN {self._rows} AS s ON {self._same} SET {sets}")  # noqa: S608
        self._run(
            f"INSERT INTO {self._target} ({self.listed(self._names)}) "  # noqa: S608
            f"SELECT {self.listed(self._names, 's.')} FROM {self._rows} AS s LEFT JOIN {self._target} AS t "
            f"ON {self._same} WHERE t.{self.quoted(self._key[0])} IS NULL"
        )

    @property
    def _same(self) -> str:
        return " AND ".join(f"t.{self.quoted(each)} = s.{self.quoted(each)}" for each in self._key)


def _listed(columns: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{name} {declared}".strip() for name, declared in columns)
