"""The in-memory channel: a bounded, rate-limited, transactional queue of Arrow batches."""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.channel.batches import ChannelStatistics
    from spark_channel.channel.capacity import Limiter, Overflow, Payment, Wait
    from spark_channel.channel.memory import MemoryChannel
    from spark_channel.channel.transaction import Transaction, TransactionState
else:
    __getattr__, __dir__ = lazy.exports(
        __name__,
        {
            "batches": ["ChannelStatistics"],
            "capacity": ["Limiter", "Overflow", "Payment", "Wait"],
            "memory": ["MemoryChannel"],
            "transaction": ["Transaction", "TransactionState"],
        },
    )

__all__ = [
    "ChannelStatistics",
    "Limiter",
    "MemoryChannel",
    "Overflow",
    "Payment",
    "Transaction",
    "TransactionState",
    "Wait",
]
