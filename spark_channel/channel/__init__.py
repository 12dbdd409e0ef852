"""The in-memory channel: a bounded, rate-limited, transactional queue of Arrow batches."""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.channel.limiter import Limiter, Payment, Wait
    from spark_channel.channel.memory import MemoryChannel
    from spark_channel.channel.overflow import Overflow
    from spark_channel.channel.statistics import ChannelStatistics
    from spark_channel.channel.transaction import Transaction, TransactionState
else:
    __getattr__, __dir__ = lazy.exports(__name__)

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
