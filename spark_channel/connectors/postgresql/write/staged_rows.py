"""Brings staged rows into the table, inside the caller's transaction."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

from spark_channel.connectors.base.contract import Receipt
from spark_channel.connectors.postgresql.catalog import find_table, table_sql
from spark_channel.connectors.postgresql.copy.format import CopyRows
from spark_channel.connectors.postgresql.failures import is_locked, is_refused_data, sqlstate_of
from spark_channel.connectors.postgresql.options import PostgresWriteOptions
from spark_channel.connectors.postgresql.session import PgSession, PgWriteSession, literal_sql
from spark_channel.connectors.postgresql.write.dialect import DIALECT, PostgresPlan
from spark_channel.connectors.postgresql.write.merge import PostgresMerge, keys_sql, of_pages
from spark_channel.connectors.postgresql.write.staging import drop_stage
from spark_channel.connectors.sql.catalog import TABLE, TargetTable
from spark_channel.connectors.sql.pacing import WritePacer
from spark_channel.connectors.sql.statements import quoted_name
from spark_channel.connectors.sql.write.checks import check_planned, is_ready
from spark_channel.errors import CommitError, TargetError

__all__ = [
    "CHUNKS",
    "HELD",
    "add_comment",
    "bring_staged",
    "check_staged",
    "is_there",
    "naming_table",
    "patient_lock",
    "publish_stage",
]

_LOCK_MILLIS = 2_000
_PATIENT = f"""
SELECT own, millis, set_config('lock_timeout', millis::text, true)
FROM (SELECT own, least(coalesce(nullif((extract(epoch FROM own::interval) * 1000)::int, 0), {_LOCK_MILLIS}),
                        {_LOCK_MILLIS}) AS millis
      FROM (SELECT current_setting('lock_timeout') AS own) AS asked) AS found
"""  # noqa: S608 - constants
"""`current_setting`, since the view of all settings takes the server a millisecond."""
_FIRST_PAGES = 16
_RANGES_OF_PAGES = 140_000
"""The version from which on a range of pages is read alone."""
CHUNKS = "chunks"
"""In a receipt's details: transaction number -> rows, of each chunk that the attempt staged."""
HELD = "held"
"""In a receipt's details: (columns, rows, their bytes) of each COPY that is left to the transaction that publishes."""
_LOCK = """
SELECT pg_terminate_backend(a.pid) FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.relation = {name}::regclass
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND a.pid <> pg_backend_pid() AND a.usename = session_user AND a.application_name LIKE 'spark-channel write %';
LOCK TABLE {stage} IN ACCESS EXCLUSIVE MODE;
SELECT pg_relation_size({name}::regclass)
"""
"""Attempts that are still staging have no receipt. One whose process hangs would hold its lock as long."""
_NO_TABLE = "42P01"
_THERE = ("42P07", "42710", "23505")
"""A table or type of the name is there, or was made by a transaction that this one waited for."""
_SENT_AT_ONCE = 64 << 10
"""Sockets take so many bytes. A process that is stopped while it sends more would hold the claim's lock."""
_XID = 1 << 32
"""`xmin` holds the last 32 bits of a transaction's number."""


def is_there(
    session: PgWriteSession, target: TargetTable, options: PostgresWriteOptions, *, overwrite: bool
) -> bool:
    """Empty the table, or hold it to be as the plan found it. False: it is not there, and is to be made.

    Raises:
        TargetError: the table came, went or changed since the plan was made.
    """
    drops = overwrite and not options.truncate
    if target.create is not None and not drops:
        return False  # `naming_table` finds one that was made since
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
    ((usual_timeout, millis, _),) = session.rows(_PATIENT)
    try:
        yield
    except TargetError as error:
        if is_locked(error):
            raise TargetError(
                f"table {target.label} could not be locked, which an overwrite needs: "
                f"other sessions use it. The job waited for the lock for {int(millis) / 1000:g} s at a time, "
                "so that no query queues behind it for longer, and retried for 'retryTimeout' seconds: "
                "end these sessions, or run again with a longer 'retryTimeout'"
            ) from error.__cause__
        raise
    session.rows(f"SELECT set_config('lock_timeout', '{usual_timeout}', true)")


def check_staged(
    session: PgWriteSession,
    plan: PostgresPlan,
    options: PostgresWriteOptions,
    receipts: Sequence[Receipt],
) -> None:
    """Leave exactly the rows of `receipts` in the staging table.

    Raises:
        CommitError: staged rows are gone.
    """
    stage = table_sql(plan.place.staging, plan.staging)
    # Locked before it is counted: a task that still writes adds no row behind the count.
    try:
        size = session.value(_LOCK.format(stage=stage, name=literal_sql(stage)))
    except TargetError as error:
        if sqlstate_of(error) != _NO_TABLE:
            raise
        raise CommitError(
            f"the staging table {stage} no longer exists: run the job again"
        ) from error
    if size or any(receipt.details.get(CHUNKS) for receipt in receipts):
        pages = _pages_to_pace(session, stage, options, overwrite=False)
        _keep_only(session, stage, receipts, pages)
    # After the count, which knows the numbers of the tasks' transactions: these rows get that of this one.
    for receipt in receipts:
        for names, count, data in receipt.details.get(HELD, ()):
            rows = CopyRows(names, count, [memoryview(data)])
            between = None if len(data) <= _SENT_AT_ONCE else _no_pause
            try:
                session.copy(plan.place.staging, plan.staging, rows, between)
            except TargetError as error:
                if is_refused_data(error):
                    raise TargetError(f"a row is refused. {error}") from error.__cause__
                raise


def _no_pause(_sent: int) -> None:
    """COPY in parts: a session that sends nothing for long is ended."""


def publish_stage(
    session: PgWriteSession,
    plan: PostgresPlan,
    options: PostgresWriteOptions,
    receipts: Sequence[Receipt],
) -> bool:
    """Bring the rows of `receipts`, which are all that the staging table has, into the table, and drop the staging.

    Whether the table is new.
    """
    target, stage = plan.target, table_sql(plan.place.staging, plan.staging)
    if is_there(session, target, options, overwrite=plan.overwrite):
        writers = sum(bool(receipt.rows) for receipt in receipts)
        rows = sum(receipt.rows for receipt in receipts)
        bring_staged(session, plan, stage, options, rows, overwrite=plan.overwrite, writers=writers)
        # Behind the rows, which hold its definition: before them, an ALTER that they wait for is not seen.
        table = find_table(session, target.sql, behind=f"DROP TABLE IF EXISTS {stage}")
        check_planned(DIALECT, target, table)
        return False
    if options.write_mode != "insert":
        PostgresMerge(session, target, stage, options.write_mode).refuse_bad_keys()
    if plan.stages_apart:
        _bring_into_new(session, plan, stage, options, receipts)
        return True
    with naming_table(target):
        if plan.place.staging != target.schema:
            session.execute(f"ALTER TABLE {stage} SET SCHEMA {quoted_name(target.schema)}")
            stage = table_sql(target.schema, plan.staging)
        session.execute(f"ALTER TABLE {stage} RENAME TO {quoted_name(target.name)}")
    add_comment(session, target, options)
    if target.key:
        session.execute(f"ALTER TABLE {target.sql} ADD PRIMARY KEY ({keys_sql(target)})")
    return True


def add_comment(
    session: PgWriteSession, target: TargetTable, options: PostgresWriteOptions
) -> None:
    """Give a new table the comment of option `tableComment`."""
    if options.table_comment is not None:
        comment = literal_sql(options.table_comment)
        session.execute(f"COMMENT ON TABLE {target.sql} IS {comment}")


def _bring_into_new(
    session: PgWriteSession,
    plan: PostgresPlan,
    stage: str,
    options: PostgresWriteOptions,
    receipts: Sequence[Receipt],
) -> None:
    """Make the table, whose server casts the staged values, and bring them in."""
    assert plan.new_table is not None
    with naming_table(plan.target):
        session.execute(plan.new_table.create.replace(TABLE, plan.target.sql))
    add_comment(session, plan.target, options)
    if plan.target.key:
        keys = keys_sql(plan.target)
        session.execute(f"ALTER TABLE {plan.target.sql} ADD PRIMARY KEY ({keys})")
    rows = sum(receipt.rows for receipt in receipts)
    bring_staged(session, plan, stage, options, rows, overwrite=True)
    drop_stage(session, plan.place.staging, plan.staging)


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
    session.counts_in(plan)
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
def naming_table(target: TargetTable) -> Iterator[None]:
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


def _keep_only(
    session: PgSession, stage: str, receipts: Sequence[Receipt], pages: int | None
) -> None:
    """Remove the rows of attempts that have no receipt; miss none of those that have.

    `pages`: the rows are counted in pieces. The table has no lock that others wait for yet.
    """
    expected: dict[int, int] = {}
    for receipt in receipts:
        chunks: Mapping[str, int] = receipt.details.get(CHUNKS, {})
        expected |= {int(number) % _XID: rows for number, rows in chunks.items()}
    staged: Counter[int] = Counter()

    def count(begin: int, end: int | None = None) -> None:
        some = "" if end is None else f"WHERE {of_pages('ctid', begin, end)}"
        query = f"SELECT xmin::text, count(*) FROM {stage} {some} GROUP BY xmin"  # noqa: S608 - a quoted identifier
        for number, rows in session.rows(query):
            staged[int(number)] += int(rows)

    if pages is None:
        count(0)
    else:
        WritePacer.moving(_FIRST_PAGES).run(count, 0, pages)
    lost = sum(rows - staged.get(number, 0) for number, rows in expected.items())
    if lost:
        raise CommitError(
            f"{lost} rows that tasks staged are gone from {stage}: an unlogged table is empty after its server "
            "has crashed. Run the job again"
        )
    if strange := staged.keys() - expected.keys():
        numbers = ", ".join(f"'{number}'" for number in sorted(strange))
        session.execute(f"DELETE FROM {stage} WHERE xmin::text IN ({numbers})")  # noqa: S608 - a quoted name, and numbers
