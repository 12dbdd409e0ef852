"""Changes of tables, as feeds read them, and as other readers of the servers' logs do."""

import datetime as dt
import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_channel.connectors import load_reader
from spark_channel.connectors.base.feed import ChangeFeed, FeedLimit, FeedOptions
from tests.behaviour.differential import inputs
from tests.behaviour.differential.lengths import either_length, examples
from tests.behaviour.differential.sql_texts import (
    MARIADB,
    POSTGRESQL,
    Declared,
    copied_rows,
    parsed,
)
from tests.behaviour.differential.tables import Found, difference, from_arrow, number, of_rows
from tests.behaviour.differential.test_databases import literal, mysql_literal
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

NO_LIMIT = FeedLimit()
_numbers = itertools.count()


@dataclass(frozen=True)
class History:
    """Statements on a table with the key `id` and these columns; each inner list is a transaction."""

    columns: tuple[Declared, ...]
    transactions: tuple[tuple[tuple[Any, ...], ...], ...]


@st.composite
def histories(draw: st.DrawFn, declared: Sequence[Declared]) -> History:
    columns = tuple(draw(st.lists(st.sampled_from(list(declared)), min_size=1, max_size=4)))
    there: set[int] = set()
    transactions = []
    for _ in range(draw(st.integers(1, 4))):
        steps: list[tuple[Any, ...]] = []
        for _ in range(draw(st.integers(1, 5))):
            values = [draw(inputs.maybe(each.values)) for each in columns]
            what = draw(st.sampled_from(["insert", "update", "delete", "rekey"]))
            key = draw(st.integers(1, 4))
            if what == "insert" or not there:
                free = min(set(range(1, 30)) - there)
                there.add(free)
                steps.append(("insert", free, values))
                continue
            key = sorted(there)[key % len(there)]
            if what == "update":
                steps.append(("update", key, values))
            elif what == "delete":
                there.discard(key)
                steps.append(("delete", key))
            else:
                free = min(set(range(1, 30)) - there)
                there.remove(key)
                there.add(free)
                steps.append(("rekey", key, free))
        transactions.append(tuple(steps))
    return History(columns, tuple(transactions))


def script(history: History, table: str, values: Any) -> str:
    """The SQL of a history; `values` makes literals of a row's values."""
    statements = []
    for steps in history.transactions:
        statements.append("BEGIN")
        for what, key, *more in steps:
            if what == "insert":
                row = ", ".join([str(key), *values(history.columns, more[0])])
                statements.append(f"INSERT INTO {table} VALUES ({row})")
            elif what == "update":
                row = values(history.columns, more[0])
                new = ", ".join(f"c{number} = {value}" for number, value in enumerate(row))
                statements.append(f"UPDATE {table} SET {new} WHERE id = {key}")
            elif what == "delete":
                statements.append(f"DELETE FROM {table} WHERE id = {key}")
            else:
                statements.append(f"UPDATE {table} SET id = {more[0]} WHERE id = {key}")
        statements.append("COMMIT")
    return ";\n".join(statements)


def found_by(feed: ChangeFeed, start: Any, names: Sequence[str]) -> Found:
    """All changes after `start`: the operation and the columns."""
    end = feed.latest(start, NO_LIMIT)
    batches = [batch for split in feed.changes(start, end) for batch in feed.read(split)]
    if not batches:
        return of_rows(["_op", *names], ["text"] * (len(names) + 1), [])
    return from_arrow(pa.Table.from_batches(batches).select(["_op", *names]))


def assert_same_changes(ours: Found, names: Sequence[str], kinds: Sequence[str], rows: Any) -> None:
    theirs = of_rows(["_op", *names], ["text", *kinds], rows)
    if not theirs.rows:
        assert not ours.rows
        return
    found = difference(ours, theirs)
    assert found is None, found


# PostgreSQL: test_decoding prints what pgoutput sends

_VALUE = re.compile(r"(\w+)\[((?:[^\[\]]|\[\])*)\]:('(?:[^']|'')*'|\S+)", re.DOTALL)
_CHANGE = re.compile(r"table public\.\w+: (INSERT|UPDATE|DELETE): (.*)", re.DOTALL)


def decoded(
    lines: Sequence[str], names: Sequence[str], kinds: Sequence[str]
) -> Iterator[list[Any]]:
    """The rows that a feed gives of these lines: an update of a key is a delete and an update."""
    for line in lines:
        change = _CHANGE.fullmatch(line)
        if change is None:
            assert line.startswith(("BEGIN", "COMMIT")), line
            continue
        what, rest = change[1].lower(), change[2]
        if rest.startswith("old-key: "):
            old, _, rest = rest.removeprefix("old-key: ").partition(" new-tuple: ")
            yield ["delete", *_values(old, names, kinds)]
        yield [what, *_values(rest, names, kinds)]


def _values(text: str, names: Sequence[str], kinds: Sequence[str]) -> list[Any]:
    found = {
        name: None
        if value == "null"
        else value[1:-1].replace("''", "'")
        if value[0] == "'"
        else value
        for name, _, value in _VALUE.findall(text)
    }
    return [parsed(found.get(name), kind) for name, kind in zip(names, kinds, strict=True)]


_PLAIN = re.compile(r"bit|xml|.*\[\]")
"""Types that test_decoding prints in another form, and arrays, which a feed refuses."""


@either_length
def test_a_slot_gives_what_test_decoding_prints(
    postgres_server: PostgresServer, length: str
) -> None:
    sql = postgres_server.psql

    @examples(length, quick=4)
    @given(histories([each for each in POSTGRESQL if not _PLAIN.match(each.declared)]))
    def check(history: History) -> None:
        table = f"differs_{next(_numbers)}"
        declared = [f"c{at} {each.declared}" for at, each in enumerate(history.columns)]
        names = ["id", *(f"c{at}" for at in range(len(declared)))]
        kinds = ["int32", *(each.kind for each in history.columns)]
        sql(f"CREATE TABLE {table} ({', '.join(['id int PRIMARY KEY', *declared])})")
        sql(f"CREATE PUBLICATION {table} FOR TABLE {table}")
        try:
            reader, _ = load_reader({**postgres_server.login, "dbtable": table})
            feed = reader.feed(FeedOptions(slot=table, publication=table))
            (start,) = feed.now()
            sql(f"SELECT pg_create_logical_replication_slot('{table}_other', 'test_decoding')")
            sql(script(history, table, lambda _, row: map(literal, row)))
            ours = found_by(feed, start, names)
            printed = sql(
                f"COPY (SELECT data FROM pg_logical_slot_get_changes('{table}_other', NULL, NULL)) TO STDOUT"
            )
            lines = [str(line) for (line,) in copied_rows(printed)]
            assert_same_changes(ours, names, kinds, list(decoded(lines, names, kinds)))
        finally:
            sql(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
                f"WHERE slot_name IN ('{table}', '{table}_other'); "
                f"DROP PUBLICATION {table}; DROP TABLE {table}"
            )

    check()


# MariaDB: mysql-replication reads the binary log


def binlog_rows(
    server: MariadbServer,
    table: str,
    start: tuple[str, int],
    names: Sequence[str],
    kinds: Sequence[str],
) -> Iterator[list[Any]]:
    from pymysqlreplication import BinLogStreamReader
    from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

    stream = BinLogStreamReader(
        connection_settings={
            "host": "127.0.0.1",
            "port": server.port,
            "user": server.user,
            "password": server.password,
        },
        server_id=4711,
        log_file=start[0],
        log_pos=start[1],
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
        only_tables=[table],
        resume_stream=True,
        is_mariadb=False,
        enable_logging=False,
    )

    def values(row: dict[str, Any]) -> list[Any]:
        return [_binlog(row[name], kind) for name, kind in zip(names, kinds, strict=True)]

    with closing(stream):
        for event in stream:
            for row in event.rows:
                if isinstance(event, WriteRowsEvent):
                    yield ["insert", *values(row["values"])]
                elif isinstance(event, DeleteRowsEvent):
                    yield ["delete", *values(row["values"])]
                else:
                    if row["before_values"]["id"] != row["after_values"]["id"]:
                        yield ["delete", *values(row["before_values"])]
                    yield ["update", *values(row["after_values"])]


def _binlog(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind == "bool":
        return bool(int(value))
    if kind in ("float32", "float64"):
        return number(value)
    if isinstance(value, dt.datetime):
        return (value - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1) * 1000
    if isinstance(value, dt.date):
        return (value - dt.date(1970, 1, 1)).days
    if isinstance(value, dt.timedelta):
        return value // dt.timedelta(microseconds=1) * 1000
    if kind in ("int64", "uint64") and isinstance(value, str):
        return int(value, 2)
    if isinstance(value, set):
        return ",".join(sorted(value))
    if kind == "text" and isinstance(value, bytes):
        return value.decode()
    if kind == "binary" and isinstance(value, str):
        return value.encode()
    return value if not isinstance(value, Decimal) else Decimal(value)


_NOT_FOLLOWED = re.compile(r"zerofill|character set|\(200\)|inet6|uuid|^binary")
"""mysql-replication leaves these as they are stored."""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # mysql-replication's own
@either_length
def test_the_binary_log_gives_what_mysql_replication_reads(
    logging_server: MariadbServer, length: str
) -> None:
    pytest.importorskip("pymysqlreplication", reason="mysql-replication reads the log, too")
    columns = [
        # It gives None for a set without members.
        replace(each, values=st.sampled_from(["a", "a,c"]))
        if each.declared.startswith("set")
        else each
        for each in MARIADB
        if not _NOT_FOLLOWED.search(each.declared)
    ]

    @examples(length, quick=10)
    @given(histories(columns))
    def check(history: History) -> None:
        table = f"differs_{next(_numbers)}"
        declared = [f"c{at} {each.declared}" for at, each in enumerate(history.columns)]
        names = ["id", *(f"c{at}" for at in range(len(declared)))]
        kinds = ["int32", *(each.kind for each in history.columns)]
        logging_server.sql(
            f"CREATE TABLE {table} ({', '.join(['id int PRIMARY KEY', *declared])})",
            database="shop",
        )
        try:
            reader, _ = load_reader({**logging_server.login, "dbtable": table, "binlog": "true"})
            feed = reader.feed(FeedOptions())
            (start,) = feed.now()
            file, position, *_ = logging_server.sql("SHOW MASTER STATUS").split("\t")
            made = script(
                history,
                table,
                lambda declared, row: [
                    mysql_literal(value, each.kind)
                    for each, value in zip(declared, row, strict=True)
                ],
            )
            logging_server.sql(made, database="shop")
            ours = found_by(feed, start, names)
            theirs = list(binlog_rows(logging_server, table, (file, int(position)), names, kinds))
            assert_same_changes(ours, names, kinds, theirs)
        finally:
            logging_server.sql(f"DROP TABLE {table}", database="shop")

    check()
