"""How many channels, which tasks, in which Spark task. Pure functions."""

from spark_channel.planning.assign import assign_fairly
from spark_channel.planning.channels import channel_count, plan_channels, split_advice
from spark_channel.planning.plan import TransferPlan, advise, plan
from spark_channel.planning.spec import Endpoint, EndpointPart, TransferSpec
from spark_channel.planning.tasks import merge_tasks
from spark_channel.planning.types import Split, Task, TaskGroup

__all__ = [
    "Endpoint",
    "EndpointPart",
    "Split",
    "Task",
    "TaskGroup",
    "TransferPlan",
    "TransferSpec",
    "advise",
    "assign_fairly",
    "channel_count",
    "merge_tasks",
    "plan",
    "plan_channels",
    "split_advice",
]
