"""Where the rows of a `commit=job` wait: one table of the job beside its target.

Each task adds its rows in chunks, a transaction each, whose number every row carries (`xmin`). A receipt names the
numbers of its attempt, so that a publish takes exactly those rows, whatever other attempts have left. The table
is unlogged, or, where the target is to be created, is the target under another name.

A comment says whose it is, and when an attempt last began or ended. Whoever works on a job holds an advisory lock of
its name: by both, the staging of a job that is alive is known from that of a killed one.
"""

import hashlib
import json
import logging
from typing import Any

from spark_channel.connectors.sql import statements
from spark_channel.connectors.sql.life import BEAT_SECONDS, ORPHAN_SECONDS
from spark_channel.connectors.sql.postgresql.session import Session, literal
from spark_channel.connectors.sql.postgresql.target import Target
from spark_channel.connectors.sql.statements import identifier
from spark_channel.errors import TargetError

__all__ = [
    "DELETES",
    "ORDER",
    "ORPHAN_SECONDS",
    "PREFIX",
    "clear_orphans",
    "create_stage",
    "drop_stage",
    "hold_job",
    "mark",
    "show_life",
    "stage_columns",
    "stage_name",
    "table_sql",
]

_log = logging.getLogger(__name__)

PREFIX = "spark_channel_stage_"
DELETES = "spark_channel_deletes"
"""Staging's column for `writeMode=apply`: whether the row deletes its key."""
ORDER = "spark_channel_order"
"""Staging's column for `writeMode=apply`: rows in the order in which they came."""

_FIND = """
SELECT c.relname, obj_description(c.oid, 'pg_class'), extract(epoch FROM clock_timestamp())::float8
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND n.nspname = {schema} AND c.relname LIKE 'spark\\_channel\\_stage\\_%'
  AND pg_has_role(c.relowner, 'USAGE')
"""


def stage_name(job: str, batch: int | None) -> str:
    """The name of a job's staging: the same for each who asks."""
    return PREFIX + hashlib.sha256(f"{job}\0{batch}".encode()).hexdigest()[:16]


def table_sql(schema: str, name: str) -> str:
    """`schema.name`, quoted."""
    return statements.named_table((schema, name)).expression.sql("postgres")


def stage_columns(target: Target, *, apply: bool) -> list[str]:
    """The columns of a staging or temporary table for rows of `target`, as CREATE TABLE has them."""
    columns = [f"{identifier(c.target).sql('postgres')} {c.staged}" for c in target.columns]
    if apply:
        columns += [f"{DELETES} boolean", f"{ORDER} bigint GENERATED ALWAYS AS IDENTITY"]
    return columns


def create_stage(session: Session, target: Target, name: str, *, apply: bool) -> None:
    """Make the unlogged table that takes rows for a target that is there, unless it is there."""
    columns = ", ".join(stage_columns(target, apply=apply))
    session.rows(f"CREATE UNLOGGED TABLE IF NOT EXISTS {table_sql(target.schema, name)} ({columns})")


def mark(session: Session, schema: str, name: str, job: str, batch: int | None) -> None:
    """Write whose staging it is, and since when."""
    now = float(session.value("SELECT extract(epoch FROM clock_timestamp())::float8"))
    note = literal(json.dumps({"job": job, "batch": batch, "at": round(now)}))
    session.rows(f"COMMENT ON TABLE {table_sql(schema, name)} IS {note.sql('postgres')}")


def show_life(session: Session, schema: str, name: str) -> None:
    """Note that the job lives, unless that was done of late: between two attempts nobody holds its lock."""
    table = literal(table_sql(schema, name)).sql("postgres")
    asked = session.rows(
        f"SELECT obj_description(to_regclass({table}), 'pg_class'), extract(epoch FROM clock_timestamp())::float8"  # noqa: S608
    )
    note = _note(asked[0][0])
    if note is not None and float(asked[0][1]) - float(note["at"]) > BEAT_SECONDS:
        mark(session, schema, name, note["job"], note.get("batch"))


def drop_stage(session: Session, schema: str, name: str) -> None:
    session.rows(f"DROP TABLE IF EXISTS {table_sql(schema, name)}")


def hold_job(session: Session, job: str) -> None:
    """Say that somebody works on `job`, until the session ends."""
    session.rows(f"SELECT pg_advisory_lock_shared({_lock(job)})")


def clear_orphans(session: Session, schema: str, *, keep: str) -> list[str]:
    """Drop the staging that killed jobs left in `schema`; returns the jobs' names."""
    cleared = []
    for name, comment, now in session.rows(_FIND.format(schema=literal(schema).sql("postgres"))):
        note = _note(comment)
        if name == keep or note is None or now - float(note["at"]) < ORPHAN_SECONDS:
            continue
        try:
            with session.transaction():
                session.rows("SET LOCAL lock_timeout = '2s'")
                if session.value(f"SELECT pg_try_advisory_xact_lock({_lock(note['job'])})"):
                    drop_stage(session, schema, str(name))
                    cleared.append(str(note["job"]))
        except TargetError as error:
            _log.warning("staging table %s of job %s, long dead, stays: %s", name, note["job"], error)
    return cleared


def _note(comment: Any) -> dict[str, Any] | None:
    try:
        note = json.loads(str(comment))
    except ValueError:
        return None
    return note if isinstance(note, dict) and {"job", "at"} <= note.keys() else None


def _lock(job: str) -> int:
    digest = hashlib.sha256(f"spark-channel job {job}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
