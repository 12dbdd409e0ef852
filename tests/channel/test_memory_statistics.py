"""What is counted, and that a snapshot is one instant."""

import dataclasses
import json
import pickle
from typing import Any

import pytest

from spark_channel.channel import ChannelStatistics, MemoryChannel
from spark_channel.testing import VirtualClock
from tests.channel.helpers import ROW, Thread, rows


def test_a_history_in_numbers(clock: VirtualClock) -> None:
    channel = MemoryChannel(
        capacity_rows=10, capacity_bytes=1000, overflow="reject", keep_alive=0, clock=clock
    )
    channel.push(rows(4))
    channel.push(rows(7))  # rejected
    with channel.transaction() as transaction:
        transaction.put(rows(3))
    with pytest.raises(ZeroDivisionError), channel.transaction() as transaction:  # noqa: PT012 - the division raises inside the transaction
        transaction.take()
        raise ZeroDivisionError
    with channel.transaction() as transaction:
        transaction.take()
    channel.pull_all()
    channel.pull(timeout=0)
    channel.drain()
    assert channel.statistics() == ChannelStatistics(
        rows_pushed=7,
        bytes_pushed=7 * ROW,
        rows_pulled=7,
        bytes_pulled=7 * ROW,
        rows_failed=0,
        bytes_failed=0,
        rows_rejected=7,
        bytes_rejected=7 * ROW,
        rows_dropped=0,
        bytes_dropped=0,
        put_attempts=3,
        put_successes=2,
        take_attempts=5,
        take_successes=2,
        transactions_abandoned=0,
        rows_stored=0,
        bytes_stored=0,
        rows_held=0,
        bytes_held=0,
        rows_reserved=0,
        bytes_reserved=0,
        capacity_rows=10,
        capacity_bytes=1000,
        wait_reader_seconds=0.0,
        wait_writer_seconds=0.0,
        throttled_seconds={},
    )


def test_waits_are_told_while_they_last(clock: VirtualClock) -> None:
    channel = MemoryChannel(capacity_rows=1, clock=clock)
    consumers: list[Thread[Any]] = [Thread(channel.pull), Thread(channel.pull)]
    clock.wait_until_blocked(consumers)
    clock.advance(2.0)
    assert channel.statistics().wait_reader_seconds == 4.0
    channel.push(rows(1))
    consumers[0].result()
    clock.advance(1.0)
    assert channel.statistics().wait_reader_seconds == 5.0
    channel.push(rows(1))
    consumers[1].result()
    channel.push(rows(1))
    producers = [Thread(lambda: channel.push(rows(1))) for _ in range(3)]
    clock.wait_until_blocked(producers)
    clock.advance(1.0)
    assert channel.statistics().wait_writer_seconds == 3.0
    channel.pull()
    clock.advance(1.0)
    assert channel.statistics().wait_writer_seconds == 5.0
    channel.pull()
    channel.pull()
    for producer in producers:
        producer.result()
    s = channel.statistics()
    assert (s.wait_writer_seconds, s.wait_reader_seconds) == (5.0, 5.0)


def test_a_snapshot_is_frozen_and_travels() -> None:
    snapshot = MemoryChannel().statistics()
    with pytest.raises(dataclasses.FrozenInstanceError):
        snapshot.rows_pushed = 1  # type: ignore[misc] # frozen, which is the test
    assert pickle.loads(pickle.dumps(snapshot)) == snapshot
    assert json.loads(json.dumps(dataclasses.asdict(snapshot)))["rows_pushed"] == 0


def test_every_field_has_its_docstring() -> None:
    import ast
    import inspect

    from spark_channel.channel import batches

    tree = ast.parse(inspect.getsource(batches))
    classes = {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}
    body = classes["ChannelStatistics"]
    for field, doc in zip(body[1::2], body[2::2], strict=True):
        assert isinstance(field, ast.AnnAssign)
        assert isinstance(doc, ast.Expr)
        assert isinstance(doc.value, ast.Constant)
