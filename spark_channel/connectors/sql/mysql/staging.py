"""Where a job keeps its rows until they are published: tables beside the target, without keys.

Their names begin alike for one job: `spark_channel_stage_<job>_job` is there while the job lives, with the times at
which it showed life, and there is one table for each attempt of a task.
"""

import hashlib
import secrets

from spark_channel.clock import utc_now
from spark_channel.connectors.sql.life import BEAT_SECONDS, ORPHAN_SECONDS
from spark_channel.connectors.sql.merge import PLACE
from spark_channel.connectors.sql.mysql.options import MysqlWriteOptions
from spark_channel.connectors.sql.mysql.session import Session, quoted
from spark_channel.connectors.sql.mysql.target import Target, WriteColumn
from spark_channel.errors import TargetError

__all__ = ["ORPHAN_SECONDS", "Staging", "clear_orphans", "create_stage", "show_life"]

_PREFIX = "spark_channel_stage_"
_LIKE = _PREFIX.replace("_", "\\_")


def create_stage(
    session: Session,
    name: str,
    columns: tuple[WriteColumn, ...],
    *,
    temporary: bool,
    key: tuple[str, ...] = (),
) -> None:
    """A table of `columns`, each of which may be NULL, and `PLACE`; indexed by `key`. `name` is SQL."""
    lines = [
        f"{PLACE} BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY",
        *(column.definition for column in columns),
    ]
    if key:
        lines.append(f"KEY ({', '.join(map(quoted, key))})")
    word = "TEMPORARY " if temporary else ""
    comment = "" if temporary else f" COMMENT='spark-channel, {utc_now():%Y-%m-%dT%H:%M:%SZ}'"
    session.rows(f"CREATE {word}TABLE {name} ({', '.join(lines)}) ENGINE=InnoDB{comment}")


class Staging:
    """One job's tables in one database."""

    def __init__(self, database: str, prefix: str) -> None:
        self.database, self.prefix = database, prefix

    @classmethod
    def of(cls, target: Target, job: str, batch: int | None) -> "Staging":
        """The staging of a job's batch: the same for each who asks."""
        suffix = hashlib.sha256(f"{job}\0{batch}\0{target.label}".encode()).hexdigest()[:16]
        return cls(target.database, f"{_PREFIX}{suffix}_")

    def make(self, session: Session) -> None:
        session.rows(
            f"CREATE TABLE IF NOT EXISTS {self._sql('job')} (alive BIGINT NOT NULL) ENGINE=InnoDB "
            f"COMMENT='spark-channel, {utc_now():%Y-%m-%dT%H:%M:%SZ}'"
        )

    def check(self, session: Session) -> None:
        """Hold the job to live, and show it when that was not done of late.

        Raises:
            TargetError: it has been published or aborted.
        """
        if not _tables(session, self.database, f"{self.prefix}job"):
            raise TargetError(
                f"the job's staging {self.prefix}* in database {self.database!r} is gone: the job was published or "
                "aborted without this attempt"
            )
        age = self._age(session)
        if age is None or age > BEAT_SECONDS:
            self.show_life(session)

    def show_life(self, session: Session) -> None:
        session.rows(f"INSERT INTO {self._sql('job')} (alive) VALUES (UNIX_TIMESTAMP())")  # noqa: S608 - a quoted name

    def age(self, session: Session) -> int | None:
        """Seconds since the job last showed life; None = it never has, or has ended."""
        if not _tables(session, self.database, f"{self.prefix}job"):
            return None
        return self._age(session)

    def _age(self, session: Session) -> int | None:
        age = session.value(f"SELECT UNIX_TIMESTAMP() - MAX(alive) FROM {self._sql('job')}")  # noqa: S608 - a quoted name
        return None if age is None else int(age)

    def new_table(self, task: int, attempt: int) -> str:
        return f"{self.prefix}{task}_{attempt}_{secrets.token_hex(2)}"

    def sql(self, table: str) -> str:
        return f"{quoted(self.database)}.{quoted(table)}"

    def _sql(self, ending: str) -> str:
        return self.sql(self.prefix + ending)

    def drop(self, session: Session, table: str) -> None:
        session.rows(f"DROP TABLE IF EXISTS {self.sql(table)}")

    def remove(self, session: Session) -> None:
        """Drop all tables of the job, its sign of life first. Safe twice, and while tasks still write."""
        self.drop(session, f"{self.prefix}job")
        for table in _tables(session, self.database, self.prefix.replace("_", "\\_") + "%"):
            self.drop(session, table)


def show_life(options: MysqlWriteOptions, staging: Staging) -> None:
    """On a connection of its own."""
    with Session(options, TargetError) as session:
        staging.show_life(session)


def _tables(session: Session, database: str, like: str) -> list[str]:
    rows = session.rows(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND table_name LIKE %s",
        (database, like),
    )
    return [str(name) for (name,) in rows]


def clear_orphans(session: Session, keep: Staging) -> list[str]:
    """Remove what killed drivers left: the tables of other jobs, without life for `ORPHAN_SECONDS`.

    The server's times of change alone do not tell: it forgets them when it restarts.
    """
    rows = session.rows(
        "SELECT table_name, TIMESTAMPDIFF(SECOND, GREATEST(create_time, COALESCE(update_time, create_time)), NOW()) "
        "FROM information_schema.tables WHERE table_schema = %s AND table_name LIKE %s AND create_time IS NOT NULL",
        (keep.database, _LIKE + "%"),
    )
    ages: dict[str, int] = {}
    for name, age in rows:
        prefix = str(name)[: len(keep.prefix)]
        ages[prefix] = min(int(age), ages.get(prefix, int(age)))
    removed = []
    for prefix, age in sorted(ages.items()):
        staging = Staging(keep.database, prefix)
        if prefix != keep.prefix and age > ORPHAN_SECONDS:
            shown = staging.age(session)
            if shown is not None and shown <= ORPHAN_SECONDS:
                continue
            staging.remove(session)
            removed.append(f"{keep.database}.{prefix}*")
    return removed
