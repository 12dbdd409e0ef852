"""Where tunnels are kept: the protocol of a store, and how one is found by its url."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from spark_channel.connectors.contracts import Token
from spark_channel.errors import OptionError
from spark_channel.tunnel.records import Channel, ChannelStatus, Client, TunnelRecord, TunnelState

__all__ = ["TunnelStore", "default_store", "open_store"]


class TunnelStore(Protocol):
    """Every call is one transaction, on its own connection; safe to call from several threads.

    All raise `TunnelError` for a store that cannot be reached and for a tunnel that is not there.
    """

    def show(self) -> str:
        """The store's place, for people; without secrets."""
        ...

    def create(self, record: TunnelRecord, channels: Sequence[Channel]) -> TunnelRecord:
        """Add a tunnel; `created_at` is filled in. Raises `TunnelError` when the name is taken."""
        ...

    def get(self, name: str) -> TunnelRecord:
        """The tunnel of this name."""
        ...

    def all(self) -> list[TunnelRecord]:
        """Every tunnel, by name."""
        ...

    def delete(self, name: str) -> None:
        """Remove a tunnel with its checkpoints; its clients hear of it at their next call."""
        ...

    def reset(self, name: str, record: TunnelRecord, channels: Sequence[Channel]) -> TunnelRecord:
        """Put a new tunnel in the place of an old one."""
        ...

    def state(self, name: str) -> TunnelState:
        """The present channels and clients."""
        ...

    def connect(self, name: str, client: Client) -> None:
        """Add a client."""
        ...

    def disconnect(self, name: str, client: str) -> None:
        """Remove a client, and free its channels. Harmless when it is not there."""
        ...

    def heartbeat(
        self, name: str, client: str, report: Sequence[ChannelStatus], wanted: Collection[str] = ()
    ) -> tuple[Channel, ...]:
        """`desk.beat`; returns the channels that the client should have."""
        ...

    def hand_out(self, name: str, client: str, channel: str, sequence: int, end: Token) -> Token:
        """`desk.hand_out`; returns the end that counts, which may be an older one."""
        ...

    def checkpoint(
        self, name: str, client: str, channel: str, sequence: int, token: Token,
        in_flight: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        """`desk.checkpoint`."""
        ...

    def park(self, name: str, client: str, channel: str, sequence: int, why: str) -> None:
        """`desk.park`."""
        ...

    def resume(self, name: str, channels: Collection[str] | None = None) -> tuple[str, ...]:
        """`desk.resume` of these channels, or of all; returns those that were parked.

        Raises:
            TunnelError: the tunnel has no channel of that name.
        """
        ...

    def pause_base(
        self, name: str, channels: Collection[str] | None = None, *, paused: bool = True
    ) -> tuple[str, ...]:
        """`desk.pause_base`, or `desk.resume_base`, of these channels, or of all; returns those that it changed.

        Raises:
            TunnelError: the tunnel has no channel of that name.
        """
        ...

    def split(self, name: str, channel: str, divide: Callable[[Token], Sequence[Token]]) -> tuple[str, ...]:
        """`desk.split`; returns the new channels. `divide` is called inside the transaction."""
        ...

    def continued(self, name: str, change: Callable[[Token], Token]) -> str:
        """`desk.continued`; returns the new channel. `change` is called inside the transaction."""
        ...

    def release(self, name: str, client: str, channels: Collection[str]) -> None:
        """`desk.release`."""
        ...

    def now(self) -> float:
        """Seconds of the store's clock."""
        ...


def default_store() -> Path:
    """The file that keeps tunnels when no other place is named: `SPARK_CHANNEL_HOME`, or the user's home."""
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
        from spark_channel.tunnel.postgres_store import PostgresStore

        return PostgresStore(text)
    scheme, mark, _ = text.partition("://")
    if mark and scheme not in ("sqlite", "file"):
        raise OptionError(
            f"option 'tunnelStore' has scheme {scheme!r}; it takes a file's path (SQLite), or postgresql://...",
            option="tunnelStore", got=scheme, takes="a file's path, or postgresql://...",
        )  # fmt: skip
    if not text:
        raise OptionError("option 'tunnelStore' is empty", option="tunnelStore", got="")
    from spark_channel.tunnel.sqlite_store import SqliteStore

    path = text.partition("://")[2] if mark else text.removeprefix("sqlite:")
    return SqliteStore(Path(path))
