"""The stores of tunnels in SQLite and PostgreSQL, chosen by url."""

import os
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

from spark_channel.clock import utc_now
from spark_channel.connectors.base.contract import Token
from spark_channel.connectors.sqlite.session import SqliteSession
from spark_channel.errors import OptionError, TunnelError, TunnelStoreError, UnsupportedError
from spark_channel.processes import has_ended
from spark_channel.serialization import dump_tagged
from spark_channel.tunnel import state_machine
from spark_channel.tunnel.records import (
    Channel,
    ChannelState,
    ChannelStatus,
    Client,
    TokenTest,
    TunnelRecord,
    TunnelState,
    TunnelStore,
    TunnelType,
)
from spark_channel.tunnel.stored_channels import (
    CHANNEL_COLUMNS,
    changing,
    channel_of,
    has_places,
    params_of,
    place_changes,
)

__all__ = [
    "SCHEMA",
    "PostgresStore",
    "SqlStore",
    "SqliteStore",
    "Statements",
    "default_store",
    "open_store",
]

SCHEMA = (
    """CREATE TABLE IF NOT EXISTS spark_channel_tunnels (
      name TEXT PRIMARY KEY, id TEXT NOT NULL, type TEXT NOT NULL, source TEXT NOT NULL,
      schema_text TEXT NOT NULL, created_at DOUBLE PRECISION NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS spark_channel_tunnel_channels (
      tunnel TEXT NOT NULL REFERENCES spark_channel_tunnels (name), id TEXT NOT NULL, place BIGINT NOT NULL,
      params TEXT NOT NULL, parents TEXT NOT NULL, state TEXT NOT NULL, version BIGINT NOT NULL,
      client TEXT NOT NULL, closing_beats BIGINT NOT NULL, sequence BIGINT NOT NULL, token TEXT NOT NULL,
      pending TEXT NOT NULL, PRIMARY KEY (tunnel, id))""",
    """CREATE TABLE IF NOT EXISTS spark_channel_tunnel_clients (
      tunnel TEXT NOT NULL REFERENCES spark_channel_tunnels (name), id TEXT NOT NULL, tag TEXT NOT NULL,
      timeout DOUBLE PRECISION NOT NULL, last_seen DOUBLE PRECISION NOT NULL, host TEXT NOT NULL,
      process TEXT NOT NULL, PRIMARY KEY (tunnel, id))""",
    """CREATE TABLE IF NOT EXISTS spark_channel_tunnel_notes (
      tunnel TEXT NOT NULL REFERENCES spark_channel_tunnels (name), id TEXT NOT NULL, said TEXT NOT NULL,
      PRIMARY KEY (tunnel, id))""",
    """CREATE TABLE IF NOT EXISTS spark_channel_tunnel_places (
      tunnel TEXT NOT NULL, channel TEXT NOT NULL, id TEXT NOT NULL, place BIGINT NOT NULL, said TEXT NOT NULL,
      PRIMARY KEY (tunnel, channel, id))""",
)
"""The store's tables, one statement each."""
_TUNNELS = "SELECT name, id, type, source, schema_text, created_at FROM spark_channel_tunnels"
ONE_TUNNEL = f"{_TUNNELS} WHERE name = ?"
_CHANNELS = f"SELECT {CHANNEL_COLUMNS} FROM spark_channel_tunnel_channels WHERE tunnel = ?"  # noqa: S608 - constants
_NOTES = "SELECT id, said FROM spark_channel_tunnel_notes WHERE tunnel = ? ORDER BY id"
_ONE_NOTE = "SELECT said FROM spark_channel_tunnel_notes WHERE tunnel = ? AND id = ?"
_NOTE = "INSERT INTO spark_channel_tunnel_notes (tunnel, id, said) VALUES (?, ?, ?)"
_OF_CHANNEL = "FROM spark_channel_tunnel_places WHERE tunnel = ? AND channel = ?"
_CLIENTS = "SELECT id, tag, timeout, last_seen, host, process FROM spark_channel_tunnel_clients WHERE tunnel = ?"
_MAKING = 0x5C_7A_11
"""The advisory lock under which tables are made: two who make one at a time get an error otherwise."""
_UNDEFINED_TABLE = "42P01"
_LOCK_TIMEOUT = 30.0


def default_store() -> Path:
    """Return the default file for tunnels, in `SPARK_CHANNEL_HOME` or the user's home."""
    home = os.environ.get("SPARK_CHANNEL_HOME")
    return (Path(home) if home else Path.home() / ".spark_channel") / "tunnels.db"


def open_store(place: str | None = None) -> TunnelStore:
    """The store at `place`: a file's path (SQLite), or `postgresql://user:password@host/database`.

    Nothing is opened yet.

    Raises:
        OptionError: a url of another kind.
    """
    text = str(default_store()) if place is None else place.strip().removeprefix("jdbc:")
    if text.startswith(("postgresql:", "postgres:")):
        return PostgresStore(text)
    scheme, mark, _ = text.partition("://")
    if mark and scheme not in ("sqlite", "file"):
        raise OptionError(
            f"option 'tunnelStore' has scheme {scheme!r}; it takes a file's path (SQLite), or postgresql://...",
            option="tunnelStore",
            got=scheme,
            takes="a file's path, or postgresql://...",
        )
    if not text:
        raise OptionError(
            "option 'tunnelStore' is empty: give a file's path or postgresql://...",
            option="tunnelStore",
            got="",
        )
    path = text.partition("://")[2] if mark else text.removeprefix("sqlite:")
    return SqliteStore(Path(path))


class Statements(Protocol):
    """One transaction. Parameters are written as `?`."""

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]: ...

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> None: ...


class SqlStore(ABC):
    """See `TunnelStore`."""

    _has_notes = False
    _has_tables: ClassVar[str]
    """A statement that gives a row where the store's tables are made."""

    @abstractmethod
    def show(self) -> str: ...

    def named(self, name: str) -> str:
        return f"{shlex.quote(name)} --store {shlex.quote(self.show())}"

    @abstractmethod
    def _transaction(self, *, make: bool = False) -> AbstractContextManager[Statements]:
        """A write transaction; `make`: the tables are made when they do not exist.

        Raises:
            TunnelError: the store cannot be reached, or has no tables.
        """

    def _make(self, statements: Statements) -> None:
        """Make the tables that are not there."""
        for statement in SCHEMA:
            statements.execute(statement)

    @abstractmethod
    def _lock(self, statements: Statements, name: str) -> list[tuple[Any, ...]]:
        """The tunnel's row, held until the transaction ends; [] when there is none."""

    @abstractmethod
    def _now(self, statements: Statements) -> float:
        """Seconds of the store's clock."""

    def create(self, record: TunnelRecord, channels: Sequence[Channel]) -> TunnelRecord:
        with self._transaction(make=True) as statements:
            if self._lock(statements, record.name):
                raise TunnelError(f"there is a tunnel {record.name!r} in {self.show()} already")
            return self._add(statements, record, channels)

    def get(self, name: str) -> TunnelRecord:
        with self._transaction() as statements:
            return self._record(statements, name)

    def all(self, *, make: bool = False) -> list[TunnelRecord]:
        with self._transaction(make=make) as statements:
            if not statements.rows(self._has_tables):
                return []
            return [_tunnel(row) for row in statements.rows(f"{_TUNNELS} ORDER BY name")]

    def delete(self, name: str) -> None:
        self.get(name)
        with self._transaction(make=True) as statements:
            self._record(statements, name)
            self._remove(statements, name)

    def reset(self, name: str, record: TunnelRecord, channels: Sequence[Channel]) -> TunnelRecord:
        self.get(name)
        with self._transaction(make=True) as statements:
            self._record(statements, name)
            notes = statements.rows(_NOTES, (name,))
            self._remove(statements, name)
            created = self._add(statements, record, channels)
            for note in notes:  # they refer to the record
                statements.execute(_NOTE, (name, *note))
            return created

    def state(self, name: str) -> TunnelState:
        with self._transaction() as statements:
            self._record(statements, name)
            return self._load(statements, name)

    def channel(self, name: str, channel: str) -> Channel:
        with self._transaction() as statements:
            return self._load_one(statements, name, channel).channels[channel]

    def connect(self, name: str, client: Client) -> None:
        with self._transaction() as statements:
            self._record(statements, name)
            old = TunnelState({}, self._clients(statements, name))
            new = state_machine.connect(old, client, self._now(statements))
            self._save(statements, name, old, new)

    def disconnect(self, name: str, client: str) -> None:
        with self._transaction() as statements:
            if self._lock(statements, name):
                old = self._load(statements, name)
                self._save(statements, name, old, state_machine.disconnect(old, client))

    def heartbeat(
        self, name: str, client: str, report: Sequence[ChannelStatus], wanted: Collection[str] = ()
    ) -> tuple[Channel, ...]:
        with self._transaction() as statements:
            self._record(statements, name)
            old = self._load(statements, name)
            gone = [
                other.id for other in old.clients.values() if has_ended(other.host, other.process)
            ]
            new = state_machine.heartbeat(
                old, client, report, self._now(statements), gone=gone, wanted=wanted
            )
            self._save(statements, name, old, new)
            return state_machine.assigned(new, client)

    def hand_out(self, name: str, client: str, channel: str, sequence: int, end: Token) -> Token:
        with self._transaction() as statements:
            old = self._load_one(statements, name, channel)
            new = state_machine.hand_out(old, client, channel, sequence, end)
            self._save(statements, name, old, new)
            return state_machine.handed_out(new, channel, sequence)

    def checkpoint(
        self,
        name: str,
        client: str,
        channel: str,
        sequence: int,
        token: Token,
        in_flight: Mapping[str, int] | None = None,
    ) -> None:
        with self._transaction() as statements:
            old = self._load_one(statements, name, channel)
            now = self._now(statements)
            new = state_machine.checkpoint(old, client, channel, sequence, token, now, in_flight)
            self._save(statements, name, old, new)

    def park(self, name: str, client: str, channel: str, sequence: int, reason: str) -> None:
        with self._transaction() as statements:
            old = self._load_one(statements, name, channel)
            self._save(
                statements, name, old, state_machine.park(old, client, channel, sequence, reason)
            )

    def resume(self, name: str, channels: Collection[str] | None = None) -> tuple[str, ...]:
        with self._transaction() as statements:
            self._record(statements, name)
            old = new = self._load(statements, name)
            self._check_known(name, old, channels)
            parked = tuple(
                key
                for key, channel in old.channels.items()
                if channel.state is ChannelState.PARKED and (channels is None or key in channels)
            )
            for key in parked:
                new = state_machine.resume(new, key)
            self._save(statements, name, old, new)
            return parked

    def pause_base(
        self, name: str, channels: Collection[str] | None = None, *, paused: bool = True
    ) -> tuple[str, ...]:
        with self._transaction() as statements:
            self._record(statements, name)
            old = new = self._load(statements, name)
            self._check_known(name, old, channels)
            changed = []
            for key, channel in old.channels.items():
                if channels is not None and key not in channels:
                    continue
                new = (
                    state_machine.pause_base(new, key)
                    if paused
                    else state_machine.resume_base(new, key)
                )
                if new.channels[key].paused != channel.paused:
                    changed.append(key)
            self._save(statements, name, old, new)
            return tuple(changed)

    def split(
        self, name: str, channel: str, divide: Callable[[Token], Sequence[Token]]
    ) -> tuple[str, ...]:
        with self._transaction() as statements:
            self._record(statements, name)
            old = self._load(statements, name)
            new, parts = state_machine.split(old, channel, divide)
            self._save(statements, name, old, new)
            return parts

    def continued(
        self, name: str, change: Callable[[Token], Token], *, at_once: TokenTest | None = None
    ) -> str:
        with self._transaction() as statements:
            self._record(statements, name)
            old = self._load(statements, name)
            new, channel = state_machine.continued(old, change, at_once=at_once)
            self._save(statements, name, old, new)
            return channel

    def release(self, name: str, client: str, channels: Collection[str]) -> None:
        with self._transaction() as statements:
            if self._lock(statements, name):
                old = self._load(statements, name)
                self._save(statements, name, old, state_machine.release(old, client, channels))

    def note(self, name: str, key: str, text: str | None) -> None:
        with self._noting() as statements:
            self._record(statements, name)
            note_key = (name, key)
            statements.execute(
                "DELETE FROM spark_channel_tunnel_notes WHERE tunnel = ? AND id = ?", note_key
            )
            if text is not None:
                statements.execute(_NOTE, (*note_key, text))

    def notes(self, name: str) -> dict[str, str]:
        with self._noting() as statements:
            return {str(key): str(text) for key, text in statements.rows(_NOTES, (name,))}

    def note_of(self, name: str, key: str) -> str | None:
        with self._noting() as statements:
            rows = statements.rows(_ONE_NOTE, (name, key))
            return str(rows[0][0]) if rows else None

    @contextmanager
    def _noting(self) -> Iterator[Statements]:
        """A transaction on a store that has notes, which an early version did not make."""
        with self._transaction(make=not self._has_notes) as statements:
            yield statements
        self._has_notes = True

    def now(self) -> float:
        with self._transaction() as statements:
            return self._now(statements)

    def _check_known(self, name: str, state: TunnelState, channels: Collection[str] | None) -> None:
        unknown = sorted(set(channels or ()) - set(state.channels))
        if unknown:
            raise TunnelError(
                f"tunnel {name!r} has no channel {', '.join(map(repr, unknown))}; "
                f"`spark-channel tunnel describe {self.named(name)}` lists those that it has"
            )

    def _record(self, statements: Statements, name: str) -> TunnelRecord:
        rows = self._lock(statements, name)
        if not rows:
            names = [row[0] for row in statements.rows(f"{_TUNNELS} ORDER BY name")]
            raise TunnelError(
                f"tunnel {name!r} does not exist in {self.show()}, "
                f"which has {', '.join(map(repr, names)) or 'none'}; "
                "make it with `spark-channel tunnel create`, or name another"
            )
        return _tunnel(rows[0])

    def _add(
        self, statements: Statements, record: TunnelRecord, channels: Sequence[Channel]
    ) -> TunnelRecord:
        record = replace(record, created_at=self._now(statements))
        statements.execute(
            "INSERT INTO spark_channel_tunnels (name, id, type, source, schema_text, created_at) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (
                record.name,
                record.id,
                str(record.type),
                record.source,
                record.schema,
                record.created_at,
            ),
        )
        for channel in channels:
            self._insert(statements, record.name, channel)
        return record

    def _insert(self, statements: Statements, name: str, channel: Channel) -> None:
        self._save_places(statements, name, None, channel)
        statements.execute(
            f"INSERT INTO spark_channel_tunnel_channels (tunnel, {CHANNEL_COLUMNS}) "  # noqa: S608 - constants
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                name,
                channel.id,
                channel.place,
                params_of(channel),
                dump_tagged(channel.parents),
                *changing(channel),
            ),
        )

    def _remove(self, statements: Statements, name: str) -> None:
        for table in ("tunnel_notes", "tunnel_clients", "tunnel_places", "tunnel_channels"):
            statements.execute(f"DELETE FROM spark_channel_{table} WHERE tunnel = ?", (name,))  # noqa: S608 - a constant name
        statements.execute("DELETE FROM spark_channel_tunnels WHERE name = ?", (name,))

    def _load(self, statements: Statements, name: str) -> TunnelState:
        rows = statements.rows(f"{_CHANNELS} ORDER BY place", (name,))
        return self._state(statements, name, rows)

    def _load_one(self, statements: Statements, name: str, channel: str) -> TunnelState:
        self._record(statements, name)
        rows = statements.rows(f"{_CHANNELS} AND id = ?", (name, channel))
        return self._state(statements, name, rows)

    def _state(
        self, statements: Statements, name: str, rows: Sequence[tuple[Any, ...]]
    ) -> TunnelState:
        channels = {}
        for row in rows:
            key, places = str(row[0]), {}
            if has_places(row):  # else an earlier version wrote it, or it is not of several tables
                sql = f"SELECT id, said {_OF_CHANNEL} ORDER BY place, id"
                places = dict(statements.rows(sql, (name, key)))
            channels[key] = channel_of(row, places)
        return TunnelState(channels, self._clients(statements, name))

    def _save_places(
        self, statements: Statements, name: str, old: Channel | None, new: Channel
    ) -> None:
        """Before the channel's row is written, which says whether it has places in rows already."""
        channel_key = (name, new.id)
        changes = place_changes(old, new)
        if changes is None:
            return
        rows = [] if old is None else statements.rows(f"{_CHANNELS} AND id = ?", channel_key)
        if not any(map(has_places, rows)):
            self._make(statements)  # a store of an earlier version lacks the table
            changes = place_changes(None, new) or changes
            statements.execute(f"DELETE {_OF_CHANNEL}", channel_key)
        for table in changes.removed:
            statements.execute(f"DELETE {_OF_CHANNEL} AND id = ?", (*channel_key, table))
        for table, text in changes.changed.items():
            statements.execute(
                "UPDATE spark_channel_tunnel_places SET said = ? "
                "WHERE tunnel = ? AND channel = ? AND id = ?",
                (text, *channel_key, table),
            )
        if changes.added:
            ((last,),) = statements.rows(f"SELECT MAX(place) {_OF_CHANNEL}", channel_key)
            for index, (table, text) in enumerate(changes.added.items(), 1 + int(last or 0)):
                statements.execute(
                    "INSERT INTO spark_channel_tunnel_places (tunnel, channel, id, place, said) "
                    "VALUES (?, ?, ?, ?, ?)",
                    (*channel_key, table, index, text),
                )

    def _clients(self, statements: Statements, name: str) -> Mapping[str, Client]:
        return {row[0]: Client(*row) for row in statements.rows(_CLIENTS, (name,))}

    def _save(self, statements: Statements, name: str, old: TunnelState, new: TunnelState) -> None:
        for key, channel in new.channels.items():
            before = old.channels.get(key)
            if before is None:
                self._insert(statements, name, channel)
            elif channel != before:
                self._save_places(statements, name, before, channel)
                statements.execute(
                    "UPDATE spark_channel_tunnel_channels SET params = ?, state = ?, version = ?, client = ?, "
                    "closing_beats = ?, sequence = ?, token = ?, pending = ? WHERE tunnel = ? AND id = ?",
                    (params_of(channel), *changing(channel), name, key),
                )
        for key in old.clients.keys() - new.clients.keys():
            statements.execute(
                "DELETE FROM spark_channel_tunnel_clients WHERE tunnel = ? AND id = ?", (name, key)
            )
        for key, client in new.clients.items():
            existing = old.clients.get(key)
            if existing is None:
                statements.execute(
                    "INSERT INTO spark_channel_tunnel_clients "
                    "(tunnel, id, tag, timeout, last_seen, host, process) VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (
                        name,
                        client.id,
                        client.tag,
                        client.timeout,
                        client.last_seen,
                        client.host,
                        client.process,
                    ),
                )
            elif existing != client:
                statements.execute(
                    "UPDATE spark_channel_tunnel_clients SET last_seen = ? WHERE tunnel = ? AND id = ?",
                    (client.last_seen, name, key),
                )


def _tunnel(row: tuple[Any, ...]) -> TunnelRecord:
    name, key, kind, source, schema, created_at = row
    return TunnelRecord(name, key, TunnelType(kind), source, schema, created_at)


class PostgresStore(SqlStore):
    """A transaction per call; the tunnel's row is locked while its channels are shared out."""

    _has_tables = "SELECT 1 WHERE to_regclass('spark_channel_tunnels') IS NOT NULL"

    def __init__(self, url: str) -> None:
        self._url = url

    def __repr__(self) -> str:
        return f"PostgresStore({self.show()!r})"

    def show(self) -> str:
        return re.sub(r"//[^/@]*@", "//", self._url).partition("?")[0]

    @contextmanager
    def _transaction(self, *, make: bool = False) -> Iterator[Statements]:
        try:
            import adbc_driver_manager

            from spark_channel.tunnel.postgres_connection import transaction
        except ImportError:
            raise UnsupportedError(
                "a tunnel store in PostgreSQL needs adbc-driver-postgresql: "
                "pip install 'spark-channel[postgresql]'"
            ) from None
        try:
            with transaction(self._url) as statements:
                if make:
                    self._make(statements)
                yield statements
        except adbc_driver_manager.Error as error:
            text = str(error).replace(self._url, self.show()).strip()
            if getattr(error, "sqlstate", None) == _UNDEFINED_TABLE:
                raise TunnelError(
                    f"{self.show()} holds no tunnels; make one with `spark-channel tunnel create`"
                ) from error
            raise TunnelStoreError(f"tunnel store {self.show()}: {text}") from error

    def _make(self, statements: Statements) -> None:
        statements.rows("SELECT CAST(pg_advisory_xact_lock(?) AS TEXT)", (_MAKING,))
        super()._make(statements)

    def _lock(self, statements: Statements, name: str) -> list[tuple[Any, ...]]:
        return statements.rows(f"{ONE_TUNNEL} FOR UPDATE", (name,))

    def _now(self, statements: Statements) -> float:
        rows = statements.rows(
            "SELECT CAST(extract(epoch FROM clock_timestamp()) AS DOUBLE PRECISION)"
        )
        return float(rows[0][0])


class SqliteStore(SqlStore):
    """A connection per call, in a transaction that takes the file's write lock first.

    Args:
        path: made when a tunnel is created.
        wall: the clock that clients are timed by, in seconds since 1970; the machine's by default.
        lock_timeout: how many seconds a call waits for the lock of another one.
    """

    _has_tables = "SELECT 1 FROM sqlite_master WHERE name = 'spark_channel_tunnels'"

    def __init__(
        self,
        path: Path,
        *,
        wall: Callable[[], float] = lambda: utc_now().timestamp(),
        lock_timeout: float = _LOCK_TIMEOUT,
    ) -> None:
        self._path = path
        self._wall = wall
        self._lock_timeout = lock_timeout

    def show(self) -> str:
        return str(self._path)

    def all(self, *, make: bool = False) -> list[TunnelRecord]:
        return super().all(make=make) if make or self._path.exists() else []

    @contextmanager
    def _transaction(self, *, make: bool = False) -> Iterator[Statements]:
        if make:
            try:
                self._path.absolute().parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise TunnelError(
                    f"cannot make the directory of tunnel store {self._path}: {error}"
                ) from error
        elif not self._path.exists():
            raise TunnelError(
                f"tunnel store {self._path} does not exist; make a tunnel with `spark-channel tunnel create`, "
                "or name its file with option 'tunnelStore'"
            )
        mode: Any = "rwc" if make else "rw"
        with SqliteSession(
            self._path, mode, lock_timeout=self._lock_timeout, failure=TunnelStoreError
        ) as session:
            session.execute("BEGIN IMMEDIATE")
            try:
                if make:
                    self._make(session)
                yield session
                session.execute("COMMIT")
            except BaseException:
                try:
                    session.execute("ROLLBACK")
                except TunnelStoreError:
                    pass  # SQLite has rolled back itself, as it does when the disk is full
                raise

    def _lock(self, statements: Statements, name: str) -> list[tuple[Any, ...]]:
        # BEGIN IMMEDIATE holds the whole file.
        return statements.rows(ONE_TUNNEL, (name,))

    def _now(self, statements: Statements) -> float:
        return self._wall()
