"""How many channels, which tasks, in which Spark task. Pure functions."""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.planning.assign import assign_fairly
    from spark_channel.planning.channels import channel_count, plan_channels, split_advice
    from spark_channel.planning.spec import Endpoint, EndpointPart, Target, TransferSpec
    from spark_channel.planning.tasks import merge_tasks
    from spark_channel.planning.transfer import TransferPlan, advise, deal, plan
    from spark_channel.planning.types import Split, Task, TaskGroup
else:
    __getattr__, __dir__ = lazy.exports(__name__)

__all__ = [
    "Endpoint",
    "EndpointPart",
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
