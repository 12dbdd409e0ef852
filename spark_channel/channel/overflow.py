"""What a push does when the channel is full."""

from enum import StrEnum

__all__ = ["Overflow"]


class Overflow(StrEnum):
    """What `MemoryChannel.push` does when the channel is full.

    - `BLOCK`: wait, first come, first served. What waits is the producer's next fetch.
    - `REJECT`: return False at once, publish nothing, pay nothing. It never waits, not for the limit
      either.
    - `OVERWRITE`: drop the oldest rows that no transaction holds, and count them.
    """

    BLOCK = "block"
    REJECT = "reject"
    OVERWRITE = "overwrite"
