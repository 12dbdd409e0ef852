"""What every store in a database does; a subclass opens transactions.

A heartbeat loads the tunnel's channels and clients, asks the pure `desk`, and writes what differs, all in one
transaction under the tunnel's lock: whatever statement it breaks off at, it leaves nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol

from spark_channel.connectors.contracts import Token
from spark_channel.errors import TunnelError
from spark_channel.tunnel import desk
from spark_channel.tunnel.plain import dump, load
from spark_channel.tunnel.process import is_gone
from spark_channel.tunnel.records import Channel, ChannelStatus, Client, TunnelRecord, TunnelState
from spark_channel.tunnel.states import ChannelState, TunnelType

__all__ = ["ONE_TUNNEL", "SCHEMA", "SqlStore", "Statements"]

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
)
"""The store's tables, one statement each."""

_TUNNELS = "SELECT name, id, type, source, schema_text, created_at FROM spark_channel_tunnels"
ONE_TUNNEL = f"{_TUNNELS} WHERE name = ?"
_CHANNEL_COLUMNS = (
    "id, place, params, parents, state, version, client, closing_beats, sequence, token, pending"
)
_CHANNELS = f"SELECT {_CHANNEL_COLUMNS} FROM spark_channel_tunnel_channels WHERE tunnel = ?"  # noqa: S608 - constants
_CLIENTS = (
    "SELECT id, tag, timeout, last_seen, host, process FROM spark_channel_tunnel_clients WHERE tunnel = ?"
)


class Statements(Protocol):
    """One transaction. Parameters are written as `?`."""

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]: ...


class SqlStore(ABC):
    """See `TunnelStore`."""

    @abstractmethod
    def show(self) -> str: ...

    @abstractmethod
    def _transaction(self, *, make: bool = False) -> AbstractContextManager[Statements]:
        """A write transaction; `make`: the tables are made when they are not there.

        Raises:
            TunnelError: the store cannot be reached, or has no tables.
        """

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

    def all(self) -> list[TunnelRecord]:
        with self._transaction(make=True) as statements:
            return [_tunnel(row) for row in statements.rows(f"{_TUNNELS} ORDER BY name")]

    def delete(self, name: str) -> None:
        with self._transaction() as statements:
            self._record(statements, name)
            self._remove(statements, name)

    def reset(self, name: str, record: TunnelRecord, channels: Sequence[Channel]) -> TunnelRecord:
        with self._transaction() as statements:
            self._record(statements, name)
            self._remove(statements, name)
            return self._add(statements, record, channels)

    def state(self, name: str) -> TunnelState:
        with self._transaction() as statements:
            self._record(statements, name)
            return self._load(statements, name)

    def connect(self, name: str, client: Client) -> None:
        with self._transaction() as statements:
            self._record(statements, name)
            old = TunnelState({}, self._clients(statements, name))
            self._save(statements, name, old, desk.connect(old, client, self._now(statements)))

    def disconnect(self, name: str, client: str) -> None:
        with self._transaction() as statements:
            if self._lock(statements, name):
                old = self._load(statements, name)
                self._save(statements, name, old, desk.disconnect(old, client))

    def heartbeat(
        self, name: str, client: str, report: Sequence[ChannelStatus], wanted: Collection[str] = ()
    ) -> tuple[Channel, ...]:
        with self._transaction() as statements:
            self._record(statements, name)
            old = self._load(statements, name)
            gone = [each.id for each in old.clients.values() if is_gone(each.host, each.process)]
            new = desk.beat(old, client, report, self._now(statements), gone=gone, wanted=wanted)
            self._save(statements, name, old, new)
            return desk.assigned(new, client)

    def hand_out(self, name: str, client: str, channel: str, sequence: int, end: Token) -> Token:
        with self._transaction() as statements:
            old = self._load_one(statements, name, channel)
            new = desk.hand_out(old, client, channel, sequence, end)
            self._save(statements, name, old, new)
            return desk.handed_out(new, channel, sequence)

    def checkpoint(
        self, name: str, client: str, channel: str, sequence: int, token: Token,
        in_flight: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        with self._transaction() as statements:
            old = self._load_one(statements, name, channel)
            now = self._now(statements)
            new = desk.checkpoint(old, client, channel, sequence, token, now, in_flight)
            self._save(statements, name, old, new)

    def park(self, name: str, client: str, channel: str, sequence: int, why: str) -> None:
        with self._transaction() as statements:
            old = self._load_one(statements, name, channel)
            self._save(statements, name, old, desk.park(old, client, channel, sequence, why))

    def resume(self, name: str, channels: Collection[str] | None = None) -> tuple[str, ...]:
        with self._transaction() as statements:
            self._record(statements, name)
            old = new = self._load(statements, name)
            _check_known(name, old, channels)
            parked = tuple(
                key for key, each in old.channels.items()
                if each.state is ChannelState.PARKED and (channels is None or key in channels)
            )  # fmt: skip
            for key in parked:
                new = desk.resume(new, key)
            self._save(statements, name, old, new)
            return parked

    def pause_base(
        self, name: str, channels: Collection[str] | None = None, *, paused: bool = True
    ) -> tuple[str, ...]:
        with self._transaction() as statements:
            self._record(statements, name)
            old = new = self._load(statements, name)
            _check_known(name, old, channels)
            changed = []
            for key, each in old.channels.items():
                if channels is not None and key not in channels:
                    continue
                new = desk.pause_base(new, key) if paused else desk.resume_base(new, key)
                if new.channels[key].paused != each.paused:
                    changed.append(key)
            self._save(statements, name, old, new)
            return tuple(changed)

    def split(self, name: str, channel: str, divide: Callable[[Token], Sequence[Token]]) -> tuple[str, ...]:
        with self._transaction() as statements:
            self._record(statements, name)
            old = self._load(statements, name)
            new, made = desk.split(old, channel, divide)
            self._save(statements, name, old, new)
            return made

    def continued(self, name: str, change: Callable[[Token], Token]) -> str:
        with self._transaction() as statements:
            self._record(statements, name)
            old = self._load(statements, name)
            new, made = desk.continued(old, change)
            self._save(statements, name, old, new)
            return made

    def release(self, name: str, client: str, channels: Collection[str]) -> None:
        with self._transaction() as statements:
            if self._lock(statements, name):
                old = self._load(statements, name)
                self._save(statements, name, old, desk.release(old, client, channels))

    def now(self) -> float:
        with self._transaction() as statements:
            return self._now(statements)

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

    def _add(self, statements: Statements, record: TunnelRecord, channels: Sequence[Channel]) -> TunnelRecord:
        record = replace(record, created_at=self._now(statements))
        statements.rows(
            "INSERT INTO spark_channel_tunnels (name, id, type, source, schema_text, created_at) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (record.name, record.id, str(record.type), record.source, record.schema, record.created_at),
        )
        for channel in channels:
            self._insert(statements, record.name, channel)
        return record

    def _insert(self, statements: Statements, name: str, channel: Channel) -> None:
        statements.rows(
            f"INSERT INTO spark_channel_tunnel_channels (tunnel, {_CHANNEL_COLUMNS}) "  # noqa: S608
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (name, channel.id, channel.place, _params(channel), dump(channel.parents), *_changing(channel)),
        )

    def _remove(self, statements: Statements, name: str) -> None:
        for table in ("tunnel_clients", "tunnel_channels"):
            statements.rows(f"DELETE FROM spark_channel_{table} WHERE tunnel = ?", (name,))  # noqa: S608
        statements.rows("DELETE FROM spark_channel_tunnels WHERE name = ?", (name,))

    def _load(self, statements: Statements, name: str) -> TunnelState:
        channels = [_channel(row) for row in statements.rows(f"{_CHANNELS} ORDER BY place", (name,))]
        return TunnelState({each.id: each for each in channels}, self._clients(statements, name))

    def _load_one(self, statements: Statements, name: str, channel: str) -> TunnelState:
        self._record(statements, name)
        rows = statements.rows(f"{_CHANNELS} AND id = ?", (name, channel))
        found = [_channel(row) for row in rows]
        return TunnelState({each.id: each for each in found}, self._clients(statements, name))

    def _clients(self, statements: Statements, name: str) -> Mapping[str, Client]:
        return {row[0]: Client(*row) for row in statements.rows(_CLIENTS, (name,))}

    def _save(self, statements: Statements, name: str, old: TunnelState, new: TunnelState) -> None:
        for key, channel in new.channels.items():
            before = old.channels.get(key)
            if before is None:
                self._insert(statements, name, channel)
            elif channel != before:
                statements.rows(
                    "UPDATE spark_channel_tunnel_channels SET params = ?, state = ?, version = ?, client = ?, "
                    "closing_beats = ?, sequence = ?, token = ?, pending = ? WHERE tunnel = ? AND id = ?",
                    (_params(channel), *_changing(channel), name, key),
                )
        for key in old.clients.keys() - new.clients.keys():
            statements.rows(
                "DELETE FROM spark_channel_tunnel_clients WHERE tunnel = ? AND id = ?", (name, key)
            )
        for key, client in new.clients.items():
            known = old.clients.get(key)
            if known is None:
                statements.rows(
                    "INSERT INTO spark_channel_tunnel_clients "
                    "(tunnel, id, tag, timeout, last_seen, host, process) VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (
                        name, client.id, client.tag, client.timeout, client.last_seen, client.host,
                        client.process,
                    ),
                )  # fmt: skip
            elif known != client:
                statements.rows(
                    "UPDATE spark_channel_tunnel_clients SET last_seen = ? WHERE tunnel = ? AND id = ?",
                    (client.last_seen, name, key),
                )


_PARKED, _AT, _AFTER, _PAUSED, _IN_FLIGHT = "$parked", "$at", "$after", "$paused", "$in_flight"
_MORE = (
    ("parked", _PARKED), ("checkpointed_at", _AT), ("after", _AFTER), ("paused", _PAUSED), ("in_flight", _IN_FLIGHT),
)  # fmt: skip
"""What is known of a channel beside its split is kept with the split: stores made before have no columns for it."""


def _check_known(name: str, state: TunnelState, channels: Collection[str] | None) -> None:
    unknown = sorted(set(channels or ()) - set(state.channels))
    if unknown:
        raise TunnelError(
            f"tunnel {name!r} has no channel {', '.join(map(repr, unknown))}; "
            f"`spark-channel tunnel describe {name}` lists those that it has"
        )


def _params(channel: Channel) -> str:
    more: dict[str, Any] = {_PARKED: channel.parked} if channel.parked else {}
    if channel.checkpointed_at:
        more[_AT] = channel.checkpointed_at
    if channel.after is not None:
        more[_AFTER] = channel.after
    if channel.paused:
        more[_PAUSED] = True
    if channel.in_flight is not None:
        more[_IN_FLIGHT] = channel.in_flight
    return dump({**channel.params, **more})


def _changing(channel: Channel) -> tuple[Any, ...]:
    return (
        str(channel.state), channel.version, channel.client, channel.closing_beats, channel.sequence,
        dump(channel.token), "" if channel.pending is None else dump(channel.pending),
    )  # fmt: skip


def _tunnel(row: tuple[Any, ...]) -> TunnelRecord:
    name, key, kind, source, schema, created_at = row
    return TunnelRecord(name, key, TunnelType(kind), source, schema, created_at)


def _channel(row: tuple[Any, ...]) -> Channel:
    key, place, params, parents, state, version, client, beats, sequence, token, pending = row
    try:
        known = load(params)
        more = {name: known.pop(key) for name, key in _MORE if key in known}
        return Channel(
            key, place, known, tuple(load(parents)), ChannelState(state), version, client, beats,
            sequence, load(token), load(pending) if pending else None, **more,
        )  # fmt: skip
    except (ValueError, TypeError) as error:
        raise TunnelError(
            f"channel {key!r} of the tunnel is damaged in its store ({error}); reset the tunnel"
        ) from error
