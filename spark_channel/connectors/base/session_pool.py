"""Sessions that are used again by the next table of a run: a server spends milliseconds on a new one.

Nothing is kept but in a `keeping_sessions` block. A session is kept only when its user has ended it without an
error and outside a transaction, and is lent again only after its server has answered. Sessions that no table takes are
closed after `_IDLE_SECONDS`, or when a server has no connection left.
"""

import math
import os
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.plain_text import log_of
from spark_channel.retry import Retry

__all__ = [
    "AnswerCache",
    "PooledSession",
    "SessionPool",
    "ThreadSession",
    "keeping_sessions",
    "sessions",
]

_log = log_of(__name__)
_MOST_IDLE = 16
_IDLE_SECONDS = 30.0
"""The network may have dropped a session that was idle for longer, which the client does not notice immediately."""
_FREED_SECONDS = 2.0
"""A server notices within milliseconds that a session has ended."""
_S = TypeVar("_S")


class PooledSession(Protocol):
    """A session as the pool sees it."""

    pool_key: Hashable | None
    """Equal for sessions that may replace each other; None = it is not kept."""

    def is_reusable(self) -> bool:
        """Whether nothing of its last user is left in it."""

    def close(self) -> None: ...


class _AnsweringSession(PooledSession, Protocol):
    def answers(self) -> bool:
        """Whether its server still answers."""


_A = TypeVar("_A", bound=_AnsweringSession)


@dataclass(frozen=True, slots=True, repr=False)  # the key has a password
class _Idle:
    key: Hashable
    session: Any
    since: float
    of: object = None
    """The table that has used it, in a block of `one_table`."""


class SessionPool:
    """The idle sessions of this process. Used by any thread."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, idle_seconds: float = _IDLE_SECONDS) -> None:
        self._clock = clock
        self._idle_seconds = idle_seconds
        self._idle: list[_Idle] = []
        self._of_parents: list[_Idle] = []
        self._table = threading.local()
        self.forget()

    def forget(self) -> None:
        """Begin again without any session, in a process that was forked: those here are its parent's."""
        self._lock = threading.Lock()
        self._users = self._lookers = 0
        self._looking: list[object] = []
        """The blocks of `one_table`, whose sessions no other thread gets."""
        self._done: dict[Hashable, float] = {}
        self._of_parents += self._idle  # a session that is freed would end on its server
        self._idle = []
        self._timer: threading.Timer | None = None

    @contextmanager
    def keeping(self, *, looks: bool = False) -> Iterator[None]:
        """Keep sessions while any such block runs; the end of the last one closes them.

        `looks`: the block changes nothing at either end.
        """
        with self._lock:
            self._users += 1
            self._lookers += looks
        try:
            yield
        finally:
            ended: list[_Idle] = []
            with self._lock:
                self._users = max(0, self._users - 1)
                self._lookers = max(0, self._lookers - looks)
                if self._users == 0:
                    self._done.clear()
                    ended, self._idle = self._idle, []
                    if self._timer is not None:
                        self._timer.cancel()
                        self._timer = None
            _close(ended)

    @contextmanager
    def one_table(self) -> Iterator[None]:
        """While this thread looks one table up, or several of which it changes none, a session that it gave back is not
        renewed for it.
        """
        now = self._table.now = object()
        with self._lock:
            self._looking.append(now)
        try:
            yield
        finally:
            self._table.now = None
            with self._lock:
                self._looking.remove(now)

    @property
    def keeps(self) -> bool:
        return self._users > 0

    @property
    def only_looks(self) -> bool:
        """Whether nothing in this process changes what its sessions reach."""
        return 0 < self._users == self._lookers

    def is_due(self, key: Hashable) -> bool:
        """Whether no table asked for `key` in the last 30 s. One table does the work for those that follow.

        Outside any block it is always True.
        """
        with self._lock:
            now = self._clock.now()
            if self._users and self._done.get(key, -math.inf) > now - self._idle_seconds:
                return False
            if self._users:
                self._done[key] = now
            return True

    def take(
        self,
        key: Hashable | None,
        renew: Callable[[_S], bool],
        make: Callable[[], _S],
        is_full: Callable[[Exception], bool] = lambda _: False,
        fits: Callable[[_S], bool] = lambda _: False,
    ) -> _S:
        """A session of `key` for which `renew` is true, else a new one. One of the same table is not renewed if it
        `fits`.

        Where `make` fails since a server `is_full`, those that no job uses are closed, and it is called again.
        """
        idle, now = None, getattr(self._table, "now", None)
        if key is not None and self.keeps:
            with self._lock:
                old = self._taken_old()
                others = [look for look in self._looking if look is not now]
                same = [
                    n
                    for n, idle_session in enumerate(self._idle)
                    if idle_session.key == key and idle_session.of not in others
                ]
                same.sort(key=lambda n: now is not None and self._idle[n].of is now)
                idle = self._idle.pop(same[-1]) if same else None
            _close(old)
        if idle is not None:
            is_renewed = False
            is_same = idle.of is not None and idle.of is now
            try:
                is_renewed = (is_same and fits(idle.session)) or renew(idle.session)
            finally:
                if not is_renewed:
                    _close([idle])
            if is_renewed:
                return cast(_S, idle.session)
        del key  # it has the login, and tools that report errors show the variables of each frame
        try:
            return make()
        except Exception as error:
            if not (is_full(error) and self.close_idle()):
                raise
        retry = Retry(_FREED_SECONDS, first=0.02, what="opening a session", clock=self._clock)
        return retry.call(make, is_full)

    def close_idle(self, which: Callable[[Any], bool] = lambda _: True) -> bool:
        """Close all sessions that no job uses, or those for which `which` is true; whether there were any."""
        with self._lock:
            ended = [idle_session for idle_session in self._idle if which(idle_session.session)]
            self._idle = [idle_session for idle_session in self._idle if idle_session not in ended]
        _close(ended)
        return bool(ended)

    def give(self, session: PooledSession) -> bool:
        """Keep a session whose user has ended; False = the caller closes it."""
        if not self.keeps or session.pool_key is None or not session.is_reusable():
            return False
        with self._lock:
            if self._users == 0:
                return False
            old = self._taken_old()
            of = getattr(self._table, "now", None)
            self._idle.append(_Idle(session.pool_key, session, self._clock.now(), of))
            if len(self._idle) > _MOST_IDLE:
                old.append(self._idle.pop(0))
            self._watch()
        _close(old)
        return True

    def _watch(self) -> None:
        """Close sessions also when none is taken or given for a while, as beside a last large table."""
        if self._idle and self._timer is None:
            self._timer = threading.Timer(self._idle_seconds, self._close_old)
            self._timer.name, self._timer.daemon = "spark-channel-sessions", True
            self._timer.start()

    def _close_old(self) -> None:
        with self._lock:
            if self._timer is not threading.current_thread():  # the last block has ended
                return
            self._timer, old = None, self._taken_old()
            self._watch()
        _close(old)

    def _taken_old(self) -> list[_Idle]:
        """Remove and return the sessions that were idle for too long."""
        least = self._clock.now() - self._idle_seconds
        old = [idle_session for idle_session in self._idle if idle_session.since <= least]
        self._idle = [idle_session for idle_session in self._idle if idle_session.since > least]
        return old


def _close(idle: list[_Idle]) -> None:
    """In a separate thread: a session with an event loop cannot end in one that runs another, as a notebook's."""

    def close() -> None:
        for idle_session in idle:
            try:
                idle_session.session.close()
            except Exception as error:
                _log.debug("a session that was kept could not be closed: %s", error)

    if idle:
        thread = threading.Thread(target=close, name="spark-channel-sessions", daemon=True)
        thread.start()
        thread.join()


sessions = SessionPool()
"""The pool of this process."""
keeping_sessions = sessions.keeping
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=sessions.forget)


class AnswerCache:
    """Keeps the server's answers for the next users of a session. Used by one thread.

    An answer is forgotten after 30 s, so that changes by others are seen.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._kept: dict[Hashable, tuple[float, dict[str, Any]]] = {}

    def about(self, subject: Hashable) -> dict[str, Any]:
        """The answers about `subject`, to which those that ask now add theirs."""
        now = self._clock.now()
        since, answers = self._kept.get(subject, (now, {}))
        if now - since > _IDLE_SECONDS:
            since, answers = now, {}
        self._kept[subject] = since, answers
        return answers


class ThreadSession(Generic[_A]):
    """Between the tasks of one thread a session is kept: a server spends milliseconds on a new one."""

    def __init__(self) -> None:
        self._kept = threading.local()

    def __reduce__(self) -> tuple[type["ThreadSession[_A]"], tuple[()]]:
        return ThreadSession, ()

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

    def take(self) -> _A | None:
        """The session that was kept, if its server still answers."""
        session: _A | None = getattr(self._kept, "session", None)
        self._kept.session = None
        return session if session is not None and session.answers() else None

    def give(self, session: _A) -> None:
        """A session whose user needs it no more."""
        if (
            getattr(self._kept, "keeps", False)
            and session.is_reusable()
            and self._kept.session is None
        ):
            self._kept.session = session
        elif not sessions.give(session):
            session.close()
