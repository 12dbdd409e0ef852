"""Inserts staged rows into the table, inside the caller's transaction."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

from spark_channel.connectors.contracts import Receipt
from spark_channel.connectors.sql.paced import in_pieces
from spark_channel.connectors.sql.postgresql.catalog import find_table
from spark_channel.connectors.sql.postgresql.failures import is_locked, sqlstate_of
from spark_channel.connectors.sql.postgresql.merge import PostgresMerge, keys_sql, of_pages
from spark_channel.connectors.sql.postgresql.options import PostgresWriteOptions
from spark_channel.connectors.sql.postgresql.session import PgSession, literal_sql
from spark_channel.connectors.sql.postgresql.staging import drop_stage, table_sql
from spark_channel.connectors.sql.postgresql.target import DIALECT, PostgresPlan
from spark_channel.connectors.sql.postgresql.write_session import PgWriteSession
from spark_channel.connectors.sql.publish import is_ready
from spark_channel.connectors.sql.script import run_in_transaction
from spark_channel.connectors.sql.statements import identifier
from spark_channel.connectors.sql.target import TargetTable
from spark_channel.errors import CommitError, TargetError

__all__ = ["CHUNKS", "bring_staged", "is_there", "new_table", "patient_lock", "publish_stage"]

_LOCK_MILLIS = 2_000
_FIRST_PAGES, _MOST_PAGES = 16, 4_096
_RANGES_OF_PAGES = 140_000
"""The version from which on a range of pages is read alone."""

CHUNKS = "chunks"
"""In a receipt's details: transaction number -> rows, of each chunk that the attempt staged."""
_LOCK = """
SELECT pg_terminate_backend(a.pid) FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.relation = {name}::regclass
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND a.pid <> pg_backend_pid() AND a.usename = session_user AND a.application_name LIKE 'spark-channel write %';
LOCK TABLE {stage} IN ACCESS EXCLUSIVE MODE
"""
"""Attempts that are still staging have no receipt. One whose process hangs would hold its lock as long."""
_THERE = ("42P07", "42710", "23505")
"""A table or type of the name is there, or was made by a transaction that this one waited for."""
_XID = 1 << 32
"""`xmin` holds the last 32 bits of a transaction's number."""


def is_there(
    session: PgSession, target: TargetTable, options: PostgresWriteOptions, *, overwrite: bool
) -> bool:
    """Empty the table, or hold it to be as the plan found it. False: it is not there, and is to be made.

    Raises:
        TargetError: the table came, went or changed since the plan was made.
    """
    drops = overwrite and not options.truncate
    if target.create is not None and not drops and find_table(session, target.sql) is not None:
        raise _made_meanwhile(target)
    with patient_lock(session, target) if overwrite else nullcontext():
        return is_ready(session, DIALECT, target, options, overwrite=overwrite)


@contextmanager
def patient_lock(session: PgSession, target: TargetTable) -> Iterator[None]:
    """Around a statement that locks the whole table: it waits for 2 s at most, in the transaction that is open.

    Whatever the application does with the table queues behind a statement that waits for such a lock. A shorter
    `lock_timeout` of the DBA's holds.

    Raises:
        TargetError: the lock was not had; its code is that of a lock, so that the caller tries again later.
    """
    own = int(session.value("SELECT setting FROM pg_settings WHERE name = 'lock_timeout'"))
    millis = min(own or _LOCK_MILLIS, _LOCK_MILLIS)
    session.rows(f"SELECT set_config('lock_timeout', '{millis}', true)")
    try:
        yield
    except TargetError as error:
        if is_locked(error):
            raise TargetError(
                f"table {target.label} could not be locked, which an overwrite needs: "
                f"other sessions use it. The lock is waited for {millis / 1000:g} s at a time, "
                "so that no query queues behind it for longer, and was tried again "
                "for 'retryTimeout' seconds: end these sessions, or run again with a longer one"
            ) from error.__cause__
        raise
    session.rows(f"SELECT set_config('lock_timeout', '{own}', true)")


def publish_stage(
    session: PgWriteSession, plan: PostgresPlan, options: PostgresWriteOptions, receipts: Sequence[Receipt]
) -> None:
    """Bring exactly the rows of `receipts` into the table, and drop the staging.

    Raises:
        CommitError: staged rows are gone.
    """
    target, stage = plan.target, table_sql(plan.place.staging, plan.staging)
    if session.value(f"SELECT to_regclass({literal_sql(stage)})::text") is None:
        raise CommitError(f"the staging table {stage} is gone")
    session.rows(_LOCK.format(stage=stage, name=literal_sql(stage)))
    _keep_only(session, stage, receipts, _pages_to_pace(session, stage, options, overwrite=False))
    run_in_transaction(session, DIALECT.script(options.pre_sql, "preSql"), "preSql", written=False)
    there = is_there(session, target, options, overwrite=plan.overwrite)
    if there:
        writers = sum(bool(receipt.rows) for receipt in receipts)
        rows = sum(receipt.rows for receipt in receipts)
        bring_staged(session, plan, stage, options, rows, overwrite=plan.overwrite, writers=writers)
        drop_stage(session, plan.place.staging, plan.staging)
        return
    if options.write_mode != "insert":
        PostgresMerge(session, target, stage, options.write_mode).refuse_bad_keys()
    with new_table(target):
        if plan.place.staging != target.schema:
            session.rows(f"ALTER TABLE {stage} SET SCHEMA {identifier(target.schema).sql('postgres')}")
            stage = table_sql(target.schema, plan.staging)
        session.rows(f"ALTER TABLE {stage} RENAME TO {identifier(target.name).sql('postgres')}")
    comment = literal_sql(options.table_comment)
    session.rows(f"COMMENT ON TABLE {target.sql} IS {comment}")
    if target.key:
        session.rows(f"ALTER TABLE {target.sql} ADD PRIMARY KEY ({keys_sql(target)})")


def bring_staged(
    session: PgWriteSession,
    plan: PostgresPlan,
    stage: str,
    options: PostgresWriteOptions,
    rows: int,
    *,
    overwrite: bool,
    writers: int | None = None,
) -> None:
    """Bring all `rows` of `stage` into the table; `overwrite`: it is locked, in this transaction.

    `writers` is that of `PostgresMerge`.
    """
    session.parent = plan.target.sql if plan.is_parent else None
    merge = PostgresMerge(session, plan.target, stage, options.write_mode, count=rows)
    merge.writers = writers
    pages = _pages_to_pace(session, stage, options, overwrite=overwrite)
    if pages is None:
        merge.bring()
    else:
        merge.bring_in_pieces(pages)


def _pages_to_pace(
    session: PgSession, stage: str, options: PostgresWriteOptions, *, overwrite: bool
) -> int | None:
    """How many pages the staging has, where a limited append adds it in pieces; None = in one statement.

    An overwrite has locked the table, so that queries wait until it ends; a key is compared with all rows at once.
    Before PostgreSQL 14 each piece would look at all pages.
    """
    if not options.is_limited or overwrite or options.write_mode != "insert":
        return None
    size, version = session.rows(
        f"SELECT pg_relation_size({literal_sql(stage)}::regclass) / current_setting('block_size')::int, "
        "current_setting('server_version_num')::int"
    )[0]
    return int(size) if version >= _RANGES_OF_PAGES else None


@contextmanager
def new_table(target: TargetTable) -> Iterator[None]:
    """Around the statement that gives the new table its name.

    Raises:
        TargetError: another transaction has made it since it was looked for.
    """
    try:
        yield
    except TargetError as error:
        if sqlstate_of(error) in _THERE:
            raise _made_meanwhile(target) from error
        raise


def _made_meanwhile(target: TargetTable) -> TargetError:
    return TargetError(
        f"another job created table {target.label} meanwhile: when this job was prepared, there was none, "
        "and it was to create it. Run this job again, to write to the table that is there now"
    )


def _keep_only(session: PgSession, stage: str, receipts: Sequence[Receipt], pages: int | None) -> None:
    """Remove the rows of attempts that have no receipt; miss none of those that have.

    `pages`: the rows are counted in pieces. The table has no lock that others wait for yet.
    """
    wanted: dict[int, int] = {}
    for receipt in receipts:
        chunks: Mapping[str, int] = receipt.details.get(CHUNKS, {})
        wanted |= {int(number) % _XID: rows for number, rows in chunks.items()}
    found: Counter[int] = Counter()

    def count(begin: int, end: int | None = None) -> None:
        some = "" if end is None else f"WHERE {of_pages('ctid', begin, end)}"
        query = f"SELECT xmin::text, count(*) FROM {stage} {some} GROUP BY xmin"  # noqa: S608 - a quoted identifier
        for number, rows in session.rows(query):
            found[int(number)] += int(rows)

    if pages is None:
        count(0)
    else:
        in_pieces(count, 0, pages, first=_FIRST_PAGES, most=_MOST_PAGES)
    lost = sum(rows - found.get(number, 0) for number, rows in wanted.items())
    if lost:
        raise CommitError(
            f"{lost} rows that tasks staged are gone from {stage}: an unlogged table is empty after its server "
            "has crashed. Run the job again"
        )
    if strange := found.keys() - wanted.keys():
        listed = ", ".join(f"'{number}'" for number in sorted(strange))
        session.rows(f"DELETE FROM {stage} WHERE xmin::text IN ({listed})")  # noqa: S608
