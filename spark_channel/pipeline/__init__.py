"""The pipeline inside a Spark task, without Spark: threads around a channel."""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.pipeline.dirty import (
        DirtyBudget,
        DirtyLog,
        DirtyStore,
        TaskDirtyRows,
        dirty_limit_of,
    )
    from spark_channel.pipeline.fan_out import (
        FanOutOutcome,
        FanOutTarget,
        FanOutTargetRun,
        FanOutWork,
        GroupFanOut,
    )
    from spark_channel.pipeline.read import GroupRead, ReadCancelledError
    from spark_channel.pipeline.transfer import (
        GroupOutcome,
        GroupTransfer,
        TaskOutcome,
        TransferSource,
        TransferWork,
    )
    from spark_channel.pipeline.write import TaskWrite
else:
    __getattr__, __dir__ = lazy.exports(
        __name__,
        {
            "dirty": ["DirtyBudget", "DirtyLog", "DirtyStore", "TaskDirtyRows", "dirty_limit_of"],
            "fan_out": [
                "FanOutOutcome",
                "FanOutTarget",
                "FanOutTargetRun",
                "FanOutWork",
                "GroupFanOut",
            ],
            "read": ["GroupRead", "ReadCancelledError"],
            "transfer": [
                "GroupOutcome",
                "GroupTransfer",
                "TaskOutcome",
                "TransferSource",
                "TransferWork",
            ],
            "write": ["TaskWrite"],
        },
    )

__all__ = [
    "DirtyBudget",
    "DirtyLog",
    "DirtyStore",
    "FanOutOutcome",
    "FanOutTarget",
    "FanOutTargetRun",
    "FanOutWork",
    "GroupFanOut",
    "GroupOutcome",
    "GroupRead",
    "GroupTransfer",
    "ReadCancelledError",
    "TaskDirtyRows",
    "TaskOutcome",
    "TaskWrite",
    "TransferSource",
    "TransferWork",
    "dirty_limit_of",
]
