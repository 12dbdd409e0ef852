"""How many channels, which tasks, in which Spark task. Pure functions."""

from spark_channel.planning.types import Split, Task, TaskGroup

__all__ = ["Split", "Task", "TaskGroup"]
