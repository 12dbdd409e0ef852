"""The manifest: the files of a directory, the claims on it, and what was published. Each log entry is one.

Readers of ours see only the files that the newest entry lists, so a directory changes in one step. `log` says how
entries are written, `docs/files.md` describes the format.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa

from spark_channel.connectors.commit import Claim, Held, Identity
from spark_channel.connectors.contracts import Receipt
from spark_channel.connectors.files.paths import LOG
from spark_channel.connectors.files.published import PublishedVersions
from spark_channel.errors import TargetError

__all__ = ["FORMAT", "SUCCESS", "DataFile", "Dialect", "Manifest", "Replaced", "claim_key", "is_below"]

SUCCESS = "_SUCCESS"
FORMAT = "spark-channel/2"

_JOBS_KEPT = 1000
_ENDED_KEPT = 200

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
class Replaced:
    """A file that an overwrite replaced in entry `number`. It may be read until the time `until` (ISO, UTC)."""

    file: DataFile
    number: int
    until: str


def claim_key(identity: Identity) -> str:
    """The name of a claim in the log. Without the target: a directory has several paths and one log."""
    return json.dumps([identity.kind, identity.name, identity.version])


@dataclass(frozen=True)
class Manifest:
    """The visible files and the claims. Immutable: a change makes a new manifest.

    `schemas` and `dialects`: by the key that `DataFile.schema` gives. `claims`, `tasks` (the receipts of tasks that
    committed under a claim) and `plans` (the epoch whose run kept the plan that those tasks follow): by `claim_key`.
    `jobs`: when each job was published. `versions`: the published versions of each `txnAppId`. `ended`: why runs
    ("<job>/<epoch>") lost their claims. `removed`: files that are no longer visible and may still be on disk.
    `success`: the `_SUCCESS` of another writer that is counted in.
    """

    format: str
    files: tuple[DataFile, ...] = ()
    schemas: Mapping[str, pa.Schema] = field(default_factory=dict)
    dialects: Mapping[str, Dialect] = field(default_factory=dict)
    claims: Mapping[str, Claim] = field(default_factory=dict)
    tasks: Mapping[str, tuple[Receipt, ...]] = field(default_factory=dict)
    plans: Mapping[str, int] = field(default_factory=dict)
    jobs: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, PublishedVersions] = field(default_factory=dict)
    ended: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[Replaced, ...] = ()
    success: str = ""

    def claim(self, identity: Identity) -> Claim | None:
        """The claim on `identity`; one that was published is kept in short."""
        found = self.claims.get(claim_key(identity))
        if found is not None:
            return replace(found, identity=identity)
        published_at = self._published_at(identity)
        if published_at is None:
            return None
        return Claim(identity, "", state="published", published_at=published_at)

    def _published_at(self, identity: Identity) -> str | None:
        if identity.kind == "job":
            return self.jobs.get(identity.name)
        if identity.kind == "txn" and identity.version is not None and identity.name in self.versions:
            return self.versions[identity.name].published_at(identity.version)
        return None

    def receipts(self, identity: Identity) -> tuple[Receipt, ...]:
        """Of the tasks that committed under the claim (`commit=task`)."""
        return self.tasks.get(claim_key(identity), ())

    def is_open(self, job: str, epoch: int) -> bool:
        """Whether the run still holds a claim: what it staged may become visible."""
        return any((claim.owner, claim.epoch) == (job, epoch) for claim in self.claims.values())

    def with_claim(self, claim: Claim) -> "Manifest":
        """A claim that was published is dropped, but for a stream's, and remembered in short."""
        key, identity = claim_key(claim.identity), claim.identity
        if claim.state != "published":
            return replace(self, claims={**self.claims, key: claim})
        made = self.without_claim(identity)
        if identity.kind == "txn" and identity.version is not None:
            known = self.versions.get(identity.name, PublishedVersions())
            at = claim.published_at or ""
            return replace(
                made, versions={**self.versions, identity.name: known.having(identity.version, at)}
            )
        return made

    def without_claim(self, identity: Identity) -> "Manifest":
        key = claim_key(identity)
        return replace(
            self,
            claims={name: old for name, old in self.claims.items() if name != key},
            plans={name: old for name, old in self.plans.items() if name != key},
        ).without_tasks(identity)

    def without_tasks(self, identity: Identity) -> "Manifest":
        key = claim_key(identity)
        return replace(self, tasks={name: old for name, old in self.tasks.items() if name != key})

    def with_plan(self, identity: Identity, epoch: int) -> "Manifest":
        return replace(self, plans={**self.plans, claim_key(identity): epoch})

    def with_job(self, job: str, at: str) -> "Manifest":
        jobs = {**{name: old for name, old in self.jobs.items() if name != job}, job: at}
        return replace(self, jobs=dict(list(jobs.items())[-_JOBS_KEPT:]))

    def with_task(self, held: Held, receipt: Receipt) -> "Manifest":
        key = claim_key(held.identity)
        return replace(self, tasks={**self.tasks, key: (*self.tasks.get(key, ()), receipt)})

    def with_ended(self, job: str, epoch: int, by: str) -> "Manifest":
        ended = {**self.ended, f"{job}/{epoch}": by}
        return replace(self, ended=dict(list(ended.items())[-_ENDED_KEPT:]))

    def to_json(self) -> dict[str, Any]:
        used = {file.schema for file in self.files if file.schema}
        return {
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
            "claims": {key: asdict(claim) for key, claim in self.claims.items()},
            "tasks": {
                key: [[each.task, each.attempt, each.rows, each.nbytes] for each in receipts]
                for key, receipts in self.tasks.items()
            },
            "plans": dict(self.plans),
            "jobs": dict(self.jobs),
            "versions": {app: known.to_json() for app, known in self.versions.items()},
            "ended": dict(self.ended),
            "removed": [[_file(each.file), each.number, each.until] for each in self.removed],
            "success": self.success,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], shown: str) -> "Manifest":
        """
        Raises:
            TargetError: it is damaged.
        """
        try:
            schemas = data["schemas"]
            made = cls(
                format=data["format"],
                files=tuple(DataFile(**file) for file in data["files"]),
                schemas={key: _schema(found["arrow"]) for key, found in schemas.items()},
                dialects={key: found["dialect"] for key, found in schemas.items()},
                claims={key: _claim(claim) for key, claim in data["claims"].items()},
                tasks={key: tuple(Receipt(*each) for each in found) for key, found in data["tasks"].items()},
                plans=data["plans"],
                jobs=data["jobs"],
                versions={app: PublishedVersions.from_json(known) for app, known in data["versions"].items()},
                ended=data["ended"],
                removed=tuple(
                    Replaced(DataFile(**file), number, until) for file, number, until in data["removed"]
                ),
                success=data["success"],
            )
            _check_places(made)
            return made
        except (KeyError, TypeError, ValueError, AttributeError, pa.ArrowException) as error:
            raise TargetError(
                f"{shown} is a damaged log entry of spark-channel: {error!r}. Restore it, or move the folder {LOG} "
                "away to read every file of the directory"
            ) from error


def is_below(path: str) -> bool:
    """Whether `path`, relative to a directory, is inside, and none of its log's."""
    return not path.startswith("/") and not {"", ".", "..", LOG} & set(path.split("/"))


def _check_places(made: Manifest) -> None:
    """What the log names is read, moved and removed: a damaged or forged one names nothing outside its directory.

    Raises:
        ValueError: it does.
    """
    files = [*made.files, *(each.file for each in made.removed)]
    if strange := next((file.path for file in files if not is_below(file.path)), None):
        raise ValueError(f"{strange!r} is not a file below the directory")
    for each in made.removed:
        if type(each.number) is not int:
            raise ValueError(f"{each.number!r} is not the number of an entry")
    for claim in made.claims.values():
        if "/" in claim.owner or type(claim.epoch) is not int:
            raise ValueError(f"{claim.owner!r} is not the name of a job")


def _schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _claim(data: Mapping[str, Any]) -> Claim:
    return Claim(**{**data, "identity": Identity(**data["identity"])})


def _file(file: DataFile) -> dict[str, Any]:
    found = {name: getattr(file, name) for name in DataFile.__slots__}
    return {name: value for name, value in found.items() if value is not None}
