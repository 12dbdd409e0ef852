"""Writes rows as records. A row counts as written when all in-sync replicas have confirmed its delivery."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.connectors.base.contract import (
    Receipt,
    RowTally,
    TaskWriter,
    WriteContext,
    WritePlan,
)
from spark_channel.connectors.kafka.client import BrokerStatus, ended, error_of, member, producer
from spark_channel.connectors.kafka.options import KafkaWriteOptions
from spark_channel.connectors.kafka.serialization import Record, record_maker
from spark_channel.connectors.records.direct_writer import DirectTask, DirectWriter, Rejected, Sink
from spark_channel.errors import ChannelError, OptionError, TargetError, UnsupportedError
from spark_channel.final_errors import of_input
from spark_channel.options import WriteOptions
from spark_channel.plain_text import log_of

__all__ = [
    "Deliveries",
    "KafkaWriter",
]

_log = log_of(__name__)
_STEP = 1.0
_POLL_EVERY = 1_000
# What brokers and client say of one record. Brokers say it of all records that came in one batch.
_OF_RECORD = frozenset(
    {"MSG_SIZE_TOO_LARGE", "INVALID_RECORD", "INVALID_MSG", "_UNKNOWN_PARTITION"}
)
_NO_ROOM = "the record is larger than 'capacityBytes', and would wait for room forever"
_LAST = 5.0


@dataclass(frozen=True, slots=True)
class Committed:
    """The counters of a task that has committed.

    The transaction that commits the task's records also commits an offset of a consumer group, which records this.
    """

    rows: int
    nbytes: int


def put_receipt(link: BrokerStatus, client: Any, name: str, topic: str, wrote: Committed) -> None:
    """Add to the open transaction of `client` that the task `name` wrote this.

    Raises:
        ChannelError: it cannot be recorded.
    """
    receipt_offset = TopicPartition(topic, 0, wrote.rows, json.dumps(asdict(wrote)))
    with member(link, name) as group:
        group_metadata = group.consumer_group_metadata()
        link.asked(
            client,
            lambda seconds: client.send_offsets_to_transaction(
                [receipt_offset], group_metadata, seconds
            ),
        )


def find_receipt(link: BrokerStatus, name: str, topic: str) -> Committed | None:
    """Return what an earlier attempt of the task `name` committed; None = no attempt has.

    Raises:
        ChannelError: the brokers do not say.
    """
    with member(link, name) as group:
        (committed,) = link.asked(
            group, lambda seconds: group.committed([TopicPartition(topic, 0)], timeout=seconds)
        )
    if committed.error is not None:
        raise link.failed(committed.error, f"the record of task {name}")
    return None if committed.offset < 0 else Committed(**json.loads(committed.metadata or "{}"))


Failed = tuple[int, Record, KafkaError]
"""A record that has no confirmed delivery, with the number of its row."""


class Deliveries:
    """The records of one attempt of a task. With `transaction`, its id, they are one transaction."""

    def __init__(
        self, options: KafkaWriteOptions, schema: pa.Schema, transaction: str | None
    ) -> None:
        self._options, self._maker = options, record_maker(options, schema)
        self._link = BrokerStatus(options, TargetError)
        self._transaction, self._began = transaction, False
        self._hangs = False
        """Whether the client has a transaction whose end is not known."""
        self._client: Any = producer(options, self._link, transaction)
        self._met = False
        self.earlier: Committed | None = None
        """The commit of an earlier attempt of the task; then this attempt has nothing to do."""
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
        records = self._maker.records(batch)
        if records.made and not self._met:
            self._meet(records.made[0][1].topic)
        if self._transaction is not None and not self._began and records.made:
            try:
                self._client.begin_transaction()
            except KafkaException as error:
                raise self._link.failed(
                    error_of(error), "the task's transaction cannot begin"
                ) from error
            self._began = self._hangs = True
        failed = self._delivered(records.made)
        if len(failed) > 1 and self._transaction is None:
            # Only a batch of one shows which record failed.
            suspects = [(number, record) for number, record, _ in self._of_records(failed)]
            failed = [failure for suspect in suspects for failure in self._delivered([suspect])]
        refused = [
            (number, self._link.shown(f"{error.name()}: {error.str()}"))
            for number, _, error in self._of_records(failed)
        ]
        return sorted([*records.refused, *refused])

    def _meet(self, topic: str | None) -> None:
        """Connect. A producer that has records and no connection asks for its id only half a second later."""
        self._met = True
        if topic is not None:
            self._link.asked(
                self._client, lambda seconds: self._client.list_topics(topic, timeout=seconds)
            )

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

    def _delivered(self, records: Sequence[tuple[int, Record]]) -> list[Failed]:
        """Send records, and wait for the brokers' answer to each. Return those that they have not confirmed."""
        failed: list[Failed] = []
        undelivered: list[Failed] = []
        confirmed = 0

        def delivered(
            number: int, record: Record, error: KafkaError | None, _message: Message
        ) -> None:
            nonlocal confirmed
            if error is None:
                confirmed += 1
            else:
                undelivered.append((number, record, error))

        deadline = _Deadline(self._options.delivery_timeout)
        for index, (number, record) in enumerate(records):
            while True:
                try:
                    self._client.produce(
                        record.topic,
                        record.value,
                        record.key,
                        record.partition,
                        on_delivery=partial(delivered, number, record),
                        headers=record.headers,
                    )
                except BufferError:
                    if len(self._client):
                        # until deliveries have made room, or time out
                        self._wait(deadline, confirmed + len(undelivered))
                        continue
                    failed.append(
                        (number, record, KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, _NO_ROOM))
                    )
                except KafkaException as error:
                    failed.append((number, record, error_of(error)))
                break
            if index % _POLL_EVERY == 0:
                self._link.serve(self._client, 0)
        while len(self._client):
            self._wait(deadline, confirmed + len(undelivered))
        lost = len(records) - confirmed - len(failed) - len(undelivered)
        if lost:
            raise TargetError(
                f"{self._options.address}: {lost} of {len(records)} records have no confirmation, so they may or may "
                "not have been written. Check the brokers and 'deliveryTimeout'; a task that runs again "
                "writes its records again"
            )
        if undelivered and self._transaction is not None:
            # The transaction can only be aborted now.
            raise self._unconfirmed(undelivered, undelivered[0][2])
        return failed + undelivered

    def _wait(self, deadline: "_Deadline", deliveries: int) -> None:
        """Wait for the next deliveries. The client itself gives up on each record after `deliveryTimeout`."""
        self._link.serve(self._client, _STEP)
        if len(self._client) and deadline.is_over(deliveries):
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

    def is_over(self, deliveries: int) -> bool:
        now = SYSTEM_CLOCK.now()
        if deliveries != self._seen:
            self._seen, self._end = deliveries, now + self._seconds
        return now >= self._end


class KafkaWriter(DirectWriter):
    """See `KafkaWriteOptions`."""

    Options: ClassVar[type[WriteOptions]] = KafkaWriteOptions
    options: KafkaWriteOptions

    def exists(self) -> bool | None:
        return None if self.options.topic is None else self._find()

    def resource_mark(self) -> str | None:
        return self.options.bootstrap_servers

    def check(self, schema: pa.Schema) -> None:
        record_maker(self.options, schema)

    def rehearse(self, context: WriteContext, schema: pa.Schema) -> None:
        self._check_modes(context)
        self.check(schema)
        if not self._find() and not self.options.create_topic:
            raise self._missing()

    def prepare(self, context: WriteContext, schema: pa.Schema) -> WritePlan:
        self._check_modes(context)
        return super().prepare(context, schema)

    @property
    def replaces(self) -> bool:
        return self.options.transactional

    def _check_modes(self, context: WriteContext) -> None:
        if context.overwrite:
            raise UnsupportedError(
                f"{self.options.address}: a topic cannot be overwritten: records are appended, "
                "and removed by its retention only. Append, or create the topic again with Kafka's own tools"
            )
        if context.stream is not None and self.options.transactional:
            raise OptionError(
                "option 'transactional' does not go with streams: a batch that runs again may be cut into other tasks, "
                "and their transactions would not know each other. Omit it; delivery is at least once",
                option="transactional",
                got="true",
                takes="false",
            )

    def probe(self, *, empty: bool) -> None:
        if self._find():
            return
        if not self.options.create_topic:
            raise self._missing()
        self._create()

    def _find(self) -> bool:
        """Whether the topic exists, and the partition in it. Without `topic`: that the brokers answer."""
        options, link = self.options, BrokerStatus(self.options, TargetError)
        # Metadata are asked for by a client that may create nothing.
        with ended(producer(options, link, None), link) as client:
            topic = options.topic
            if topic is None:
                link.asked(client, lambda seconds: client.list_topics(timeout=seconds))
                return True
            description = link.asked(
                client, lambda seconds: client.list_topics(topic, timeout=seconds)
            ).topics[topic]
        if description.error is not None:
            if description.error.name() == "UNKNOWN_TOPIC_OR_PART":
                return False
            raise link.failed(description.error, f"topic {topic!r}")
        if options.partition is not None and options.partition not in description.partitions:
            raise OptionError(
                f"option 'partition' got {options.partition}; "
                f"topic {topic!r} has the partitions 0 to {max(description.partitions)}",
                option="partition",
                got=str(options.partition),
            )
        return True

    def _missing(self) -> TargetError:
        missing = TargetError(
            f"{self.options.address}: topic {self.options.topic!r} does not exist; check 'topic', create it, or set "
            "'createTopic'"
        )
        return of_input(missing)

    def _create(self) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        options, link = self.options, BrokerStatus(self.options, TargetError)
        assert options.topic is not None
        topic = NewTopic(
            options.topic,
            num_partitions=options.topic_partitions or -1,
            replication_factor=options.replication_factor or -1,
        )
        client = link.made(AdminClient, {})
        futures = client.create_topics(
            [topic], operation_timeout=options.timeout, request_timeout=options.timeout
        )
        try:
            futures[options.topic].result(options.timeout + _LAST)
        except KafkaException as error:
            met = error_of(error)
            if met.name() != "TOPIC_ALREADY_EXISTS":  # by another run
                raise link.failed(met, f"topic {options.topic!r} cannot be created") from error

    def connect(self, schema: pa.Schema) -> Sink:
        return Deliveries(self.options, schema, None)

    def open(self, plan: WritePlan, task: int, attempt: int) -> TaskWriter:
        if not self.options.transactional:
            return super().open(plan, task, attempt)
        deliveries = Deliveries(self.options, plan.schema, _name(plan, task))
        return _Transaction(deliveries, RowTally(task, attempt), self.options.batch_size)

    def committed(self, plan: WritePlan, task: int) -> Receipt | None:
        if not self.options.transactional or self.options.topic is None:
            return None
        try:
            committed_before = find_receipt(
                BrokerStatus(self.options, TargetError), _name(plan, task), self.options.topic
            )
        except TargetError as error:
            _log.debug("task %d is written, or its attempt finds that it was: %s", task, error)
            return None
        return (
            None
            if committed_before is None
            else Receipt(task, 0, committed_before.rows, committed_before.nbytes)
        )


def _name(plan: WritePlan, task: int) -> str:
    """Return the id of a task's transactions. An attempt fences the earlier ones, which then cannot commit."""
    return f"spark-channel-{plan.job}-{task}"


class _Transaction(TaskWriter):
    """A task whose records become visible when it ends, or never. If an earlier attempt committed, it does nothing."""

    def __init__(self, deliveries: Deliveries, tally: RowTally, batch_size: int) -> None:
        self._deliveries, self._tally = deliveries, tally
        self._inner = DirectTask(deliveries, tally, batch_size)

    def write(self, batch: pa.RecordBatch) -> None:
        if self._deliveries.earlier is not None:
            self._tally.add(batch)
            return
        self._inner.tolerant, self._inner.refused = self.tolerant, self.refused
        self._inner.write(batch)

    def close(self) -> Receipt:
        earlier = self._deliveries.earlier
        if earlier is None:
            self._deliveries.commit(Committed(self._tally.rows, self._tally.nbytes))
            return self._inner.close()
        # The earlier attempt refused the missing rows.
        dirty = max(0, self._tally.rows - earlier.rows) if self.tolerant else 0
        self._tally.rows, self._tally.nbytes = earlier.rows, earlier.nbytes
        return replace(self._inner.close(), dirty_rows=dirty)

    def rollback(self) -> None:
        self._deliveries.abort()
        self._inner.rollback()
