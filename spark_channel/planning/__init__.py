"""Plans a transfer: the number of channels, the tasks, and the Spark task of each. Pure functions.

```python
from spark_channel.planning import Endpoint, Split, TransferSpec, advise, plan

spec = TransferSpec(
    reader=Endpoint("postgresql", {"url": "postgresql://db/shop", "dbtable": "orders"}),
    writer=Endpoint("parquet", {"path": "/lake/orders"}),
    rows_per_second=100_000,
    channel_rows_per_second=20_000,
    channels_per_task=2,
)
wanted = advise(spec, parallelism=8)                    # 25: five splits for each of 5 channels
splits = [Split({"range": n}, rows=40_000) for n in range(wanted)]
made = plan(spec, splits, parallelism=8)

assert made.channels == 5
assert [(len(group.tasks), group.channels) for group in made.groups] == [(9, 2), (8, 2), (8, 1)]
assert made.rows == 1_000_000
```
"""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.planning.tasks import (
        Split,
        Task,
        TaskGroup,
        assign_fairly,
        channel_count,
        merge_tasks,
        plan_channels,
        split_advice,
    )
    from spark_channel.planning.transfer import (
        Endpoint,
        EndpointOverrides,
        Target,
        TransferPlan,
        TransferSpec,
        advise,
        deal,
        plan,
    )
else:
    __getattr__, __dir__ = lazy.exports(
        __name__,
        {
            "tasks": [
                "Split",
                "Task",
                "TaskGroup",
                "assign_fairly",
                "channel_count",
                "merge_tasks",
                "plan_channels",
                "split_advice",
            ],
            "transfer": [
                "Endpoint",
                "EndpointOverrides",
                "Target",
                "TransferPlan",
                "TransferSpec",
                "advise",
                "deal",
                "plan",
            ],
        },
    )

__all__ = [
    "Endpoint",
    "EndpointOverrides",
    "Split",
    "Target",
    "Task",
    "TaskGroup",
    "TransferPlan",
    "TransferSpec",
    "advise",
    "assign_fairly",
    "channel_count",
    "deal",
    "merge_tasks",
    "plan",
    "plan_channels",
    "split_advice",
]
