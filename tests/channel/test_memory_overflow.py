"""Without room: wait, say no, or drop the oldest."""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.channel import MemoryChannel, Overflow
from spark_channel.errors import ChannelClosedError
from spark_channel.testing import VirtualClock
from tests.channel.helpers import ROW, FakeLimiter, Thread, conserved, numbers, rows


def test_reject_says_no_and_publishes_nothing() -> None:
    channel = MemoryChannel(capacity_rows=5, overflow="reject")
    assert channel.push(rows(3)) is True
    assert channel.push(rows(3, 3)) is False
    assert channel.push(rows(2, 3)) is True
    s = channel.statistics()
    assert (s.rows_rejected, s.bytes_rejected, s.put_attempts, s.put_successes) == (
        3,
        3 * ROW,
        3,
        2,
    )
    assert numbers(channel.drain()) == [0, 1, 2, 3, 4]
    conserved(channel)


def test_reject_does_not_slice() -> None:
    channel = MemoryChannel(capacity_rows=5, overflow="reject")
    assert channel.push(rows(6)) is False
    assert channel.backlog == 0


def test_reject_lets_one_huge_row_through_an_empty_channel() -> None:
    channel = MemoryChannel(capacity_bytes=10, overflow="reject")
    assert channel.push(rows(1), nbytes=100) is True
    assert channel.push(rows(1), nbytes=1) is False


def test_reject_takes_a_list_whole_or_not_at_all() -> None:
    channel = MemoryChannel(capacity_rows=5, overflow="reject")
    assert channel.push_all([rows(3), rows(0), rows(3)]) is False
    assert channel.backlog == 0
    assert channel.push_all([rows(3), rows(0), rows(2, 3)]) is True
    assert channel.push_all([]) is True
    assert numbers(channel.drain()) == [0, 1, 2, 3, 4]


def test_reject_does_not_overtake_those_who_wait(clock: VirtualClock) -> None:
    channel = MemoryChannel(capacity_rows=5, clock=clock)
    channel.push(rows(4))
    waiting = Thread(lambda: channel.push(rows(3, 4)))
    clock.wait_until_blocked(waiting)
    channel.overflow = "reject"
    assert channel.overflow is Overflow.REJECT
    assert channel.push(rows(1, 100)) is False
    channel.drain()
    assert waiting.result() is True


def test_reject_does_not_wait_for_the_limit_and_pays_nothing(clock: VirtualClock) -> None:
    limiter = FakeLimiter(clock, rows_per_second=10, slice_size=(1, None))
    channel = MemoryChannel(overflow="reject", limiter=limiter, clock=clock)
    assert channel.push(rows(10)) is True  # whole, though the limiter would have it sliced
    assert channel.push(rows(5, 10)) is False
    assert (limiter.spent, limiter.cancelled) == ([(10, 80)], [(5, 40)])
    s = channel.statistics()
    assert (s.rows_reserved, s.rows_rejected, s.rows_stored) == (0, 5, 10)
    limiter.free_at = 1.0
    clock.advance(1.0)
    assert channel.push(rows(5, 10)) is True
    conserved(channel)


def test_a_push_rejected_for_room_never_asks_the_limiter(clock: VirtualClock) -> None:
    limiter = FakeLimiter(clock)
    channel = MemoryChannel(capacity_rows=1, overflow="reject", limiter=limiter, clock=clock)
    assert channel.push(rows(1)) is True
    assert channel.push(rows(1)) is False
    assert len(limiter.payments) == 1


def test_overwrite_drops_the_oldest_rows_and_no_more() -> None:
    channel = MemoryChannel(capacity_rows=10, overflow="overwrite")
    channel.push_all([rows(6), rows(4, 6)])
    assert channel.push(rows(3, 10)) is True
    s = channel.statistics()
    assert (s.rows_dropped, s.bytes_dropped, s.rows_stored) == (3, 3 * ROW, 10)
    assert numbers(channel.drain()) == list(range(3, 13))
    conserved(channel)


def test_overwrite_frees_bytes_too() -> None:
    channel = MemoryChannel(capacity_bytes=100, overflow="overwrite")
    channel.push(rows(10), nbytes=95)
    channel.push(rows(1, 10), nbytes=20)
    assert numbers(channel.drain()) == list(range(2, 11))  # 15 bytes too many: two rows of 9.5
    conserved(channel)


def test_overwrite_keeps_the_newest_of_a_batch_larger_than_the_channel() -> None:
    channel = MemoryChannel(capacity_rows=4, overflow="overwrite")
    assert channel.push(rows(10)) is True
    assert numbers(channel.drain()) == [6, 7, 8, 9]
    assert channel.statistics().rows_dropped == 6


def test_overwrite_by_one_huge_row_drops_all() -> None:
    channel = MemoryChannel(capacity_bytes=100, overflow="overwrite")
    channel.push(rows(5))
    channel.push(rows(1, 5), nbytes=1000)
    assert numbers(channel.drain()) == [5]
    conserved(channel)


def test_overwrite_does_not_touch_what_a_transaction_holds(clock: VirtualClock) -> None:
    channel = MemoryChannel(capacity_rows=4, overflow="overwrite", clock=clock)
    channel.push_all([rows(3), rows(1, 3)])
    with channel.transaction() as transaction:
        assert numbers(transaction.take() or []) == [0, 1, 2]
        producer = Thread(lambda: channel.push(rows(2, 10)))
        clock.wait_until_blocked(producer)  # one row can be dropped, and two are needed
        assert channel.statistics().rows_dropped == 0
    assert producer.result() is True
    assert numbers(channel.drain()) == [3, 10, 11]


def test_overwrite_by_a_commit() -> None:
    channel = MemoryChannel(capacity_rows=4, overflow="overwrite")
    channel.push(rows(4))
    with channel.transaction() as transaction:
        transaction.put(rows(1, 10))
        transaction.put(rows(2, 11))
    assert numbers(channel.drain()) == [3, 10, 11, 12]
    conserved(channel)


def test_overwrite_drops_nothing_while_the_limit_is_waited_for(clock: VirtualClock) -> None:
    limiter = FakeLimiter(clock, rows_per_second=1)
    channel = MemoryChannel(capacity_rows=4, overflow="overwrite", limiter=limiter, clock=clock)
    channel.push(rows(4))
    producer = Thread(lambda: channel.push(rows(4, 4)))
    clock.wait_until_blocked(producer)
    assert channel.statistics().rows_dropped == 0
    assert numbers(channel.drain()) == [0, 1, 2, 3]  # a consumer was in time
    clock.advance(4.0)
    assert producer.result() is True
    assert numbers(channel.drain()) == [4, 5, 6, 7]
    assert channel.statistics().rows_dropped == 0


def test_an_overwrite_that_is_closed_drops_nothing(clock: VirtualClock) -> None:
    limiter = FakeLimiter(clock, rows_per_second=1)
    channel = MemoryChannel(capacity_rows=4, overflow="overwrite", limiter=limiter, clock=clock)
    channel.push(rows(4))
    producer = Thread(lambda: channel.push(rows(4, 4)))
    clock.wait_until_blocked(producer)
    channel.close()
    with pytest.raises(ChannelClosedError):
        producer.result()
    assert numbers(channel) == [0, 1, 2, 3]
    conserved(channel)


def test_changing_to_overwrite_lets_those_who_wait_go_on(clock: VirtualClock) -> None:
    channel = MemoryChannel(capacity_rows=4, clock=clock)
    channel.push(rows(4))
    producer = Thread(lambda: channel.push(rows(6, 4)))
    clock.wait_until_blocked(producer)
    channel.overflow = Overflow.OVERWRITE
    assert producer.result() is True
    assert numbers(channel.drain()) == [6, 7, 8, 9]
    conserved(channel)


def test_changing_back_to_block_blocks(clock: VirtualClock) -> None:
    channel = MemoryChannel(capacity_rows=4, overflow="overwrite", clock=clock)
    channel.push(rows(6))
    channel.overflow = "block"
    producer = Thread(lambda: channel.push(rows(1, 6)))
    clock.wait_until_blocked(producer)
    assert numbers(channel.pull_all(1)) == [2]
    producer.result()
    with pytest.raises(ValueError, match="spill"):
        channel.overflow = "spill"


def test_a_list_that_began_to_wait_is_not_rejected_by_a_later_overflow(clock: VirtualClock) -> None:
    """True means that all of it was published: what the list waits for does not change under it."""
    channel = MemoryChannel(capacity_rows=5, clock=clock)
    pushing = Thread(lambda: channel.push_all([rows(5), rows(5, 5), rows(5, 10)]))
    clock.wait_until_blocked(pushing)
    channel.overflow = "reject"
    assert numbers(channel.drain()) == list(range(5))
    assert numbers(channel.pull()) == list(range(5, 10))
    assert numbers(channel.pull()) == list(range(10, 15))
    assert pushing.result() is True
    s = channel.statistics()
    assert (s.rows_pushed, s.rows_rejected, s.put_attempts, s.put_successes) == (15, 0, 3, 3)


def test_a_list_that_began_under_block_waits_after_a_later_reject(clock: VirtualClock) -> None:
    channel = MemoryChannel(capacity_rows=5, clock=clock)

    def changing() -> Iterator[pa.RecordBatch]:
        yield rows(5)
        channel.overflow = "reject"
        yield rows(5, 5)

    pushing = Thread(lambda: channel.push_all(changing()))
    clock.wait_until_blocked(pushing)
    assert numbers(channel.pull()) == list(range(5))
    assert pushing.result() is True
    assert numbers(channel.drain()) == list(range(5, 10))


@pytest.mark.parametrize("overflow", list(Overflow))
def test_an_empty_batch_succeeds_like_any_other(overflow: Overflow) -> None:
    channel = MemoryChannel(capacity_rows=5, overflow=overflow)
    assert channel.push_all([rows(0), rows(2), rows(0)]) is True
    assert channel.push_all([rows(0)]) is True
    with channel.transaction() as transaction:
        transaction.put(rows(0))
    with channel.transaction() as transaction:
        transaction.put(rows(0))
        transaction.put(rows(1, 2))
    s = channel.statistics()
    assert (s.put_attempts, s.put_successes, s.rows_pushed) == (7, 7, 3)
    assert numbers(channel.drain()) == [0, 1, 2]
    transaction = channel.transaction()
    transaction.begin()
    transaction.put(rows(0))
    transaction.rollback()
    transaction.close()
    assert channel.statistics().put_successes == 7


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("overflow", list(Overflow))
def test_a_list_with_a_wrong_item_publishes_nothing(
    kind: Callable[[list[Any]], Any], overflow: Overflow
) -> None:
    channel = MemoryChannel(overflow=overflow)
    with pytest.raises(TypeError, match="not NoneType"):
        channel.push_all(kind([rows(1), None]))
    s = channel.statistics()
    assert (s.rows_pushed, s.put_attempts) == (0, 0)
