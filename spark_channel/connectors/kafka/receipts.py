"""Which tasks have committed: recorded in the transaction that commits their records, as an offset of a group."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from confluent_kafka import TopicPartition

from spark_channel.connectors.kafka.client import Link, member

__all__ = ["Committed", "find_receipt", "put_receipt"]


@dataclass(frozen=True, slots=True)
class Committed:
    """What a task wrote."""

    rows: int
    nbytes: int


def put_receipt(link: Link, client: Any, name: str, topic: str, wrote: Committed) -> None:
    """Add to the open transaction of `client` that the task `name` wrote this.

    Raises:
        ChannelError: it cannot be recorded.
    """
    place = TopicPartition(topic, 0, wrote.rows, json.dumps(asdict(wrote)))
    with member(link, name) as group:
        known = group.consumer_group_metadata()
        link.asked(client, lambda seconds: client.send_offsets_to_transaction([place], known, seconds))


def find_receipt(link: Link, name: str, topic: str) -> Committed | None:
    """What an earlier attempt of the task `name` committed; None = no attempt has.

    Raises:
        ChannelError: the brokers do not say.
    """
    with member(link, name) as group:
        (found,) = link.asked(
            group, lambda seconds: group.committed([TopicPartition(topic, 0)], timeout=seconds)
        )
    if found.error is not None:
        raise link.failed(found.error, f"the record of task {name}")
    return None if found.offset < 0 else Committed(**json.loads(found.metadata))
