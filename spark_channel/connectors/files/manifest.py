"""The manifest: the files of a directory, the claims on it, and what was published. Each log entry is one.

Readers of spark-channel see only the files that the newest entry lists, so a directory changes in one step. `log`
says how entries are written, `docs/files.md` describes the format.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any

import pyarrow as pa

from spark_channel.connectors.base.claims import Claim, HeldClaim, Identity
from spark_channel.connectors.base.contract import Receipt
from spark_channel.connectors.files.filesystem import LOG
from spark_channel.connectors.files.parts import (
    DataFile,
    FileList,
    Merge,
    OlderJobs,
    Part,
    RemovedFiles,
    Replaced,
    is_below,
    merges_of,
    older_jobs_of,
    parts_of,
    removed_of,
)
from spark_channel.connectors.files.published_versions import PublishedVersions
from spark_channel.errors import TargetError

__all__ = [
    "FORMAT",
    "SUCCESS",
    "WITH_MERGES",
    "WITH_PARTS",
    "WITH_REMOVED",
    "Dialect",
    "Manifest",
    "claim_key",
]

SUCCESS = "_SUCCESS"
FORMAT = "spark-channel/2"
WITH_PARTS = "spark-channel/3"
"""The format of an entry that names parts: earlier versions would miss their files, and refuse it."""
WITH_MERGES = "spark-channel/4"
"""The format of an entry that names merged files: the streams of earlier versions would take their rows twice."""
WITH_REMOVED = "spark-channel/5"
"""The format of an entry that names parts of replaced files, or with several merges: earlier versions would never
remove those files, or take rows twice.
"""

_JOBS_KEPT = 1000
_JOBS_IN_ENTRY = 50
_ENDED_KEPT = 200

Dialect = Mapping[str, Any]
"""The options that a reader needs to read a text file back as it was written."""


def claim_key(identity: Identity) -> str:
    """The name of a claim in the log. Without the target: a directory has several paths and one log."""
    return json.dumps([identity.kind, identity.name, identity.version])


@dataclass(frozen=True)
class Manifest:
    """The visible files and the claims. Immutable: a change makes a new manifest.

    `schemas` and `dialects`: by the key that `DataFile.schema` gives. `claims`, `tasks` (the receipts of tasks that
    committed under a claim) and `plans` (the epoch whose run kept the plan that those tasks follow): by `claim_key`.
    `jobs`, and `older_jobs` before them: when each job was published. `versions`: the published versions of each
    transaction name. `ended`: why runs ("<job>/<epoch>") lost their claims. `removed`: files that are not
    visible and may still be on disk.
    `merges`: what merged files were made from, by their paths.
    `retired`: parts that no entry names any more, and until when (ISO, UTC) a reader of an older entry may need them.
    `success`: the `_SUCCESS` of another writer that is counted in.
    """

    format: str
    files: FileList = field(default_factory=FileList)
    schemas: Mapping[str, pa.Schema] = field(default_factory=dict)
    dialects: Mapping[str, Dialect] = field(default_factory=dict)
    claims: Mapping[str, Claim] = field(default_factory=dict)
    tasks: Mapping[str, tuple[Receipt, ...]] = field(default_factory=dict)
    plans: Mapping[str, int] = field(default_factory=dict)
    jobs: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, PublishedVersions] = field(default_factory=dict)
    ended: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[RemovedFiles, ...] = ()
    success: str = ""
    older_jobs: OlderJobs | None = None
    merges: Mapping[str, Merge] = field(default_factory=dict)
    retired: tuple[tuple[str, str], ...] = ()

    def claim(self, identity: Identity) -> Claim | None:
        """The claim on `identity`; one that was published is kept in short."""
        claim = self.claims.get(claim_key(identity))
        if claim is not None:
            return replace(claim, identity=identity)
        published_at = self._published_at(identity)
        if published_at is None:
            return None
        return Claim(identity, "", state="published", published_at=published_at)

    def _published_at(self, identity: Identity) -> str | None:
        if identity.kind == "job":
            at = self.jobs.get(identity.name)
            older = self.older_jobs
            return older.published.get(identity.name) if at is None and older is not None else at
        if (
            identity.kind == "txn"
            and identity.version is not None
            and identity.name in self.versions
        ):
            return self.versions[identity.name].published_at(identity.version)
        return None

    def missing(self, paths: Sequence[str]) -> list[str]:
        """Those of `paths` that are not visible, nor replaced since: an overwrite or a merge may have been quick."""
        missing = self.files.missing(paths)
        replaced = {replaced.file.path for replaced in self.replaced()} if missing else set()
        return [path for path in missing if path not in replaced]

    def has_file(self, test: Callable[[str], bool]) -> bool:
        """Whether the path of a file that is visible, or was replaced, passes. The newest files are tested first."""
        files = chain(
            self.files.newest,
            chain.from_iterable(reversed(self.files.parts)),
            (replaced.file for replaced in self.replaced()),
        )
        return any(test(file.path) for file in files)

    def replaced(self) -> Iterator[Replaced]:
        """Each of the `removed` files. This reads their parts."""
        for files in self.removed:
            yield from files

    def receipts(self, identity: Identity) -> tuple[Receipt, ...]:
        """The tasks that committed under the claim (`commit=task`)."""
        return self.tasks.get(claim_key(identity), ())

    def is_open(self, job: str, epoch: int) -> bool:
        """Whether the run still holds a claim: what it staged may become visible."""
        return any((claim.owner, claim.epoch) == (job, epoch) for claim in self.claims.values())

    def with_claim(self, claim: Claim) -> "Manifest":
        """A claim that was published is dropped, but for a stream's, and remembered in short."""
        key, identity = claim_key(claim.identity), claim.identity
        if claim.state != "published":
            return replace(self, claims={**self.claims, key: claim})
        changed = self.without_claim(identity)
        if identity.kind == "txn" and identity.version is not None:
            published = self.versions.get(identity.name, PublishedVersions())
            at = claim.published_at or ""
            return replace(
                changed,
                versions={**self.versions, identity.name: published.having(identity.version, at)},
            )
        return changed

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
        return replace(self, jobs=jobs)

    def with_task(self, held_claim: HeldClaim, receipt: Receipt) -> "Manifest":
        key = claim_key(held_claim.identity)
        return replace(self, tasks={**self.tasks, key: (*self.tasks.get(key, ()), receipt)})

    def with_ended(self, job: str, epoch: int, by: str) -> "Manifest":
        ended = {**self.ended, f"{job}/{epoch}": by}
        return replace(self, ended=dict(list(ended.items())[-_ENDED_KEPT:]))

    def folded(
        self,
        write_files: Callable[[Sequence[DataFile]], Part],
        write_jobs: Callable[[Mapping[str, str]], OlderJobs],
        write_merges: Callable[[Sequence[Merge]], Sequence[Merge]],
    ) -> "Manifest":
        """The same, with lists in parts that are too long for an entry."""
        new = [path for path, merge in self.merges.items() if not merge.name]
        written = write_merges([self.merges[path] for path in new]) if new else ()
        folded = replace(
            self,
            files=self.files.folded(write_files),
            removed=tuple(
                folded_files for files in self.removed for folded_files in files.folded(write_files)
            ),
            merges={**self.merges, **dict(zip(new, written, strict=True))},
        )
        if len(self.jobs) <= _JOBS_IN_ENTRY:
            return folded
        older = {} if self.older_jobs is None else self.older_jobs.published
        jobs = {**{job: at for job, at in older.items() if job not in self.jobs}, **self.jobs}
        latest = dict(list(jobs.items())[-_JOBS_KEPT:])
        return replace(folded, jobs={}, older_jobs=write_jobs(latest))

    @property
    def part_names(self) -> set[str]:
        older = () if self.older_jobs is None else (self.older_jobs.name,)
        merges = (merge.name for merge in self.merges.values())
        removed = (
            replaced.files.name for replaced in self.removed if isinstance(replaced.files, Part)
        )
        return {*(part.name for part in self.files.parts), *older, *merges, *removed}

    @property
    def has_removed_parts(self) -> bool:
        return any(isinstance(replaced.files, Part) for replaced in self.removed)

    def retiring(self, before: "Manifest", now: str, until: str) -> "Manifest":
        """The manifest that follows `before`: parts that it names no more are kept until `until`."""
        retired = [part for part in before.retired if part[1] > now]
        gone = before.part_names - self.part_names
        return replace(self, retired=(*retired, *((name, until) for name in sorted(gone))))

    def to_json(self) -> dict[str, Any]:
        used = self.files.schemas.union(
            *(replaced.schemas for replaced in self.removed)
        )  # what was replaced can be put back
        return {
            "format": self.format,
            "files": [file.to_json() for file in self.files.newest],
            **self._parts_to_json(),
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
                key: [
                    [receipt.task, receipt.attempt, receipt.rows, receipt.nbytes]
                    for receipt in receipts
                ]
                for key, receipts in self.tasks.items()
            },
            "plans": dict(self.plans),
            "jobs": dict(self.jobs),
            "versions": {app: versions.to_json() for app, versions in self.versions.items()},
            "ended": dict(self.ended),
            "removed": [
                file.to_json()
                for files in self.removed
                if not isinstance(files.files, Part)
                for file in files
            ],
            "success": self.success,
        }

    def _parts_to_json(self) -> dict[str, Any]:
        """Nothing where there are none: then earlier versions can read the entry."""
        older = self.older_jobs
        return {
            **(
                {"parts": [part.to_json() for part in self.files.parts]} if self.files.parts else {}
            ),
            **({"olderJobs": older.name} if older is not None else {}),
            **(
                {
                    "merges": {
                        path: merge.name if merge.place is None else [merge.name, merge.place]
                        for path, merge in self.merges.items()
                    }
                }
                if self.merges
                else {}
            ),
            **(
                {
                    "removedParts": [
                        [replaced.number, replaced.until, replaced.merged, replaced.files.to_json()]
                        for replaced in self.removed
                        if isinstance(replaced.files, Part)
                    ]
                }
                if self.has_removed_parts
                else {}
            ),
            **({"retired": [list(part) for part in self.retired]} if self.retired else {}),
        }

    @classmethod
    def from_json(
        cls, data: Mapping[str, Any], source: str, read: Callable[[str], Any]
    ) -> "Manifest":
        """`read` gives the content of a part.

        Raises:
            TargetError: it is damaged.
        """
        try:
            schemas = data["schemas"]
            files = tuple(DataFile(**file) for file in data["files"])
            manifest = cls(
                format=data["format"],
                files=FileList(parts_of(data, read), files),
                schemas={key: _schema(found["arrow"]) for key, found in schemas.items()},
                dialects={key: found["dialect"] for key, found in schemas.items()},
                claims={key: _claim(claim) for key, claim in data["claims"].items()},
                tasks={
                    key: tuple(Receipt(*row) for row in rows) for key, rows in data["tasks"].items()
                },
                plans=data["plans"],
                jobs=data["jobs"],
                versions={
                    app: PublishedVersions.from_json(versions)
                    for app, versions in data["versions"].items()
                },
                ended=data["ended"],
                removed=removed_of(data, read),
                success=data["success"],
                older_jobs=older_jobs_of(data, read),
                merges=merges_of(data, read),
                retired=tuple((str(name), str(until)) for name, until in data.get("retired", ())),
            )
            _check_places(manifest)
            return manifest
        except (KeyError, TypeError, ValueError, AttributeError, pa.ArrowException) as error:
            raise TargetError(
                f"{source} is a damaged log entry of spark-channel: {error!r}. Restore it, or move the folder {LOG} "
                "away to read every file of the directory"
            ) from error


def _check_places(manifest: Manifest) -> None:
    """A damaged or forged log names nothing outside its directory: files that it names are read, moved and removed.

    Raises:
        ValueError: it does.
    """
    named = (
        replaced.files for replaced in manifest.removed if not isinstance(replaced.files, Part)
    )
    files = [*manifest.files.newest, *chain.from_iterable(named)]
    if strange := next((file.path for file in files if not is_below(file.path)), None):
        raise ValueError(f"{strange!r} is not a file below the directory")
    for claim in manifest.claims.values():
        if "/" in claim.owner or type(claim.epoch) is not int:
            raise ValueError(f"{claim.owner!r} is not the name of a job")


def _schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _claim(data: Mapping[str, Any]) -> Claim:
    return Claim(**{**data, "identity": Identity(**data["identity"])})
