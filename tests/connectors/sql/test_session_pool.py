"""Sessions between the tables of a run."""

import threading
from collections.abc import Hashable

from spark_channel.connectors.sql.session_pool import SessionPool
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
