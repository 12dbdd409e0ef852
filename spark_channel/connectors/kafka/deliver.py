"""Sends records, and asks after each of them."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.connectors.direct import Rejected
from spark_channel.connectors.kafka.client import Link, ended, error_of, producer
from spark_channel.connectors.kafka.encode import Record, record_maker
from spark_channel.connectors.kafka.options import KafkaWriteOptions
from spark_channel.connectors.kafka.receipts import Committed, find_receipt, put_receipt
from spark_channel.errors import ChannelError, TargetError

__all__ = ["Deliveries"]

_log = logging.getLogger(__name__)
_STEP = 1.0
_POLL_EVERY = 1_000
# What brokers and client say of one record. Brokers say it of all records that came in one batch.
_OF_RECORD = frozenset({"MSG_SIZE_TOO_LARGE", "INVALID_RECORD", "INVALID_MSG", "_UNKNOWN_PARTITION"})

_NO_ROOM = "the record is larger than 'capacityBytes', and would wait for room forever"

Failed = tuple[int, Record, KafkaError]
"""A record that has no confirmed delivery, with the number of its row."""


class Deliveries:
    """The records of one attempt of a task. With `transaction`, its id, they are one transaction."""

    def __init__(self, options: KafkaWriteOptions, schema: pa.Schema, transaction: str | None) -> None:
        self._options, self._maker = options, record_maker(options, schema)
        self._link = Link(options, TargetError)
        self._transaction, self._began = transaction, False
        self._hangs = False
        """Whether the client has a transaction whose end is not known."""
        self._client: Any = producer(options, self._link, transaction)
        self._met = False
        self.earlier: Committed | None = None
        """What an earlier attempt of the task has committed; then this one has nothing to do."""
        if transaction is not None:
            assert options.topic is not None
            try:
                self._meet(options.topic)
                # Earlier producers of this name are fenced, and their transactions aborted, or committed to their end.
                self._link.asked(self._client, self._client.init_transactions)
                self.earlier = find_receipt(self._link, transaction, options.topic)
            except BaseException:
                self.close()
                raise

    def send(self, batch: pa.RecordBatch) -> Sequence[Rejected]:
        """Write a batch. Returns the rows that are not, and never will be, records; all others are confirmed.

        Raises:
            TargetError: deliveries that are not confirmed.
        """
        records = self._maker.of(batch)
        if records.made and not self._met:
            self._meet(records.made[0][1].topic)
        if self._transaction is not None and not self._began and records.made:
            try:
                self._client.begin_transaction()
            except KafkaException as error:
                raise self._link.failed(error_of(error), "the task's transaction cannot begin") from error
            self._began = self._hangs = True
        failed = self._delivered(records.made)
        if len(failed) > 1 and self._transaction is None:
            # Which of the records it was, only a batch of one tells.
            suspects = [(number, record) for number, record, _ in self._of_records(failed)]
            failed = [each for suspect in suspects for each in self._delivered([suspect])]
        refused = [
            (number, self._link.shown(f"{error.name()}: {error.str()}"))
            for number, _, error in self._of_records(failed)
        ]
        return sorted([*records.refused, *refused])

    def _meet(self, topic: str | None) -> None:
        """Connect. A producer that has records and no connection asks for its id only half a second later."""
        self._met = True
        if topic is not None:
            self._link.asked(self._client, lambda seconds: self._client.list_topics(topic, timeout=seconds))

    def _of_records(self, failed: Sequence[Failed]) -> Sequence[Failed]:
        """
        Raises:
            TargetError: some failed for other reasons than what they are.
        """
        other = next((error for _, _, error in failed if error.name() not in _OF_RECORD), None)
        if other is not None:
            raise self._unconfirmed(failed, other)
        return failed

    def _unconfirmed(self, failed: Sequence[Failed], error: KafkaError) -> ChannelError:
        state = (
            "None of the task's records will be visible to consumers that read committed records"
            if self._transaction is not None
            else "The brokers may have them, or not"
        )
        return self._link.failed(
            error,
            f"{len(failed)} records have no confirmed delivery ('deliveryTimeout' "
            f"{self._options.delivery_timeout:g} s). {state}; the reason",
        )

    def _delivered(self, made: Sequence[tuple[int, Record]]) -> list[Failed]:
        """Send records, and wait for what the brokers say of each. Returns those that they have not confirmed."""
        failed: list[Failed] = []
        told_of: list[Failed] = []
        confirmed = 0

        def told(number: int, record: Record, error: KafkaError | None, _message: Message) -> None:
            nonlocal confirmed
            if error is None:
                confirmed += 1
            else:
                told_of.append((number, record, error))

        deadline = _Deadline(self._options.delivery_timeout)
        for place, (number, record) in enumerate(made):
            while True:
                try:
                    self._client.produce(
                        record.topic, record.value, record.key, record.partition,
                        on_delivery=partial(told, number, record), headers=record.headers,
                    )  # fmt: skip
                except BufferError:
                    if len(self._client):
                        # until deliveries have made room, or time out
                        self._wait(deadline, confirmed + len(told_of))
                        continue
                    failed.append((number, record, KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, _NO_ROOM)))
                except KafkaException as error:
                    failed.append((number, record, error_of(error)))
                break
            if place % _POLL_EVERY == 0:
                self._link.serve(self._client, 0)
        while len(self._client):
            self._wait(deadline, confirmed + len(told_of))
        unknown = len(made) - confirmed - len(failed) - len(told_of)
        if unknown:
            raise TargetError(
                f"{self._options.address}: {len(made)} records were sent, "
                f"and what became of {unknown} of them is not known: run again"
            )
        if told_of and self._transaction is not None:
            raise self._unconfirmed(told_of, told_of[0][2])  # the transaction cannot be committed any more
        return failed + told_of

    def _wait(self, deadline: "_Deadline", told: int) -> None:
        """For the next deliveries. The client itself gives up on each record after `deliveryTimeout`."""
        self._link.serve(self._client, _STEP)
        if len(self._client) and deadline.is_over(told):
            raise self._link.silent(
                f"{len(self._client)} records wait for their delivery, and the client reports nothing",
                f"{self._options.delivery_timeout:g} s ('deliveryTimeout')",
            )

    def commit(self, wrote: Committed) -> None:
        """Make the records visible, and record what was written, in one.

        Raises:
            TargetError: the transaction is aborted, or it is not known whether it is.
        """
        if not self._began:
            return
        assert self._transaction is not None
        assert self._options.topic is not None
        try:
            put_receipt(self._link, self._client, self._transaction, self._options.topic, wrote)
        except TargetError as error:
            raise TargetError(f"{error}. {self._aborted}") from error
        end = SYSTEM_CLOCK.now() + self._options.timeout
        while self._began:
            try:
                self._client.commit_transaction(_STEP)
                self._began = self._hangs = False
            except KafkaException as error:
                met = error_of(error)
                if met.retriable() and SYSTEM_CLOCK.now() < end:
                    continue
                if met.txn_requires_abort() or met.fatal():
                    raise self._link.failed(met, self._aborted) from error
                self._began = False  # an abort now could take back what is committed
                raise self._link.failed(
                    met,
                    "the brokers did not say whether the task's transaction is committed; another attempt asks them",
                ) from error

    @property
    def _aborted(self) -> str:
        return (
            "The task's transaction is aborted, and none of its records are visible: another attempt took "
            f"over, it was open for longer than 'transactionTimeout' ({self._options.transaction_timeout:g} "
            f"s), or the user may not READ the group {self._transaction}"
        )

    def abort(self) -> None:
        """Take the transaction back, unless it is committed. What is left open, the brokers abort later."""
        if not self._began:
            return
        self._began = False
        try:
            self._link.asked(self._client, self._client.abort_transaction)
            self._hangs = False
        except ChannelError as error:
            _log.warning("the transaction of a failed task is left to its timeout: %s", error)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with ended(client, self._link, hangs=self._hangs):
                pass


class _Deadline:
    """Ends when nothing has changed for some seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds + 2 * _STEP
        self._seen, self._end = 0, SYSTEM_CLOCK.now() + self._seconds

    def is_over(self, seen: int) -> bool:
        now = SYSTEM_CLOCK.now()
        if seen != self._seen:
            self._seen, self._end = seen, now + self._seconds
        return now >= self._end
