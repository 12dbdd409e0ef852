"""Tells the sink of a Spark task which tunnel range its rows come from.

Source and sink of one task run in two Python processes on one host, and Spark passes nothing from the one
to the other. So the source notes the origin in a small file named for query, partition and attempt, before
its first row; the sink looks there when that row has come. After a shuffle there is no such file: rows of
several ranges are mixed then.
"""

import contextlib
import json
import os
import tempfile
from pathlib import Path

from pyspark import TaskContext

__all__ = ["note_origin", "origins_of_task"]


def _directory() -> Path:
    return Path(tempfile.gettempdir()) / f"spark-channel-origins-{os.getuid()}"


def _file(task: TaskContext) -> tuple[Path, str] | None:
    """(where it is noted, what tells this attempt from earlier ones); None outside a streaming query."""
    query, batch = (
        task.getLocalProperty("sql.streaming.queryId"),
        task.getLocalProperty("streaming.sql.batchId"),
    )
    if not query or batch is None:
        return None
    name = f"{query}-{task.partitionId()}-{task.attemptNumber()}"
    return _directory() / name, f"{batch}/{task.stageId()}/{task.taskAttemptId()}"


def note_origin(task: TaskContext, origin: str) -> None:
    """The source: rows of `origin` come next in this task."""
    found = _file(task)
    if found is None:
        return
    path, attempt = found
    path.parent.mkdir(mode=0o700, exist_ok=True)
    known = _read(path, attempt)
    if origin not in known:
        made = path.with_name(f"{path.name}.{os.getpid()}")
        made.write_text(json.dumps({"attempt": attempt, "origins": [*known, origin]}), encoding="utf-8")
        made.replace(path)


def origins_of_task(task: TaskContext) -> list[str]:
    """The sink: what was noted so far; [] when the rows come from elsewhere."""
    found = _file(task)
    return [] if found is None else _read(*found)


def _read(path: Path, attempt: str) -> list[str]:
    with contextlib.suppress(OSError, ValueError):
        noted = json.loads(path.read_text(encoding="utf-8"))
        if noted["attempt"] == attempt and path.stat().st_uid == os.getuid():
            return [str(origin) for origin in noted["origins"]]
    return []
