"""A commit's entry in a Delta table's log, for commits that remove files as deltalake does not.

Before 1.6.6 deltalake removes all files of a table or none. Later ones spell some paths in their own way:
Spark writes `s=ü/part-0`, and deltalake removes `s=%C3%BC/part-0`: the rows would stay beside the new ones, for every
reader (findings/delta-remove-is-spelled-anew.sh).
"""

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from spark_channel.clock import utc_now
from spark_channel.connectors.lake.table import Change, TableFile

if TYPE_CHECKING:
    from deltalake import CommitProperties
    from deltalake.transaction import AddAction

__all__ = ["entry", "is_kept"]

_PLAIN = re.compile(r"[\w/=. %-]+")


def is_kept(logged: str) -> bool:
    """Whether deltalake spells a path as the log does."""
    path = unquote(logged)
    return bool(_PLAIN.fullmatch(path)) and quote(path, safe="/=-_.") == logged


def entry(
    change: Change,
    added: list["AddAction"],
    properties: "CommitProperties",
    partition_by: tuple[str, ...],
) -> bytes:
    """The lines of the log's next file."""
    now = int(utc_now().timestamp() * 1000)
    lines = _actions(change, added, properties, partition_by, now)
    return "\n".join(json.dumps(action, ensure_ascii=False) for action in lines).encode()


def _actions(
    change: Change,
    added: list["AddAction"],
    properties: "CommitProperties",
    partition_by: tuple[str, ...],
    now: int,
) -> Iterator[dict[str, Any]]:
    changes = change.operation != "compact"
    mode = "Overwrite" if change.operation == "overwrite" else "Append"
    yield {
        "commitInfo": {
            "timestamp": now,
            "operation": "WRITE",
            "operationParameters": {"mode": mode, "partitionBy": json.dumps(partition_by)},
            **(properties.custom_metadata or {}),
        }
    }
    for transaction in properties.app_transactions or ():
        yield {
            "txn": {
                "appId": transaction.app_id,
                "version": transaction.version,
                "lastUpdated": transaction.last_updated,
            }
        }
    for file in change.removed:
        yield {"remove": {**_removed(file, now), "dataChange": changes}}
    for action in added:
        yield {
            "add": {
                "path": quote(action.path, safe="/=-_."),
                "partitionValues": dict(action.partition_values),
                "size": action.size,
                "modificationTime": action.modification_time,
                "dataChange": changes,
                "stats": action.stats,
            }
        }


def _removed(file: TableFile, now: int) -> dict[str, Any]:
    return {
        "path": file.handle,
        "deletionTimestamp": now,
        "extendedFileMetadata": True,
        "partitionValues": dict(file.partition),
        "size": file.size,
    }
