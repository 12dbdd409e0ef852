"""NEW, OPEN, COMPLETED, CLOSED: what each allows, and what commit and rollback do."""
# ruff: noqa: PT012 - what raises is the end of a `with` block

import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest

from spark_channel.channel import MemoryChannel, Transaction, TransactionState
from spark_channel.errors import (
    ChannelClosedError,
    ChannelFullError,
    EndOfChannel,
    TransactionFullError,
    TransactionStateError,
)
from spark_channel.testing import VirtualClock
from tests.channel.helpers import ROW, Thread, conserved, numbers, rows

NEW, OPEN, COMPLETED, CLOSED = TransactionState


def opened(channel: MemoryChannel) -> Transaction:
    transaction = channel.transaction()
    transaction.begin()
    return transaction


# ---- the state machine

CALLS: dict[str, Callable[[Transaction], Any]] = {
    "begin": Transaction.begin,
    "put": lambda t: t.put(rows(1)),
    "take": Transaction.take,
    "commit": Transaction.commit,
    "rollback": Transaction.rollback,
    "close": Transaction.close,
}
ALLOWED = {
    NEW: {"begin": OPEN, "close": CLOSED},
    OPEN: {"put": OPEN, "take": OPEN, "commit": COMPLETED, "rollback": COMPLETED},
    COMPLETED: {"close": CLOSED},
    CLOSED: {},
}


def in_state(state: TransactionState) -> tuple[MemoryChannel, Transaction]:
    channel = MemoryChannel(keep_alive=0)
    transaction = channel.transaction()
    for name in {NEW: [], OPEN: ["begin"], COMPLETED: ["begin", "commit"], CLOSED: ["close"]}[
        state
    ]:
        CALLS[name](transaction)
    assert transaction.state is state
    return channel, transaction


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("state", list(TransactionState))
def test_every_call_in_every_state(state: TransactionState, call: str) -> None:
    _, transaction = in_state(state)
    target = ALLOWED[state].get(call)
    if target is None:
        with pytest.raises(TransactionStateError, match=rf"{call}\(\) needs a transaction that is"):
            CALLS[call](transaction)
        assert transaction.state is state
    else:
        CALLS[call](transaction)
        assert transaction.state is target


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("state", list(TransactionState))
def test_every_call_from_another_thread(state: TransactionState, call: str) -> None:
    _, transaction = in_state(state)
    stranger = Thread(lambda: CALLS[call](transaction))
    with pytest.raises(TransactionStateError, match="another thread"):
        stranger.result()
    assert transaction.state is state


def test_a_thread_has_one_transaction_until_it_is_closed() -> None:
    channel = MemoryChannel()
    first = channel.transaction()
    assert channel.transaction() is first
    assert Thread(channel.transaction).result() is not first
    first.begin()
    first.commit()
    assert channel.transaction() is first
    first.close()
    assert channel.transaction() is not first


def test_put_and_take_of_the_channel_go_to_the_threads_transaction() -> None:
    channel = MemoryChannel()
    channel.push(rows(2))
    with channel.transaction() as transaction:
        channel.put(rows(3, 2))
        assert numbers(channel.take() or []) == [0, 1]
        assert (transaction.put_rows, transaction.taken_rows) == (3, 2)
    assert numbers(channel.drain()) == [2, 3, 4]


@pytest.mark.parametrize("call", ["put", "take"])
def test_put_and_take_without_a_transaction(call: str) -> None:
    channel = MemoryChannel()
    calls: dict[str, Callable[[], Any]] = {
        "put": lambda: channel.put(rows(1)),
        "take": channel.take,
    }
    with pytest.raises(TransactionStateError, match="it has none"):
        calls[call]()
    with channel.transaction():
        stranger = Thread(calls[call])
    with pytest.raises(TransactionStateError, match="it has none"):
        stranger.result()
    with pytest.raises(TransactionStateError, match="it has none"):
        calls[call]()
    channel.transaction()  # made, and not begun
    with pytest.raises(TransactionStateError, match="is open; it is new"):
        calls[call]()


# ---- the context manager


def test_with_commits_on_success_and_closes() -> None:
    channel = MemoryChannel()
    with channel.transaction() as transaction:
        transaction.put(rows(2))
        assert channel.backlog == 0
    assert channel.backlog == 2
    assert transaction.state is CLOSED


def test_with_rolls_back_on_an_exception() -> None:
    channel = MemoryChannel()
    channel.push(rows(2))
    with pytest.raises(KeyError), channel.transaction() as transaction:
        transaction.put(rows(5))
        transaction.take()
        raise KeyError
    assert transaction.state is CLOSED
    assert numbers(channel.drain()) == [0, 1]


def test_with_rolls_back_when_the_commit_fails() -> None:
    channel = MemoryChannel(capacity_rows=3, keep_alive=0)
    channel.push_all([rows(1), rows(2, 1)])
    with pytest.raises(ChannelFullError), channel.transaction() as transaction:
        transaction.take()
        transaction.put(rows(2, 10))
    assert transaction.state is CLOSED
    assert numbers(channel.drain()) == [0, 1, 2]
    conserved(channel)


@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
def test_with_respects_what_was_done_inside(end: str) -> None:
    channel = MemoryChannel()
    with channel.transaction() as transaction:
        transaction.put(rows(1))
        if end == "close":
            transaction.commit()
        getattr(transaction, end)()
    assert transaction.state is CLOSED
    assert channel.backlog == (0 if end == "rollback" else 1)


def test_a_with_inside_a_with_fails_and_rolls_back_once() -> None:
    channel = MemoryChannel()
    channel.push(rows(1))
    with pytest.raises(TransactionStateError), channel.transaction() as outer:
        outer.take()
        with channel.transaction():
            pass
    assert numbers(channel.drain()) == [0]


# ---- what is seen when


def test_puts_are_private_until_commit_and_vanish_on_rollback() -> None:
    channel = MemoryChannel()
    transaction = opened(channel)
    transaction.put(rows(1))
    transaction.put(rows(1, 1))
    assert (channel.backlog, channel.statistics().bytes_reserved) == (0, 0)
    transaction.rollback()
    transaction.close()
    assert channel.backlog == 0
    s = channel.statistics()
    assert (s.put_attempts, s.put_successes, s.rows_failed) == (2, 0, 0)


def test_takes_hold_their_room_until_commit(clock: VirtualClock) -> None:
    channel = MemoryChannel(capacity_rows=3, clock=clock)
    channel.push(rows(3))
    transaction = opened(channel)
    transaction.take()
    s = channel.statistics()
    assert (s.rows_stored, s.rows_held, s.bytes_held, s.rows_pulled) == (3, 3, 3 * ROW, 0)
    assert (s.take_attempts, s.take_successes) == (1, 0)
    producer = Thread(lambda: channel.push(rows(1, 3)))
    clock.wait_until_blocked(producer)
    transaction.commit()
    producer.result()
    s = channel.statistics()
    assert (s.rows_stored, s.rows_held, s.rows_pulled, s.take_successes) == (1, 0, 3, 1)
    conserved(channel)


def test_a_rollback_returns_takes_to_the_head_in_order() -> None:
    channel = MemoryChannel()
    channel.push_all([rows(2), rows(2, 2), rows(2, 4)])
    transaction = opened(channel)
    transaction.take()
    transaction.take()
    channel.push(rows(2, 6))
    transaction.rollback()
    assert numbers(channel.drain()) == list(range(8))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_rollbacks_of_two_transactions_restore_the_order_either_way(order: tuple[int, int]) -> None:
    channel = MemoryChannel()
    channel.push_all([rows(1, n) for n in range(5)])
    mine = opened(channel)
    steps: list[Callable[[], Any]] = [mine.take, mine.take]
    steps[0]()
    todo: queue.SimpleQueue[str] = queue.SimpleQueue()
    done: queue.SimpleQueue[str] = queue.SimpleQueue()

    def other() -> None:
        theirs = opened(channel)
        theirs.take()
        done.put("took")
        todo.get()
        theirs.rollback()
        done.put("returned")

    thread = Thread(other)
    done.get()
    mine.take()  # mine has 0 and 2, theirs 1
    for who in order:
        if who == 0:
            mine.rollback()
        else:
            todo.put("go")
            done.get()
    thread.result()
    assert numbers(channel.drain()) == [0, 1, 2, 3, 4]


def test_take_cuts_a_batch_to_what_the_transaction_may_hold() -> None:
    channel = MemoryChannel(transaction_rows=5)
    channel.push_all([rows(3), rows(8, 3)])
    with channel.transaction() as transaction:
        assert numbers(transaction.take() or []) == [0, 1, 2]
        assert numbers(transaction.take() or []) == [3, 4]
        with pytest.raises(TransactionFullError, match="5 rows taken"):
            transaction.take()
    assert channel.backlog == 6
    with pytest.raises(ZeroDivisionError), channel.transaction() as transaction:
        transaction.take()
        raise ZeroDivisionError
    assert numbers(channel.drain()) == list(range(5, 11))
    conserved(channel)


def test_put_is_bounded_by_transaction_rows() -> None:
    channel = MemoryChannel(transaction_rows=5)
    with channel.transaction() as transaction:
        with pytest.raises(TransactionFullError, match="6 rows put, transaction_rows is 5"):
            transaction.put(rows(6))
        transaction.put(rows(5))
        with pytest.raises(TransactionFullError):
            transaction.put(rows(1))
        transaction.put(rows(0))
    assert channel.backlog == 5


def test_put_is_bounded_by_what_the_channel_can_hold() -> None:
    channel = MemoryChannel(capacity_bytes=10 * ROW)
    with channel.transaction() as transaction:
        transaction.put(rows(10))
        with pytest.raises(TransactionFullError, match="88 bytes put, the channel holds 80"):
            transaction.put(rows(1))
    assert channel.backlog == 10
    channel.drain()
    with channel.transaction() as transaction:
        transaction.put(rows(1), nbytes=1000)  # one row alone
    assert channel.statistics().bytes_stored == 1000
    conserved(channel)


def test_transaction_rows_follow_the_capacity_unless_given() -> None:
    channel = MemoryChannel(capacity_rows=10)
    assert channel.transaction_rows == 10
    channel.resize(capacity_rows=20)
    assert channel.transaction_rows == 20
    channel = MemoryChannel(capacity_rows=10, transaction_rows=4)
    channel.resize(capacity_rows=4)
    assert channel.transaction_rows == 4
    with pytest.raises(ValueError, match="below transaction_rows=4"):
        channel.resize(capacity_rows=3)


# ---- time


def test_take_returns_none_after_keep_alive(clock: VirtualClock) -> None:
    channel = MemoryChannel(keep_alive=3.0, clock=clock)

    def consume() -> Any:
        with channel.transaction() as transaction:
            return transaction.take()

    consumer = Thread(consume)
    clock.wait_until_blocked(consumer)
    clock.advance(2.999)
    clock.wait_until_blocked(consumer)
    assert consumer.is_alive()
    clock.advance(0.001)
    assert consumer.result() is None


def test_take_returns_as_soon_as_there_is_a_batch(clock: VirtualClock) -> None:
    channel = MemoryChannel(clock=clock)

    def consume() -> Any:
        with channel.transaction() as transaction:
            return transaction.take()

    consumer = Thread(consume)
    clock.wait_until_blocked(consumer)
    channel.push(rows(2))
    assert numbers(consumer.result()) == [0, 1]


def test_a_commit_without_room_fails_after_keep_alive_and_stays_open(clock: VirtualClock) -> None:
    channel = MemoryChannel(capacity_rows=5, keep_alive=3.0, clock=clock)
    channel.push(rows(4))
    seen: list[Any] = []

    def produce() -> None:
        transaction = opened(channel)
        transaction.put(rows(1, 10))
        transaction.put(rows(1, 11))
        try:
            transaction.commit()
        except ChannelFullError as error:
            seen.append((str(error), transaction.state, transaction.put_rows, clock.now()))
        transaction.commit()  # tried again
        transaction.close()

    producer = Thread(produce)
    clock.wait_until_blocked(producer)
    clock.advance(3.0)
    clock.wait_until_blocked(producer)
    assert seen[0][1:] == (OPEN, 2, 3.0)
    assert "no room for 2 rows, 16 bytes within 3 s: 4 of 5 rows" in seen[0][0]
    assert channel.backlog == 4  # nothing of it is there
    channel.drain()
    producer.result()
    assert numbers(channel.drain()) == [10, 11]
    s = channel.statistics()
    assert (s.put_attempts, s.put_successes, s.rows_failed, s.wait_writer_seconds) == (3, 3, 2, 3.0)


def test_a_commit_acquires_rows_and_bytes_or_neither(clock: VirtualClock) -> None:
    channel = MemoryChannel(capacity_rows=10, capacity_bytes=10 * ROW, keep_alive=0, clock=clock)
    channel.push(rows(1), nbytes=9 * ROW)
    transaction = opened(channel)
    transaction.put(rows(2))
    with pytest.raises(ChannelFullError):
        transaction.commit()
    s = channel.statistics()
    assert (s.rows_reserved, s.bytes_reserved) == (0, 0)
    channel.drain()
    transaction.commit()


def test_takes_make_room_for_the_puts_of_the_same_transaction() -> None:
    channel = MemoryChannel(capacity_rows=4, keep_alive=0)
    channel.push_all([rows(2), rows(2, 2)])
    with channel.transaction() as transaction:
        transaction.take()
        transaction.put(rows(2, 10))
    assert numbers(channel.drain()) == [2, 3, 10, 11]
    conserved(channel)


def test_takes_do_not_free_what_was_never_reserved() -> None:
    """Flume gives back the bytes of the takes without having acquired those of the puts."""
    channel = MemoryChannel(capacity_rows=100, capacity_bytes=10 * ROW, keep_alive=0)
    channel.push(rows(5))
    for _ in range(20):
        with channel.transaction() as transaction:
            transaction.take()
            transaction.put(rows(5), nbytes=5 * ROW)
    assert channel.statistics().bytes_stored == 5 * ROW
    with pytest.raises(ChannelFullError), channel.transaction() as transaction:
        transaction.put(rows(6))
    conserved(channel)


# ---- the end


def test_after_close_puts_fail_and_takes_drain() -> None:
    channel = MemoryChannel(keep_alive=0)
    channel.push(rows(1))
    transaction = opened(channel)
    transaction.put(rows(1, 1))
    channel.close()
    with pytest.raises(ChannelClosedError):
        transaction.put(rows(1, 2))
    assert numbers(transaction.take() or []) == [0]
    assert transaction.take() is None  # there are takes to commit
    with pytest.raises(ChannelClosedError):
        transaction.commit()
    assert transaction.state is OPEN
    transaction.rollback()
    transaction.close()
    with channel.transaction() as transaction:
        assert numbers(transaction.take() or []) == [0]
    assert channel.ended


def test_the_end_waits_for_takes_that_may_come_back(clock: VirtualClock) -> None:
    channel = MemoryChannel(clock=clock)
    channel.push(rows(1))
    transaction = opened(channel)
    transaction.take()
    channel.close()
    consumers = [Thread(channel.pull), Thread(channel.pull)]
    clock.wait_until_blocked(consumers)
    assert not channel.ended
    transaction.rollback()
    ends = 0
    for consumer in consumers:
        try:
            assert numbers(consumer.result()) == [0]
        except EndOfChannel:
            ends += 1
    assert ends == 1


def test_the_end_comes_when_the_last_takes_are_committed(clock: VirtualClock) -> None:
    channel = MemoryChannel(clock=clock)
    channel.push(rows(1))
    transaction = opened(channel)
    transaction.take()
    channel.close()
    consumers = [Thread(channel.pull), Thread(channel.pull)]
    clock.wait_until_blocked(consumers)
    transaction.commit()
    for consumer in consumers:
        with pytest.raises(EndOfChannel):
            consumer.result()


def test_a_thread_does_not_wait_for_what_it_holds_itself() -> None:
    channel = MemoryChannel()
    channel.push(rows(1))
    with channel.transaction() as transaction:
        transaction.take()
        channel.close()
        with pytest.raises(EndOfChannel):
            channel.pull()


def test_the_last_rows_are_committed_by_the_plainest_loop() -> None:
    channel = MemoryChannel()
    channel.push_all([rows(1, n) for n in range(5)])
    channel.close()
    got: list[int] = []
    with channel.transaction() as transaction:
        while (batch := transaction.take()) is not None:
            got += numbers(batch)
    assert got == [0, 1, 2, 3, 4]
    assert channel.ended
    with pytest.raises(EndOfChannel), channel.transaction() as transaction:
        transaction.take()


def test_a_commit_of_a_failed_channel_raises_its_error_and_can_be_rolled_back() -> None:
    channel = MemoryChannel()
    channel.push(rows(1))
    transaction = opened(channel)
    transaction.take()
    error = OSError("gone")
    channel.fail(error)
    for call in (transaction.commit, transaction.take, lambda: transaction.put(rows(1))):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value is error
    transaction.rollback()
    conserved(channel)
    assert channel.statistics().rows_stored == 1


# ---- threads that die


def test_a_thread_that_dies_with_an_open_transaction_is_rolled_back(clock: VirtualClock) -> None:
    channel = MemoryChannel(capacity_rows=2, clock=clock)
    channel.push(rows(2))
    heard: list[int] = []
    channel.add_listener(lambda: heard.append(channel.backlog))

    def die() -> None:
        transaction = opened(channel)
        transaction.take()
        transaction.put(rows(1, 99))

    Thread(die).result()
    assert numbers(channel.pull()) == [0, 1]  # waits for the thread's end, at most
    assert heard == [2]
    assert channel.statistics().transactions_abandoned == 1
    conserved(channel)


def test_a_waiting_consumer_gets_what_a_dead_thread_held(clock: VirtualClock) -> None:
    channel = MemoryChannel(clock=clock)
    channel.push(rows(2))
    let_go = threading.Event()
    took = threading.Event()

    def die() -> None:
        opened(channel).take()
        took.set()
        let_go.wait(20)

    holder = Thread(die)
    took.wait(20)
    consumer = Thread(channel.pull)
    clock.wait_until_blocked(consumer)
    let_go.set()
    holder.result()
    assert numbers(consumer.result()) == [0, 1]


def test_the_transaction_of_a_dead_thread_is_closed() -> None:
    channel = MemoryChannel()
    kept: list[Transaction] = []
    thread = Thread(lambda: kept.append(opened(channel)))
    thread.result()
    consumer = Thread(lambda: None)
    consumer.result()
    assert kept[0].state is CLOSED


def test_a_channel_that_goes_away_takes_its_transactions_with_it() -> None:
    channel = MemoryChannel()
    channel.push(rows(1))
    heard: list[int] = []
    channel.add_listener(lambda: heard.append(1))
    transaction = opened(channel)
    transaction.take()
    del channel
    assert heard == []
    transaction.rollback()


def test_repr_tells_the_state() -> None:
    channel = MemoryChannel()
    channel.push(rows(2))
    with channel.transaction() as transaction:
        transaction.put(rows(3))
        transaction.take()
        assert repr(transaction) == "<Transaction open: 3 rows put, 2 taken>"
