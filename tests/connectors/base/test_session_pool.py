"""Sessions between the tables of a run."""

import asyncio
import threading
from collections.abc import Hashable

import pytest

from spark_channel.connectors.base.session_pool import SessionPool
from spark_channel.errors import TargetError
from spark_channel.testing.clock import VirtualClock


class Session:
    """A session without a server."""

    def __init__(self) -> None:
        self.pool_key: Hashable | None = "orders"
        self.open, self.clean, self.answers = True, True, True

    def is_reusable(self) -> bool:
        return self.open and self.clean

    def close(self) -> None:
        self.open = False


def taken(pool: SessionPool) -> Session:
    return pool.take("orders", lambda session: session.answers, Session)


def test_a_session_is_used_again_within_the_block_only() -> None:
    pool = SessionPool(VirtualClock())
    assert not pool.give(Session())
    with pool.keeping():
        first = taken(pool)
        assert pool.give(first)
        with pool.keeping():
            assert taken(pool) is first
            assert taken(pool) is not first
            assert pool.give(first)
        states = [first.open]
    states.append(first.open)
    assert states == [True, False]
    assert not pool.give(Session())


def test_sessions_that_nobody_uses_leave_a_full_server_for_a_new_one() -> None:
    clock = VirtualClock()
    pool = SessionPool(clock)
    idle = Session()
    tries: list[bool] = []

    def make() -> Session:
        tries.append(idle.open)
        if len(tries) < 3:  # the server notices a little later
            raise TargetError("too many connections")
        return Session()

    with pool.keeping():
        assert pool.give(idle)
        with pytest.raises(TargetError):
            pool.take("others", lambda _: True, make)
        assert idle.open  # it may be another failure
        pool.take("others", lambda _: True, make, lambda error: "too many" in str(error))
        assert tries == [True, True, False]
        tries.clear()
        with pytest.raises(TargetError):  # there is none to close
            pool.take("others", lambda _: True, make, lambda _: True)


def test_what_one_table_does_for_the_others_is_due_again_after_a_while() -> None:
    clock = VirtualClock()
    pool = SessionPool(clock)
    assert [pool.is_due("sweep"), pool.is_due("sweep")] == [True, True]
    with pool.keeping():
        assert [pool.is_due("sweep"), pool.is_due("sweep"), pool.is_due("other")] == [
            True,
            False,
            True,
        ]
        clock.sleep(31.0)
        assert [pool.is_due("sweep"), pool.is_due("sweep")] == [True, False]
    with pool.keeping():
        assert pool.is_due("sweep")


def test_what_cannot_be_lent_again_is_closed() -> None:
    clock = VirtualClock()
    pool = SessionPool(clock)
    with pool.keeping():
        busy, gone, old, other = Session(), Session(), Session(), Session()
        busy.clean = False
        assert not pool.give(busy)
        other.pool_key = "users"
        assert pool.give(other)
        gone.answers = False
        assert pool.give(gone)
        assert taken(pool) not in (gone, other)
        assert not gone.open
        assert pool.give(old)
        clock.advance(31)
        assert taken(pool) is not old
        assert not old.open
        many = [Session() for _ in range(17)]
        for each in many:
            assert pool.give(each)
        assert [each.open for each in many] == [False] + [True] * 16


def test_threads_never_share_a_session() -> None:
    pool, held, twice = SessionPool(VirtualClock()), set[int](), list[int]()
    lock = threading.Lock()

    def work() -> None:
        for _ in range(200):
            session = taken(pool)
            with lock:
                twice.extend({id(session)} & held)
                held.add(id(session))
            with lock:
                held.discard(id(session))
            pool.give(session)

    with pool.keeping():
        threads = [threading.Thread(target=work) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(10)
    assert twice == []


def test_a_session_that_nobody_takes_is_closed_while_the_block_goes_on() -> None:
    closed = threading.Event()

    class Watched(Session):
        def close(self) -> None:
            closed.set()

    pool = SessionPool(idle_seconds=0.01)
    with pool.keeping():
        assert pool.give(Watched())
        assert closed.wait(10)


def test_a_session_with_an_event_loop_ends_where_another_loop_runs() -> None:
    class Looping(Session):
        def close(self) -> None:
            loop = asyncio.new_event_loop()
            try:
                loop.run_until_complete(asyncio.sleep(0))
                super().close()
            finally:
                loop.close()

    async def cell() -> bool:
        session = Looping()
        pool = SessionPool(VirtualClock())
        with pool.keeping():
            assert pool.give(session)
        return session.open

    assert not asyncio.run(cell())


def test_one_session_that_fails_to_close_leaves_no_other_open() -> None:
    class Failing(Session):
        def close(self) -> None:
            raise OSError("gone")

    pool, other = SessionPool(VirtualClock()), Session()
    with pool.keeping():
        assert pool.give(Failing())
        assert pool.give(other)
    assert not other.open


def test_a_session_is_closed_when_its_renewal_is_interrupted() -> None:
    def interrupted(_: Session) -> bool:
        raise KeyboardInterrupt

    pool, session = SessionPool(VirtualClock()), Session()
    with pool.keeping():
        assert pool.give(session)
        with pytest.raises(KeyboardInterrupt):
            pool.take("orders", interrupted, Session)
        assert not session.open


def test_a_forked_process_neither_lends_nor_ends_its_parents_sessions() -> None:
    pool, session = SessionPool(VirtualClock()), Session()
    with pool.keeping():
        assert pool.give(session)
        pool.forget()  # in the child
        assert not pool.give(Session())
        with pool.keeping():
            assert taken(pool) is not session
    assert session.open
