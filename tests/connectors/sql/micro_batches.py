"""What a streaming query does to a writer: each task prepares the write by itself, and a batch may be run again."""

from collections.abc import Callable

import pyarrow as pa

from spark_channel.connectors import Receipt, WriteContext, WritePlan, Writer

__all__ = ["hold_to_once"]

_ROWS, _TASKS = 100, 2
Message = tuple[WritePlan, Receipt]


def hold_to_once(make: Callable[[], Writer], stored: Callable[[], list[int]]) -> None:
    """Run three batches of a query with its accidents; `stored` gives the ids in the target, in order."""

    def stage(name: str, batch: int, first_attempt: int) -> list[Message]:
        messages = []
        for task in range(_TASKS):
            start = batch * _ROWS * _TASKS + task * _ROWS
            rows = pa.record_batch({"id": pa.array(range(start, start + _ROWS), pa.int64())})
            writer = make()
            plan = writer.prepare(WriteContext(f"stream-{name}-{batch}", commit="job"), rows.schema)
            attempt = writer.open(plan, task, first_attempt + task)
            attempt.write(rows)
            messages.append((plan, attempt.close()))
        return messages

    def publish(messages: list[Message]) -> list[int]:
        make().commit(messages[0][0], [receipt for _, receipt in messages])
        return stored()

    def upto(batches: int) -> list[int]:
        return list(range(batches * _ROWS * _TASKS))

    messages = stage("query", 0, first_attempt=0)
    assert publish(messages) == upto(1)
    assert publish(messages) == upto(1), "a commit that is run again publishes nothing"
    assert publish(stage("query", 0, first_attempt=0)) == upto(1), (
        "nor does a batch of a new driver"
    )
    assert publish(stage("query", 0, first_attempt=7)) == upto(1)

    stage("query", 1, first_attempt=2)  # a driver that is killed here
    assert stored() == upto(1)
    assert publish(stage("query", 1, first_attempt=2)) == upto(2), (
        "the next one counts its attempts from 0 again"
    )

    stage("query", 2, first_attempt=4)
    assert publish(stage("query", 2, first_attempt=0)) == upto(3)

    again = publish(stage("another", 0, first_attempt=0))
    assert again == sorted([*upto(1), *upto(3)]), "a new checkpoint is another query"
