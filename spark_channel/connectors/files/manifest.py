"""The manifest: what a directory holds, and what was published into it.

It is the content of `_SUCCESS` in a directory that spark-channel wrote. Spark and others see a `_SUCCESS`
file as usual; readers of ours see only the files that it lists, so a directory changes in one step.
`docs/files.md` describes the format.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from spark_channel.errors import TargetError

__all__ = ["BASE", "HIDDEN", "SUCCESS", "DataFile", "Dialect", "Job", "Manifest"]

SUCCESS = "_SUCCESS"
HIDDEN = ".spark_channel"
"""The folder in a target that holds staging, the lock and `BASE`."""
BASE = "before.json"
"""In `HIDDEN`: what was visible before the first manifest, while that is being made."""

_FORMAT = "spark-channel/1"
_JOBS_KEPT = 1000
_VERSIONS_KEPT = 100

Dialect = Mapping[str, Any]
"""The options that a reader needs to read a text file back as it was written."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """One visible file; `path` is relative to the directory.

    `nbytes` is its size on disk. Files that others wrote have neither `rows` nor `schema`.
    `multi_line`: a text file with line ends inside values.
    """

    path: str
    nbytes: int
    rows: int | None = None
    schema: str | None = None
    job: str | None = None
    mtime_ns: int | None = None
    multi_line: bool | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A job in the ledger. `published_at` is None until it is done.

    `tasks`: for `commit=task`, the tasks published so far; None = all at once. `txn`: its pair.
    """

    published_at: str | None
    rows: int
    tasks: tuple[int, ...] | None = None
    txn: tuple[str, int] | None = None


@dataclass(frozen=True)
class Manifest:
    """What is visible, and the ledger. Immutable: a change makes a new one.

    `schemas` and `dialects`: by the key that `DataFile.schema` gives. `removed`: files that are no longer
    visible and may still be on disk. `versions`: txnAppId -> txnVersion -> when it was published.
    """

    format: str
    files: tuple[DataFile, ...] = ()
    schemas: Mapping[str, pa.Schema] = field(default_factory=dict)
    dialects: Mapping[str, Dialect] = field(default_factory=dict)
    jobs: Mapping[str, Job] = field(default_factory=dict)
    versions: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    removed: tuple[DataFile, ...] = ()
    successor_of: str | None = None

    def job_published_at(self, job: str, txn: tuple[str, int] | None) -> str | None:
        """When the job, or another of its pair, was published; None = never, or too long ago to be known."""
        own = self.jobs.get(job)
        return (own.published_at if own is not None else None) or self.published_at(txn)

    def published_at(self, txn: tuple[str, int] | None) -> str | None:
        """When the pair was published; None = never. What is older than all that is kept, was."""
        if txn is None or txn[0] not in self.versions:
            return None
        known = self.versions[txn[0]]
        if txn[1] in known:
            return known[txn[1]]
        if len(known) >= _VERSIONS_KEPT and txn[1] < min(known):
            return f"before {known[min(known)]}"
        return None

    def with_version(self, txn: tuple[str, int] | None, now: str) -> "Manifest":
        if txn is None:
            return self
        known = {**self.versions.get(txn[0], {}), txn[1]: now}
        kept = {version: known[version] for version in sorted(known)[-_VERSIONS_KEPT:]}
        return replace(self, versions={**self.versions, txn[0]: kept})

    def unfinished(self, txn: tuple[str, int] | None) -> str | None:
        """A job that published some tasks of the pair and not all."""
        for name, job in self.jobs.items():
            if txn is not None and job.txn == txn and job.published_at is None:
                return name
        return None

    def with_job(self, name: str, job: Job) -> "Manifest":
        jobs = {**{key: old for key, old in self.jobs.items() if key != name}, name: job}
        return replace(self, jobs=dict(list(jobs.items())[-_JOBS_KEPT:]))

    def dumps(self) -> bytes:
        used = {file.schema for file in self.files if file.schema}
        data = {
            "manifest": _FORMAT,
            "format": self.format,
            "files": [_file(file) for file in self.files],
            "schemas": {
                key: {
                    "columns": {column.name: str(column.type) for column in schema},
                    "arrow": base64.b64encode(schema.serialize().to_pybytes()).decode("ascii"),
                    "dialect": dict(self.dialects.get(key, {})),
                }
                for key, schema in self.schemas.items()
                if key in used
            },
            "ledger": {
                "jobs": {
                    name: {
                        "published_at": job.published_at,
                        "rows": job.rows,
                        "tasks": job.tasks,
                        "txn": job.txn,
                    }
                    for name, job in self.jobs.items()
                },
                "versions": {
                    app: {str(version): at for version, at in known.items()}
                    for app, known in self.versions.items()
                },
            },
            "removed": [_file(file) for file in self.removed],
            "successor_of": self.successor_of,
        }
        return (json.dumps(data, indent=1) + "\n").encode()

    @classmethod
    def loads(cls, raw: bytes, shown: str) -> "Manifest | None":
        """None: a `_SUCCESS` of someone else (Spark's is empty).

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
                    f"{_FORMAT!r}: "
                    "use the version that wrote it, or a newer one"
                )
            schemas = data["schemas"]
            ledger = data["ledger"]
            return cls(
                format=data["format"],
                files=tuple(DataFile(**file) for file in data["files"]),
                schemas={
                    key: pa.ipc.read_schema(pa.py_buffer(base64.b64decode(found["arrow"])))
                    for key, found in schemas.items()
                },
                dialects={key: found["dialect"] for key, found in schemas.items()},
                jobs={name: _job(job) for name, job in ledger["jobs"].items()},
                versions={
                    app: {int(version): at for version, at in known.items()}
                    for app, known in ledger["versions"].items()
                },
                removed=tuple(DataFile(**file) for file in data["removed"]),
                successor_of=data["successor_of"],
            )
        except (KeyError, TypeError, ValueError, AttributeError, pa.ArrowException) as error:
            raise TargetError(
                f"{shown} is a damaged manifest of spark-channel: {error!r}. Remove it to read every file "
                "there"
            ) from error


def _file(file: DataFile) -> dict[str, Any]:
    found = {name: getattr(file, name) for name in DataFile.__slots__}
    return {name: value for name, value in found.items() if value is not None}


def _job(data: Mapping[str, Any]) -> Job:
    tasks, txn = data["tasks"], data["txn"]
    return Job(
        data["published_at"],
        data["rows"],
        None if tasks is None else tuple(tasks),
        None if txn is None else (txn[0], txn[1]),
    )
