"""Directories that spark-channel wrote before it kept a log: their manifest is the content of `_SUCCESS`.

They are read as they are; the first write turns the manifest into the first entry of the log.
"""

import base64
import json
import posixpath
import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import fs as pafs

from spark_channel.connectors.base.claims import Claim, Identity
from spark_channel.connectors.base.contract import Receipt
from spark_channel.connectors.base.owner import owner_is_gone
from spark_channel.connectors.files.filesystem import Location
from spark_channel.connectors.files.log import (
    FORMAT,
    DataFile,
    Manifest,
    PublishedVersions,
    Replaced,
    claim_key,
)
from spark_channel.errors import TargetError

if TYPE_CHECKING:
    from spark_channel.connectors.files.store import Store

__all__ = ["HIDDEN", "is_former", "parse", "remove_remains", "state_before"]

HIDDEN = ".spark_channel"
"""The folder that held staging and `before.json`."""
_BEFORE = "before.json"
_FORMAT = "spark-channel/1"
_VERSIONS_KEPT = 100
_NAME = re.compile(r"part-\d+-(?P<job>.+)-\d+-\d+\.[a-z0-9.]+")


def parse(raw: bytes, shown: str) -> tuple[Manifest, str] | None:
    """(the manifest in a `_SUCCESS`, the identity of the `_SUCCESS` that it succeeds); None = another writer's.

    Raises:
        TargetError: it is ours and damaged, or of a version that this one does not know.
    """
    if b'"manifest"' not in raw[:200]:
        return None
    try:
        data = json.loads(raw)
        if data["manifest"] != _FORMAT:
            raise TargetError(
                f"{shown} holds a manifest of version {data['manifest']!r}; this spark-channel knows "
                f"{_FORMAT!r} and {FORMAT!r}: use the version that wrote it, or a newer one"
            )
        schemas, ledger = data["schemas"], data["ledger"]
        claims, tasks = _unfinished(ledger["jobs"])
        made = Manifest(
            format=data["format"],
            files=tuple(DataFile(**file) for file in data["files"]),
            schemas={
                key: pa.ipc.read_schema(pa.py_buffer(base64.b64decode(found["arrow"])))
                for key, found in schemas.items()
            },
            dialects={key: found["dialect"] for key, found in schemas.items()},
            claims=claims,
            tasks=tasks,
            jobs={
                name: job["published_at"]
                for name, job in ledger["jobs"].items()
                if job["published_at"] is not None
            },
            versions={
                app: PublishedVersions.of_ledger(
                    {int(each): at for each, at in known.items()}, _VERSIONS_KEPT
                )
                for app, known in ledger["versions"].items()
            },
            removed=tuple(Replaced(DataFile(**file), 0, "") for file in data["removed"]),
        )
        return made, str(data["successor_of"] or "")
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
        pa.ArrowException,
    ) as error:
        raise TargetError(
            f"{shown} is a damaged manifest of spark-channel: {error!r}. Remove it to read every file there"
        ) from error


def _unfinished(jobs: Mapping[str, Any]) -> tuple[dict[str, Claim], dict[str, tuple[Receipt, ...]]]:
    """Jobs that published some tasks of a transaction pair and did not end: claims that no run holds."""
    claims, tasks = {}, {}
    for job in jobs.values():
        if job["published_at"] is None and job["txn"] is not None and job["tasks"]:
            identity = Identity("", "txn", job["txn"][0], int(job["txn"][1]))
            claims[claim_key(identity)] = Claim(identity, "", state="prepared")
            rows = [job["rows"], *(0 for _ in job["tasks"][1:])]
            tasks[claim_key(identity)] = tuple(
                Receipt(task, 0, count, 0) for task, count in zip(job["tasks"], rows, strict=True)
            )
    return claims, tasks


def state_before(place: Location, directory: str, success: str) -> Manifest | None:
    """The files that were visible before the first manifest, while a write of the previous format is published."""
    path = posixpath.join(directory, HIDDEN, _BEFORE)
    try:
        with place.fs.open_input_file(path) as file:
            raw = bytes(file.read())
    except (FileNotFoundError, PermissionError):
        return None
    found = parse(raw, place.show(path))
    return found[0] if found is not None and found[1] == success else None


def remove_remains(store: "Store", directory: str, listed: Collection[str]) -> None:
    """Remove what jobs of the former version left, where their processes are known to be gone."""
    top = posixpath.join(directory, HIDDEN)
    if not store.exists(top):
        return
    for info in store.entries(top):
        if (
            info.type != pafs.FileType.Directory
            or info.base_name == "lock"
            or not _is_gone(store, info.path)
        ):
            continue
        for path in data_names(store, directory):
            match = _NAME.fullmatch(path)
            if match is not None and match.group("job") == info.base_name and path not in listed:
                store.remove(posixpath.join(directory, path))
        store.remove_tree(info.path)
    store.remove(posixpath.join(top, _BEFORE))
    left = [info for info in store.entries(top) if info.base_name not in ("lock", _BEFORE)]
    if not any(info.type == pafs.FileType.Directory for info in left):
        store.remove_tree(top)


def data_names(store: "Store", directory: str) -> list[str]:
    return [info.base_name for info in store.entries(directory) if info.type == pafs.FileType.File]


def is_former(path: str) -> bool:
    """Whether the former version gave this name, which is used once."""
    return _NAME.fullmatch(posixpath.basename(path)) is not None


def _is_gone(store: "Store", folder: str) -> bool:
    try:
        with store.place.fs.open_input_file(posixpath.join(folder, "job.json")) as file:
            return owner_is_gone(json.loads(file.read())["owner"])
    except FileNotFoundError:
        return True  # it was ended, and the clean-up was interrupted
    except (OSError, ValueError, KeyError, TypeError):
        return False
