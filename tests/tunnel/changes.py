"""Histories: eight writers change a table at random while it is copied; copiers, connections and servers are killed.

All by a seed; the result is compared with the output of the server's own decoder of its log.
"""

import json
import queue
import random
import re
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pymysql
from pymysql.constants.CLIENT import MULTI_STATEMENTS

from spark_channel.tunnel import Tunnel
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer
from tests.tunnel.children import Child

__all__ = ["History", "MariadbSource", "PostgresSource", "Source", "StreamedSource", "play"]

WRITERS = 8
SHARE = 10_000_000
"""New keys of each writer."""
_WAIT_SECONDS = 2.0
Event = tuple[str, int | None, str | None]
"""(operation, key, item); not all logs contain the item of a delete."""

CONSUMER = """
import json, sys
import pyarrow as pa
from spark_channel.connectors import WriteContext, load_writer
from spark_channel.tunnel import Tunnel

source, targets, store, drained, run = json.loads(sys.argv[1])
sys.stdin.readline()

def write(target, delivery, batches):
    writer, _ = load_writer(target)
    name = f"{target['dbtable']}-{delivery.channel}"
    context = WriteContext(f"{name}-{delivery.sequence}-{run}", stream=(name, delivery.sequence), commit="job")
    plan = writer.prepare(context, batches[0].schema)
    if plan.published_at is not None:
        return
    task = writer.open(plan, 0, 0)
    for batch in batches:
        task.write(batch)
    writer.commit(plan, [task.close()])

def process(delivery):
    batches, rows = list(delivery.batches), 0
    copy, events = targets
    numbered = []
    for batch in batches:
        count = batch.num_rows
        places = pa.array(range(rows, rows + count), pa.int64())
        sequence = pa.repeat(pa.scalar(delivery.sequence, pa.int64()), count)
        numbered.append(batch.append_column("_range", sequence).append_column("_place", places))
        rows += count
    if rows:
        write(copy, delivery, [batch.drop_columns(["_lsn", "_commit_ts"]) for batch in batches])
        write(events, delivery, numbered)
    sys.stdout.write(f"{rows}\\n")  # in one piece: two threads write
    sys.stdout.flush()

Tunnel("copy", source, store=store).consume(process, threads=2, drained=drained)
"""


class Source(ABC):
    """The server whose table `source` is followed."""

    @abstractmethod
    def prepare(self, rows: int) -> dict[str, str]:
        """Make the table; returns the options that read it. Writers begin when the tunnel is made."""

    @abstractmethod
    def watch(self) -> None:
        """From now on all is witnessed."""

    @abstractmethod
    def events(self) -> Iterator[Event]:
        """Return the changes since `watch` that the server's own decoder reports, in commit order."""

    @abstractmethod
    def rows(self) -> list[tuple[Any, ...]]:
        """The table, by key."""

    @abstractmethod
    def connect(self) -> Any:
        """A writer's connection, which commits each statement without a transaction."""

    @abstractmethod
    def disconnect(self) -> None:
        """End the copiers' connections."""

    @abstractmethod
    def crash(self) -> None:
        """End the server as a crash does, and start it again."""

    @abstractmethod
    def close(self) -> None:
        """Remove all of it."""

    first = ""
    """What a copier runs first."""
    passes: tuple[type[BaseException], ...]
    """What a writer meets when its server ends, or another writer holds a lock or has the key."""


class PostgresSource(Source):
    passes = (psycopg.OperationalError, psycopg.errors.UniqueViolation, psycopg.InterfaceError)

    def __init__(self, server: PostgresServer, name: str) -> None:
        self.server, self.name = server, name

    def prepare(self, rows: int) -> dict[str, str]:
        self.server.psql(
            f"CREATE SCHEMA {self.name}; SET search_path = {self.name};"
            "CREATE TABLE source (id bigint PRIMARY KEY, item text, n numeric(12,2));"
            f"INSERT INTO source SELECT i, 'old', i FROM generate_series(1, {rows}) i; ANALYZE source;"
            f"CREATE PUBLICATION {self.name} FOR TABLE source"
        )
        return {
            **self.server.login,
            "dbtable": f"{self.name}.source",
            "slot": self.name,
            "publication": self.name,
        }

    def watch(self) -> None:
        self.server.psql(
            f"SELECT pg_create_logical_replication_slot('{self.name}_witness', 'test_decoding')"
        )

    def events(self) -> Iterator[Event]:
        line = re.compile(
            rf"table {self.name}\.source: (INSERT|UPDATE|DELETE|TRUNCATE): "
            r"(?:old-key: id\[bigint\]:(\d+) new-tuple: )?(?:id\[bigint\]:(\d+))?(?: item\[text\]:(?:null|'([^']*)'))?"
        )
        with self.connect() as session, session.cursor("witness", withhold=True) as cursor:
            cursor.execute(
                f"SELECT data FROM pg_logical_slot_peek_changes('{self.name}_witness', NULL, NULL, "
                f"'include-xids', '0') WHERE data LIKE 'table {self.name}.source:%'"
            )
            for (text,) in cursor:
                found = line.match(text)
                assert found is not None, text
                what, old, key, item = found.groups()
                yield from _told(what.lower(), old, key, item)

    def rows(self) -> list[tuple[Any, ...]]:
        with self.connect() as session:
            return list(session.execute(f"SELECT * FROM {self.name}.source ORDER BY id").fetchall())

    def connect(self) -> Any:
        return psycopg.connect(
            host=str(self.server.directory),
            port=self.server.port,
            user=self.server.user,
            dbname="postgres",
            autocommit=True,
            application_name="writer",
            options=f"-c search_path={self.name}",
            connect_timeout=10,
        )

    def disconnect(self) -> None:
        self.server.psql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE backend_type IN ('client backend', 'walsender') AND application_name <> 'writer' "
            "AND pid <> pg_backend_pid()"
        )

    def crash(self) -> None:
        self.server.restart(how="immediate")

    def close(self) -> None:
        self.server.psql(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
            f"WHERE slot_name LIKE '{self.name}%'; DROP PUBLICATION {self.name}; "
            f"SET client_min_messages = error; DROP SCHEMA {self.name} CASCADE"
        )


class StreamedSource(PostgresSource):
    """Read by a replication connection that stays open, however little a look at the slot would decode."""

    first = """
from spark_channel.connectors.postgresql.log import feed
feed._MUCH_DECODED = -(1 << 62)
"""


class MariadbSource(Source):
    """`server` must have a binary log. What is committed outlives its crashes."""

    passes = (pymysql.err.MySQLError, OSError)
    reader = "history_reader"

    def __init__(self, server: MariadbServer, name: str) -> None:
        self.server, self.name = server, name
        self._first = ""

    def prepare(self, rows: int) -> dict[str, str]:
        self._survive()
        user = f"{self.reader}@'127.0.0.1'"
        self.server.sql(
            f"CREATE DATABASE {self.name} CHARACTER SET utf8mb4; USE {self.name};"
            "CREATE TABLE source (id BIGINT PRIMARY KEY, item VARCHAR(40), n DECIMAL(12,2));"
            f"INSERT INTO source SELECT seq, 'old', seq FROM seq_1_to_{rows}; ANALYZE TABLE source;"
            f"CREATE OR REPLACE USER {user} IDENTIFIED BY 'p';"
            f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {user};"
            f"GRANT SELECT ON {self.name}.source TO {user}"
        )
        url = f"mysql://127.0.0.1:{self.server.port}/{self.name}"
        return {
            "url": url,
            "user": self.reader,
            "password": "p",
            "dbtable": "source",
            "binlog": "true",
        }

    def watch(self) -> None:
        self.server.sql("FLUSH BINARY LOGS")
        self._first = self.server.sql("SHOW MASTER STATUS").split("\t")[0]

    def events(self) -> Iterator[Event]:
        names = [line.split("\t")[0] for line in self.server.sql("SHOW BINARY LOGS").splitlines()]
        files = [
            self.server.directory / "data" / name for name in names[names.index(self._first) :]
        ]
        command = [
            "mariadb-binlog",
            "--no-defaults",
            "-v",
            "--base64-output=DECODE-ROWS",
            *map(str, files),
        ]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, encoding="utf-8", errors="replace"
        ) as program:
            assert program.stdout is not None
            yield from self._parsed(program.stdout)
        assert program.returncode == 0

    def _parsed(self, lines: Iterator[str]) -> Iterator[Event]:
        begins = re.compile(rf"### (INSERT INTO|UPDATE|DELETE FROM) `{self.name}`\.`source`")
        value = re.compile(r"###   @([12])=(NULL|-?\d+|'(.*)')")
        what, database, rows = "", "", list[dict[str, str | None]]()

        def ended() -> Iterator[Event]:
            if what:
                old = rows[0]["1"] if what == "update" and rows[0]["1"] != rows[-1]["1"] else None
                yield from _told(what, old, rows[-1]["1"], rows[-1].get("2"))

        for line in lines:
            if line.startswith(("### SET", "### WHERE")):
                rows.append({})
            elif what and rows and (found := value.match(line)):
                rows[-1][found[1]] = found[3] if found[1] == "2" else found[2]
            elif not line.startswith("###   @"):
                yield from ended()
                begun = begins.match(line)
                what, rows = (begun[1].split()[0].lower() if begun else ""), []
                if line.startswith("use `"):
                    database = line.split("`")[1]
                if line.startswith("TRUNCATE") and database == self.name:
                    yield "truncate", None, None
        yield from ended()

    def rows(self) -> list[tuple[Any, ...]]:
        with self.connect() as session, session.cursor() as cursor:
            cursor.execute("SELECT * FROM source ORDER BY id")
            return list(cursor.fetchall())

    def connect(self) -> Any:
        return pymysql.connect(
            host="127.0.0.1",
            port=self.server.port,
            user=self.server.user,
            password=self.server.password,
            database=self.name,
            autocommit=True,
            client_flag=MULTI_STATEMENTS,
            connect_timeout=10,
        )

    def disconnect(self) -> None:
        mine = self.server.sql(
            f"SELECT id FROM information_schema.processlist WHERE user = '{self.reader}'"
        )
        for number in mine.split():
            try:
                self.server.sql(f"KILL {number}")
            except RuntimeError as error:
                if "Unknown thread id" not in str(error):  # it has ended meanwhile
                    raise

    def crash(self) -> None:
        self.server.stop(crash=True)
        self.server.start()
        self._survive()

    def _survive(self) -> None:
        self.server.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 2")

    def close(self) -> None:
        self.server.sql(f"DROP DATABASE {self.name}")


def _told(what: str, old: str | None, key: str | None, item: str | None) -> Iterator[Event]:
    """The events of this package's feeds: a changed key is a delete and an update."""
    if old is not None:
        yield "delete", int(old), None
    number = None if key is None else int(key)
    yield what, number, None if what in ("delete", "truncate") else item


class Writer(threading.Thread):
    """Random transactions of 1 to 40 changes, until all are made."""

    def __init__(self, history: "History", number: int) -> None:
        super().__init__(name=f"writer-{number}")
        self._history, self._number = history, number
        self._chance = random.Random(f"{history.seed}-{number}")
        self._mine = list(range(number + 1, history.base + 1, WRITERS))
        self._next = SHARE * (number + 1)
        self.error: BaseException | None = None

    def run(self) -> None:
        session = None
        source = self._history.source
        try:
            while not self._history.over:
                self._history.await_copier()
                try:
                    session = session or source.connect()
                    self._transaction(session)
                except source.passes:
                    _closed(session)
                    session = None
                    time.sleep(0.05)
        except BaseException as error:
            self.error = error
        finally:
            _closed(session)

    def _transaction(self, session: Any) -> None:
        chance, history = self._chance, self._history
        if self._number == 0:
            if (column := history.due_column()) is not None:
                session.cursor().execute(f"ALTER TABLE source ADD COLUMN IF NOT EXISTS {column}")
                history.columns.append(column.split()[0])
            if history.is_truncate_due():
                session.cursor().execute("TRUNCATE TABLE source")
                history.truncated += 1
                history.made(1)
                return
        keys: list[int] = []
        statements = [self._change(keys) for _ in range(chance.randrange(1, 41))]
        if chance.random() < 0.05:
            session.cursor().execute(";".join(["BEGIN", *statements, "ROLLBACK"]))
            return
        cursor = session.cursor()
        cursor.execute(";".join(["BEGIN", *statements, "COMMIT"]))
        count = 0
        while True:
            count += max(0, cursor.rowcount)
            if not cursor.nextset():
                break
        self._mine = [*self._mine[-2_000:], *keys]
        history.made(count)

    def _change(self, keys: list[int]) -> str:
        chance = self._chance
        choice, columns = chance.random(), list(self._history.columns)
        if choice < 0.35 or not self._mine:
            self._next += 1
            keys.append(self._next)
            names = ", ".join(["id", "item", "n", *columns])
            values = ", ".join(
                [
                    str(self._next),
                    self._text(),
                    f"{chance.randrange(10**6)}.25",
                    *map(self._value, columns),
                ]
            )
            return f"INSERT INTO source ({names}) VALUES ({values})"
        key = chance.choice(self._mine)
        if chance.random() < 0.1:  # of another writer, as a rule
            key = chance.randrange(1, self._history.base + 1)
        if choice < 0.75:
            more = "".join(f", {name} = {self._value(name)}" for name in columns)
            return f"UPDATE source SET item = {self._text()}, n = n + 1{more} WHERE id = {key}"
        if choice < 0.83:
            self._next += 1
            keys.append(self._next)
            return f"UPDATE source SET id = {self._next} WHERE id = {key}"
        return f"DELETE FROM source WHERE id = {key}"

    def _text(self) -> str:
        return (
            "NULL"
            if self._chance.random() < 0.1
            else f"'{self._number}-{self._chance.getrandbits(48):x}'"
        )

    def _value(self, column: str) -> str:
        whole = str(self._chance.randrange(10**6))
        return (
            "NULL"
            if self._chance.random() < 0.2
            else whole
            if column.startswith("i")
            else f"'t{whole}'"
        )


def _closed(session: Any) -> None:
    if session is not None:
        try:
            session.close()
        except Exception:  # its server is gone
            pass


class Copier(Child):
    def step(self, seconds: float = 120) -> int | None:
        """The rows of the next range that has any; None: it has ended."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                found = self._batches.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no range in {seconds:g} s: {self._said()}") from None
            if found != 0:
                return found

    def ended(self, seconds: float = 600) -> bool:
        """Whether it came to its end; else it failed."""
        code = self._process.wait(seconds)
        self._reader.join()
        return code == 0


@dataclass
class History:
    """`changes` random changes of a table of `base` rows; `kills` are what is killed, in this order.

    `columns` that are added, and `truncates`, come at even distances.
    """

    source: Source
    target: PostgresServer
    home: Path
    seed: int
    changes: int
    kills: Sequence[str]
    base: int = 2_000
    added: Sequence[str] = ("i1 integer", "t1 varchar(20)")
    truncates: int = 2
    ranges: int = 800
    columns: list[str] = field(default_factory=list)
    restarts: int = 0
    done: int = 0
    seen: int = 0
    truncated: int = 0
    _moved: threading.Condition = field(default_factory=threading.Condition)
    _runs: int = 0

    @property
    def over(self) -> bool:
        return self.done >= self.changes

    def made(self, count: int) -> None:
        with self._moved:
            self.done += count

    def copied(self, count: int) -> None:
        with self._moved:
            self.seen += count
            self._moved.notify_all()

    def due_column(self) -> str | None:
        number, most = len(self.columns), len(self.added)
        is_due = number < most and self.done >= self.changes * (number + 1) // (most + 1)
        return self.added[number] if is_due else None

    def is_truncate_due(self) -> bool:
        number, most = self.truncated, self.truncates
        return number < most and self.done >= self.changes * (number + 1) // (most + 1)

    def await_copier(self) -> None:
        """Writers stay ahead of the copy by a few ranges: else all kills would come when all is written."""
        with self._moved:
            self._moved.wait_for(
                lambda: self.over or self.done - self.seen < 2 * self.ranges, timeout=_WAIT_SECONDS
            )

    def play(self) -> dict[str, int]:
        """Let it happen; returns what happened, in numbers.

        Raises:
            AssertionError: something was lost, doubled, or is different.
        """
        chance = random.Random(self.seed)
        given = self.source.prepare(self.base)
        schema = f"history_{self.seed}_{id(self)}"
        self._make_targets(schema)
        reader = {
            **given,
            "onSchemaChange": "evolve",
            "onError": "stop",
            "maxRetryInterval": "0.5",
            "maxRowsPerTrigger": str(self.ranges),
            "heartbeatInterval": "5",
            "heartbeatTimeout": "60",
        }
        at = {**self.target.login, "onSchemaChange": "evolve"}
        targets = [
            {**at, "dbtable": f"{schema}.copy", "writeMode": "apply", "keyColumns": "id"},
            {**at, "dbtable": f"{schema}.events"},
        ]
        store = str(self.home / "tunnels.db")
        tunnel = Tunnel("copy", reader, store=store)
        tunnel.create()
        self.source.watch()
        writers = [Writer(self, number) for number in range(WRITERS)]
        copiers: list[Copier] = []

        def start(*, drained: bool = False) -> Copier:
            self._runs += 1
            arguments = json.dumps([reader, targets, store, drained, self._runs])
            copiers.append(
                Copier(self.source.first + CONSUMER, [arguments], self.home / "copier.log")
            )
            return copiers[-1]

        try:
            current, spare = start(), start()
            current.go()
            # On a slow machine the writers would change or delete each existing row before it is read.
            assert current.step() is not None, current._said()
            for writer in writers:
                writer.start()
            for place, kill in enumerate([*self.kills, ""], 1):
                due, has_copied = self.changes * place // (len(self.kills) + 1), False
                while self.done < due or not (has_copied or self.over):
                    if (rows := current.step()) is not None:
                        has_copied = True
                        self.copied(rows)
                        continue
                    self.restarts += 1  # its table has another column, or its server was gone
                    assert self.restarts < 10 + 2 * len(self.kills), current._said()
                    current, spare = spare, start()
                    current.go()
                time.sleep(0.1 * chance.random())  # anywhere in a range
                if kill == "copier":
                    current.kill()
                    current, spare = spare, start()
                    current.go()
                elif kill == "connection":
                    self.source.disconnect()
                elif kill:
                    self.source.crash()
            for writer in writers:
                writer.join()
                assert writer.error is None, writer.error
            current.kill()
            spare.kill()
            for _ in range(4):  # its table may have got a column
                last = start(drained=True)
                last.go()
                if last.ended():
                    break
                self.restarts += 1
            else:
                raise AssertionError(last._said())
            return self._judge(schema)
        finally:
            self.done = self.changes
            for writer in writers:
                if writer.ident is not None:
                    writer.join()
            for copier in copiers:
                copier.kill()
            tunnel.delete()
            self.target.psql(f"SET client_min_messages = error; DROP SCHEMA {schema} CASCADE")

    def _make_targets(self, schema: str) -> None:
        self.target.psql(
            f"CREATE SCHEMA {schema}; SET search_path = {schema};"
            "CREATE TABLE copy (id bigint PRIMARY KEY, item text, n numeric(12,2));"
            "CREATE TABLE events (id bigint, item text, n numeric(12,2), _op text, _lsn text, _commit_ts timestamptz, "
            "_range bigint, _place bigint)"
        )

    def _judge(self, schema: str) -> dict[str, int]:
        ours = self.source.rows()
        names = ["id", "item", "n", *self.columns]
        with psycopg.connect(
            host=str(self.target.directory),
            port=self.target.port,
            user=self.target.user,
            dbname="postgres",
        ) as session:
            copied = session.execute(
                f"SELECT {', '.join(names)} FROM {schema}.copy ORDER BY id"
            ).fetchall()
            assert copied == ours, _differences(ours, copied)
            found = session.execute(
                f"SELECT _op, id, item FROM {schema}.events ORDER BY _range, _place"
            ).fetchall()
        delivered = [
            (what, key, None if what in ("delete", "truncate") else item)
            for what, key, item in found
        ]
        events = [event for event in delivered if event[0] != "read"]
        witnessed = list(self.source.events())
        assert len(events) == len(witnessed), (
            f"{len(events)} events arrived, and {len(witnessed)} happened"
        )
        for place, (mine, theirs) in enumerate(zip(events, witnessed, strict=True)):
            assert mine == theirs, f"event {place} is {mine}, and was {theirs}"
        reads = [key for what, key, _ in delivered if what == "read"]
        assert len(reads) == len(set(reads)), "an existing row arrived twice"
        assert play(delivered) == {row[0]: row[1] for row in ours}, "the events make another table"
        return {
            "changes": self.done,
            "events": len(events),
            "read": len(reads),
            "rows": len(ours),
            "kills": len(self.kills),
            "restarts": self.restarts,
        }


def play(events: Sequence[Event]) -> dict[int | None, str | None]:
    """The table that events make."""
    state: dict[int | None, str | None] = {}
    for what, key, item in events:
        if what == "truncate":
            state.clear()
        elif what == "delete":
            state.pop(key, None)
        else:
            state[key] = item
    return state


def _differences(ours: Sequence[tuple[Any, ...]], copied: Sequence[tuple[Any, ...]]) -> str:
    one, other = {row[0]: row for row in ours}, {row[0]: row for row in copied}
    different = [key for key in one.keys() | other.keys() if one.get(key) != other.get(key)]
    few = [(one.get(key), other.get(key)) for key in sorted(different)[:5]]
    return f"{len(different)} rows of {len(ours)} differ, (source, copy): {few}"
