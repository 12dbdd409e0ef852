"""One connection. Outside `transaction` each statement is committed by itself."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pyarrow as pa
from firebird.driver import DatabaseError, Isolation, TraAccessMode, connect, tpb

from firebird_connector.options import Address
from spark_channel.connectors.sql import BatchSize, WriteSession, session_script
from spark_channel.errors import ChannelError

__all__ = ["BUSY", "DATA", "LOST", "TAKEN", "FirebirdSession", "has_code"]

LOST = frozenset({335544721, 335544722, 335544726, 335544727, 335544741, 335544856})
"""The server is away, or the connection was shut down."""
BUSY = frozenset({335544336, 335544345, 335544451, 335544453, 335544510})
"""A deadlock, a lock, a table in use."""
TAKEN = frozenset({335544349, 335544351, 335544665})
"""A key or a table is there already."""
DATA = frozenset(
    {335544321, 335544334, 335544347, 335544349, 335544466, 335544558, 335544665, 335544916}
)
"""What is said of rows: too long, no number, NULL, duplicate, foreign key, check."""

_MOST_ROWS = 50
_WHOLE_BLOB = 1 << 31


def has_code(error: BaseException | None, codes: frozenset[int]) -> bool:
    """Whether the driver's error, or the one behind `error`, has one of `codes`."""
    found = error if isinstance(error, DatabaseError) else getattr(error, "__cause__", None)
    return bool(codes.intersection(getattr(found, "gds_codes", None) or ()))


class FirebirdSession(WriteSession):
    """`failure` is the class of its errors. A session that reads sees one state in each transaction."""

    failures = (DatabaseError,)

    def __init__(
        self, options: Address, failure: type[ChannelError], *, reads: bool = False
    ) -> None:
        self.place, self._failure = options.place, failure
        password = None if options.password is None else options.password.get_secret_value()
        with self.explained():
            self._connection = connect(
                options.place, user=options.user, password=password, charset="UTF8"
            )
        isolation = Isolation.SNAPSHOT if reads else Isolation.READ_COMMITTED_RECORD_VERSION
        access = TraAccessMode.READ if reads else TraAccessMode.WRITE
        wait = max(1, round(options.lock_timeout))
        self._transaction = self._connection.transaction_manager(
            tpb(isolation=isolation, lock_timeout=wait, access_mode=access)
        )
        with self.closed_on_failure():
            for statement in session_script(options, ""):
                self.rows(statement)

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self.explained(), self._implied(), closing(self._transaction.cursor()) as cursor:
            cursor.execute(sql, list(parameters) or None)
            return cursor.fetchall() if cursor.description else []

    def load(self, table: str, batch: pa.RecordBatch) -> None:
        """Many rows in one statement: each costs a round trip."""
        names = batch.schema.names
        rows = list(zip(*(each.to_pylist() for each in batch.columns), strict=True))
        into = f"INSERT INTO {table} ({', '.join(names)}) VALUES"
        each = range(_MOST_ROWS)
        declared = [
            f"P{n}_{i} TYPE OF COLUMN {table}.{name} = ?"
            for n in each
            for i, name in enumerate(names)
        ]
        body = [f"{into} ({', '.join(f':P{n}_{i}' for i in range(len(names)))});" for n in each]
        whole = len(rows) // _MOST_ROWS * _MOST_ROWS
        blocks = [
            [v for row in rows[at : at + _MOST_ROWS] for v in row]
            for at in range(0, whole, _MOST_ROWS)
        ]
        self._execute_many(
            f"EXECUTE BLOCK ({', '.join(declared)}) AS BEGIN {' '.join(body)} END", blocks
        )
        self._execute_many(f"{into} ({', '.join('?' * len(names))})", rows[whole:])

    def _execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        if not rows:
            return
        with self.explained(), closing(self._transaction.cursor()) as cursor:
            statement = cursor.prepare(sql)
            try:
                cursor.executemany(statement, rows)
            finally:
                statement.free()  # before the transaction ends: a table in use cannot be dropped

    def described(self, query: str) -> Sequence[Any]:
        """What the driver says of the columns of `query`, of which nothing is fetched."""
        with self.explained(), self._implied(), closing(self._transaction.cursor()) as cursor:
            cursor.execute(query)
            return tuple(cursor.description)

    def stream(self, sql: str, size: BatchSize) -> Iterator[pa.RecordBatch]:
        with self.transaction(), self.explained(), closing(self._transaction.cursor()) as cursor:
            cursor.stream_blob_threshold = _WHOLE_BLOB
            cursor.execute(sql)
            names = [str(number) for number in range(len(cursor.description))]
            while rows := cursor.fetchmany(size.rows):
                yield pa.RecordBatch.from_arrays(
                    [pa.array(each) for each in zip(*rows, strict=True)], names
                )

    def begin(self) -> None:
        with self.explained():
            self._transaction.begin()

    def commit(self) -> None:
        with self.explained():
            self._transaction.commit()

    def undo(self) -> None:
        try:
            if self._connection is not None and self._transaction.is_active():
                self._transaction.rollback()
        except DatabaseError:
            pass  # the connection is lost, and its end rolls back too

    def explain(self, error: BaseException) -> ChannelError:
        return self._failure(f"{self.place}: {'; '.join(str(error).splitlines())}")

    @contextmanager
    def _implied(self) -> Iterator[None]:
        if self._transaction.is_active():
            yield
            return
        with self.transaction():
            yield
