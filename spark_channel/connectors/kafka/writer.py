"""Writes rows as records. A row counts as written when its delivery is confirmed by all replicas in sync."""

import logging
from dataclasses import replace
from typing import ClassVar

import pyarrow as pa
from confluent_kafka import KafkaException

from spark_channel.connectors.contracts import Receipt, Tally, TaskWriter, WriteContext, WritePlan
from spark_channel.connectors.direct import DirectTask, DirectWriter, Sink
from spark_channel.connectors.kafka.client import Link, ended, error_of, producer
from spark_channel.connectors.kafka.deliver import Deliveries
from spark_channel.connectors.kafka.encode import record_maker
from spark_channel.connectors.kafka.options import KafkaWriteOptions
from spark_channel.connectors.kafka.receipts import Committed, find_receipt
from spark_channel.errors import OptionError, TargetError, UnsupportedError
from spark_channel.options import WriteOptions

__all__ = ["KafkaWriter"]

_log = logging.getLogger(__name__)
_LAST = 5.0


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
                option="transactional", got="true", takes="false",
            )  # fmt: skip

    def probe(self, *, empty: bool) -> None:
        if self._find():
            return
        if not self.options.create_topic:
            raise self._missing()
        self._create()

    def _find(self) -> bool:
        """Whether the topic exists, and the partition in it. Without `topic`: that the brokers answer."""
        options, link = self.options, Link(self.options, TargetError)
        # Metadata are asked for by a client that may create nothing.
        with ended(producer(options, link, None), link) as client:
            topic = options.topic
            if topic is None:
                link.asked(client, lambda seconds: client.list_topics(timeout=seconds))
                return True
            found = link.asked(client, lambda seconds: client.list_topics(topic, timeout=seconds)).topics[
                topic
            ]
        if found.error is not None:
            if found.error.name() == "UNKNOWN_TOPIC_OR_PART":
                return False
            raise link.failed(found.error, f"topic {topic!r}")
        if options.partition is not None and options.partition not in found.partitions:
            raise OptionError(
                f"option 'partition' got {options.partition}; "
                f"topic {topic!r} has the partitions 0 to {max(found.partitions)}",
                option="partition", got=str(options.partition),
            )  # fmt: skip
        return True

    def _missing(self) -> TargetError:
        return TargetError(
            f"{self.options.address}: topic {self.options.topic!r} does not exist; check 'topic', create it, or set "
            "'createTopic'"
        )

    def _create(self) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

        options, link = self.options, Link(self.options, TargetError)
        assert options.topic is not None
        topic = NewTopic(
            options.topic,
            num_partitions=options.topic_partitions or -1,
            replication_factor=options.replication_factor or -1,
        )
        client = link.made(AdminClient, {})
        made = client.create_topics(
            [topic], operation_timeout=options.timeout, request_timeout=options.timeout
        )
        try:
            made[options.topic].result(options.timeout + _LAST)
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
        return _Transaction(deliveries, Tally(task, attempt), self.options.batch_size)

    def committed(self, plan: WritePlan, task: int) -> Receipt | None:
        if not self.options.transactional or self.options.topic is None:
            return None
        try:
            found = find_receipt(Link(self.options, TargetError), _name(plan, task), self.options.topic)
        except TargetError as error:
            _log.debug("task %d is written, or its attempt finds that it was: %s", task, error)
            return None
        return None if found is None else Receipt(task, 0, found.rows, found.nbytes)


def _name(plan: WritePlan, task: int) -> str:
    """Of a task's transactions. An attempt ends what an earlier one began, which can then commit nothing."""
    return f"spark-channel-{plan.job}-{task}"


class _Transaction(TaskWriter):
    """A task whose records become visible when it ends, or never. If an earlier attempt committed, it does nothing."""

    def __init__(self, deliveries: Deliveries, tally: Tally, batch_size: int) -> None:
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
        # What the earlier attempt left out was refused.
        dirty = max(0, self._tally.rows - earlier.rows) if self.tolerant else 0
        self._tally.rows, self._tally.nbytes = earlier.rows, earlier.nbytes
        return replace(self._inner.close(), dirty_rows=dirty)

    def rollback(self) -> None:
        self._deliveries.abort()
        self._inner.rollback()
