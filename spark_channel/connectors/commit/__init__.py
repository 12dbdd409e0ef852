"""The write protocol: who may write under an identity, and what was published under it. Pure; targets store it.

```
prepare   take    a claim on the write's identity: none -> epoch 1; another run's -> its epoch + 1
task      fence   the claim, under a lock, in the transaction that writes the task's rows (commit=task)
publish   fence   the claim, under a lock, in the transaction that makes the rows visible, and mark it published
abort     release the claim, unless it was published
```

The later run wins, always. A run that was overtaken finds another epoch in its own transaction and writes nothing:
`SupersededError`. What was published stays published: every later run, and one that wakes up late, writes nothing.
"""

from spark_channel.connectors.commit.claim import (
    Claim,
    Held,
    Taken,
    check,
    check_generation,
    publish,
    release,
    take,
)
from spark_channel.connectors.commit.identity import Identity
from spark_channel.connectors.commit.liveness import (
    BEAT_SECONDS,
    ORPHAN_SECONDS,
    beat_is_due,
    judge,
    own_process,
)
from spark_channel.connectors.commit.owner import describe_owner, owner_is_gone

__all__ = [
    "BEAT_SECONDS",
    "ORPHAN_SECONDS",
    "Claim",
    "Held",
    "Identity",
    "Taken",
    "beat_is_due",
    "check",
    "check_generation",
    "describe_owner",
    "judge",
    "own_process",
    "owner_is_gone",
    "publish",
    "release",
    "take",
]
