"""Locks by which publishes to one table take turns, and the turns of one process's tasks."""

import hashlib
import threading
from collections.abc import Callable, Sequence

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.connectors.mysql.session import (
    MysqlWriteSession,
)
from spark_channel.errors import ChannelError, TargetError

__all__ = [
    "end_sessions",
    "hold",
    "in_turn",
    "table_lock",
    "take_over",
    "turns_end",
]

_TURN = threading.Lock()
_MOST_TURNS = 3
_LOCK_SECONDS = 600
_OLDER_SECONDS = 60
"""How long an older attempt of a task may hold its lock once a newer one wants it."""


def turns_end(spread: float) -> float:
    """Return until when pieces that are spread over `spread` seconds take turns, on the system's clock.

    Later, the tasks' rows are more than one session can add, or another task's piece waits for a lock of this one.
    """
    return SYSTEM_CLOCK.now() + _MOST_TURNS * spread


def in_turn(piece: Callable[[], object], until: float | None) -> float:
    """Run `piece` while no other task of this process runs one, or from `until` on; None = now. Return its seconds.

    Sessions that add rows to one index at the same time cost MariaDB more: 100 rows kept a core busy for 100 ms.
    """
    has_turn = until is not None and _TURN.acquire(timeout=max(0.0, until - SYSTEM_CLOCK.now()))
    try:
        begun = SYSTEM_CLOCK.now()
        piece()
        return SYSTEM_CLOCK.now() - begun
    finally:
        if has_turn:
            _TURN.release()


def table_lock(label: str) -> str:
    """Publishes to one table take turns; the server's names of locks have at most 64 letters."""
    return "spark_channel:" + hashlib.sha256(label.encode()).hexdigest()[:32]


def hold(session: MysqlWriteSession, name: str) -> None:
    """Take the lock `name` until the session ends: also a session whose client is gone holds it to its end.

    Raises:
        TargetError: another session holds it for very long.
    """
    if session.value("SELECT GET_LOCK(%s, %s)", (name, _LOCK_SECONDS)) != 1:
        raise TargetError(
            f"another write holds the lock {name!r} for longer than {_LOCK_SECONDS} s: "
            "run the job again when that write has ended"
        )


def take_over(session: MysqlWriteSession, name: str) -> None:
    """`hold` that ends a session which keeps the lock for long: that of a host that hangs would keep it for hours.

    Raises:
        TargetError: the server could not end it.
    """
    if session.value("SELECT GET_LOCK(%s, %s)", (name, _OLDER_SECONDS)) == 1:
        return
    end_sessions(session, [name])
    hold(session, name)


def end_sessions(session: MysqlWriteSession, names: Sequence[str]) -> None:
    """End the sessions that hold the locks `names`."""
    locks = ", ".join("IS_USED_LOCK(%s)" for _ in names)
    for row in session.rows(f"SELECT {locks}", names):
        for holder in row:
            if holder is not None:
                try:
                    session.execute(f"KILL {int(holder)}")
                except ChannelError:
                    pass  # it has ended meanwhile
