"""Plans a transfer: the number of channels, the tasks, and the Spark task of each. Pure functions."""

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
