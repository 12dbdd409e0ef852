"""The staging of a run, and which staging is orphaned.

A run's folder is `_spark_channel/staging/<job>-e<epoch>/`. It is made after the run has its claim in the log, so a
folder whose claim the log does not hold is orphaned: the run can publish nothing. A live run keeps its claim however
long it takes; that of a run known to be dead is closed first. No age of a file decides by itself.
"""

import json
import posixpath
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyarrow import fs as pafs

from spark_channel.clock import utc_now
from spark_channel.connectors.base.claims import Claim, is_alive
from spark_channel.connectors.files.file_names import run_name
from spark_channel.connectors.files.filesystem import LOG
from spark_channel.connectors.files.manifest import Manifest
from spark_channel.connectors.files.store import Store

__all__ = ["JobFolder", "dead_runs", "staging_folders"]

_STAGING = "staging"
_MARKER = "job.json"
_DOUBT = "doubted"


@dataclass(frozen=True)
class JobFolder:
    """The folder of one run in one target."""

    store: Store
    target: str
    job: str
    epoch: int

    @property
    def run(self) -> str:
        return run_name(self.job, self.epoch)

    @property
    def path(self) -> str:
        return posixpath.join(self.target, LOG, _STAGING, self.run)

    @property
    def marker(self) -> str:
        return posixpath.join(self.path, _MARKER)

    def attempt(self, task: int, attempt: int, unique: str) -> str:
        """The folder of an attempt: its own, or the target itself on an object store."""
        return (
            posixpath.join(self.path, f"{task}-{attempt}-{unique}")
            if self.store.staged
            else self.target
        )

    def begin(self) -> None:
        self.store.make(self.path)
        about = {"job": self.job, "started": utc_now().isoformat(timespec="seconds")}
        self.store.put(self.marker, json.dumps(about).encode())

    def is_live(self) -> bool:
        """Whether the run was neither ended nor aborted. The log decides; this spares a task useless work."""
        return self.store.exists(self.marker)

    def heartbeat(self) -> None:
        """Show that the run lives."""
        if self.is_live():
            self.store.touch(self.marker)

    def has_attempts(self) -> bool:
        """Whether attempts left folders: an attempt that has published its files leaves none."""
        return any(info.type == pafs.FileType.Directory for info in self.store.entries(self.path))

    def remove(self) -> None:
        # The marker first: a task that still runs must not take the run for a live one.
        self.store.remove(self.marker)
        self.store.remove_tree(self.path)

    def is_dead(self, claim: Claim) -> bool:
        """Whether the claim's run is known to be dead; see `connectors.base.claims.is_alive`. Notes a doubt."""
        now = utc_now().isoformat(timespec="seconds")
        doubt = posixpath.join(self.path, _DOUBT)
        refreshed = replace(
            claim,
            beat_at=_time(self.store, self.marker) or claim.beat_at,
            doubted_at=_time(self.store, doubt),
        )
        liveness = is_alive(refreshed, now)
        if (
            liveness == "doubtful"
            and not refreshed.doubted_at > refreshed.beat_at
            and self.is_live()
        ):
            self.store.put(doubt, b"")
        return liveness == "dead"


def _time(store: Store, path: str) -> str:
    info = store.info(path)
    if info.type == pafs.FileType.NotFound or info.mtime_ns is None:
        return ""
    return datetime.fromtimestamp(info.mtime_ns / 1e9, UTC).isoformat(timespec="seconds")


def dead_runs(store: Store, target: str, manifest: Manifest, but: str) -> set[tuple[str, int]]:
    """(job, epoch) of the runs that hold a claim and are known to be dead."""
    return {
        (claim.owner, claim.epoch)
        for claim in manifest.claims.values()
        if claim.owner not in ("", but)
        and JobFolder(store, target, claim.owner, claim.epoch).is_dead(claim)
    }


def staging_folders(store: Store, target: str) -> list[JobFolder]:
    """Of every run that has one in the target."""
    folders = []
    for info in store.entries(posixpath.join(target, LOG, _STAGING)):
        job, _, epoch = info.base_name.rpartition("-e")
        if (
            info.type == pafs.FileType.Directory
            and job
            and epoch.isdigit()
            and not store.is_link(info.path)
        ):
            folders.append(JobFolder(store, target, job, int(epoch)))
    return folders
