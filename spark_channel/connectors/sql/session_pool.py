"""Sessions that are used again by the next table of a run: a server spends milliseconds on a new one.

Nothing is kept but in a `keeping_sessions` block. A session is kept only when its user has ended it without an
error and outside a transaction, and is lent again only after its server has answered.
"""

import os
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from spark_channel.clock import SYSTEM_CLOCK, Clock

__all__ = ["KeptSession", "PooledSession", "SessionPool", "keeping_sessions", "sessions"]

_MOST_IDLE = 16
_IDLE_SECONDS = 30.0
"""The network may have dropped a session that was idle for longer, which the client does not notice immediately."""


class PooledSession(Protocol):
    """A session as the pool sees it."""

    pool_key: Hashable | None
    """Equal for sessions that may replace each other; None = it is not kept."""

    def is_reusable(self) -> bool:
        """Whether nothing of its last user is left in it."""

    def close(self) -> None: ...


_S = TypeVar("_S")


@dataclass(frozen=True, slots=True)
class _Idle:
    key: Hashable
    session: Any
    since: float


class SessionPool:
    """The idle sessions of this process. Used by any thread."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._users = 0
        self._pid = 0
        self._idle: list[_Idle] = []

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep sessions while any such block runs; the end of the last one closes them."""
        with self._lock:
            if self._pid != os.getpid():  # sessions of the process that this one was forked from
                self._pid, self._users, self._idle = os.getpid(), 0, []
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                ended, self._idle = (self._idle, []) if self._users == 0 else ([], self._idle)
            _close(ended)

    @property
    def keeps(self) -> bool:
        return self._users > 0 and self._pid == os.getpid()

    def take(self, key: Hashable, renew: Callable[[_S], bool], make: Callable[[], _S]) -> _S:
        """A session of `key` for which `renew` is true, else a new one."""
        while self.keeps:
            with self._lock:
                old, self._idle = self._divided()
                place = next(
                    (n for n in reversed(range(len(self._idle))) if self._idle[n].key == key), None
                )
                found = None if place is None else self._idle.pop(place)
            _close(old)
            if found is None:
                break
            session = cast(_S, found.session)
            if renew(session):
                return session
            found.session.close()
        return make()

    def give(self, session: PooledSession) -> bool:
        """Keep a session whose user has ended; False = the caller closes it."""
        if not self.keeps or session.pool_key is None or not session.is_reusable():
            return False
        with self._lock:
            if self._users == 0:
                return False
            old, self._idle = self._divided()
            self._idle.append(_Idle(session.pool_key, session, self._clock.now()))
            if len(self._idle) > _MOST_IDLE:
                old.append(self._idle.pop(0))
        _close(old)
        return True

    def _divided(self) -> tuple[list[_Idle], list[_Idle]]:
        """The sessions that were idle for too long, and the others."""
        least = self._clock.now() - _IDLE_SECONDS
        old = [each for each in self._idle if each.since < least]
        return old, [each for each in self._idle if each.since >= least]


def _close(idle: list[_Idle]) -> None:
    for each in idle:
        each.session.close()


sessions = SessionPool()
"""The pool of this process."""
keeping_sessions = sessions.keeping


class KeptSession:
    """Between the tasks of one thread a session is kept: a server spends milliseconds on a new one."""

    def __init__(self) -> None:
        self._kept = threading.local()

    def __reduce__(self) -> tuple[type["KeptSession"], tuple[()]]:
        return KeptSession, ()

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """In this thread, until the end."""
        self._kept.keeps, self._kept.session = True, None
        try:
            yield
        finally:
            session, self._kept.keeps, self._kept.session = self._kept.session, False, None
            if session is not None and not sessions.give(session):
                session.close()

    def take(self) -> Any:
        """The session that was kept, if its server still answers."""
        session: Any = getattr(self._kept, "session", None)
        self._kept.session = None
        return session if session is not None and session.answers() else None

    def give(self, session: Any) -> None:
        """A session whose user needs it no more."""
        if (
            getattr(self._kept, "keeps", False)
            and session.is_reusable()
            and self._kept.session is None
        ):
            self._kept.session = session
        elif not sessions.give(session):
            session.close()
