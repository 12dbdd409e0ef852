"""Calls code as pyspark's daemon does in a worker."""

from collections.abc import Callable
from typing import Any

__all__ = ["in_a_worker_of_the_daemon"]


def in_a_worker_of_the_daemon(task: Callable[[], None], **variables: Any) -> None:
    """Calls `task` from a function that has `variables` where the one of pyspark's daemon has them."""
    names: dict[str, Any] = {}
    program = f"def worker(task, {', '.join(variables)}): task()"
    exec(compile(program, "/x/pyspark/daemon.py", "exec"), names)
    names["worker"](task, **variables)
