"""The records of a run beside a table: that it is alive, and its data files, which no commit names before the publish.

`<table>/_spark_channel/runs/<run>.json` says whose run it is; `<table>/<data>/<run>/` holds its files. A run's files
are removed when its claim can no longer be published: the log says so, or its process is known to be dead and its
claim was closed first. The files that a run is about to publish are noted before its commit, and never removed on a
doubt.
"""

import json
import posixpath
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyarrow import fs as pafs

from spark_channel.clock import utc_now
from spark_channel.connectors.base.claims import Claim, HeldClaim, Identity, is_alive
from spark_channel.connectors.files.filesystem import LOG, read_file
from spark_channel.connectors.files.store import Store

__all__ = [
    "FoundRun",
    "Run",
    "all_runs",
    "is_own",
    "live_runs",
    "new_run_name",
    "remove_stray_notes",
]

_RUNS = "runs"
_ENDINGS = ("json", "publishing", "doubted", "ended")
_TRIES = 20


def new_run_name(job: str, epoch: int) -> str:
    """Unique: a job that is prepared twice before its table is there has two runs."""
    return f"{job}-e{epoch}-{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True)
class Run:
    """One run in one table. `base` is the table's directory, `data` is relative to it."""

    store: Store
    base: str
    data: str
    name: str

    @property
    def folder(self) -> str:
        return posixpath.join(self.base, self.data, self.name)

    def _beside(self, ending: str) -> str:
        return posixpath.join(self.base, LOG, _RUNS, f"{self.name}.{ending}")

    def begin(self, claim: HeldClaim, process: str, *, deferred: bool = False) -> None:
        """`deferred`: the table gets the claim in the commit that publishes, and `claim` has the epoch before it.

        Releases that know only runs whose claim the table has leave a note without "identity" alone.
        """
        identity = claim.identity
        about = {
            "job": claim.owner,
            "deferred" if deferred else "identity": [
                identity.kind,
                identity.name,
                identity.version,
            ],
            "epoch": claim.epoch,
            "position": claim.position,
            "process": process,
            "started": utc_now().isoformat(timespec="seconds"),
        }
        self._put("json", json.dumps(about).encode())

    def _put(self, ending: str, data: bytes) -> None:
        """Another run may remove the folder as empty while this one makes it."""
        for tries_left in reversed(range(_TRIES)):
            try:
                self.store.make(posixpath.dirname(self._beside(ending)))
                self.store.put(self._beside(ending), data)
                return
            except FileNotFoundError:
                if not tries_left:
                    raise

    def is_live(self) -> bool:
        """Whether the run was not ended. The log decides; this spares a task useless work."""
        return self.store.exists(self._beside("json")) and not self.store.exists(
            self._beside("ended")
        )

    def heartbeat(self) -> None:
        if self.is_live():
            self.store.touch(self._beside("json"))

    def note_publishing(self, paths: Sequence[str]) -> None:
        self._put("publishing", json.dumps(list(paths)).encode())

    def may_publish(self) -> bool:
        """Whether the run's commit may have been sent."""
        return self.store.exists(self._beside("publishing"))

    def publishing(self) -> list[str]:
        """The files (relative to the table) that the run may have published."""
        raw = self._read(self._beside("publishing"))
        try:
            return [] if raw is None else [str(path) for path in json.loads(raw)]
        except ValueError:  # it is being written, and the commit comes after
            return []

    def files(self) -> list[str]:
        """The files (relative to the table) that it has staged, or published."""
        infos = self.store.entries(self.folder, recursive=True)
        return [posixpath.relpath(info.path, self.base) for info in infos if info.is_file]

    def about(self) -> dict[str, Any] | None:
        raw = self._read(self._beside("json"))
        if raw is None:
            return None
        try:
            note = json.loads(raw)
        except (ValueError, RecursionError):
            return None
        return note if isinstance(note, dict) else None

    def read(self, target: str, publishing: Sequence[str]) -> "FoundRun | None":
        """The run as it began; None = its note is gone or damaged."""
        note = self.about()
        try:
            assert note is not None
            deferred = "deferred" in note
            identity = Identity(target, *note["deferred" if deferred else "identity"])
            claim = HeldClaim(identity, str(note["job"]), int(note["epoch"]), note["position"])
        except (AssertionError, KeyError, TypeError, ValueError):
            return None
        return FoundRun(self, claim, tuple(publishing), deferred)

    def is_dead(self, run_claim: HeldClaim) -> bool:
        """Whether the run's process is known to be gone; see `connectors.base.claims.is_alive`. Notes a doubt."""
        note = self.about()
        if note is None:
            return False  # it has ended since it was found, and took its notes away
        claim = Claim(
            run_claim.identity,
            run_claim.owner,
            run_claim.epoch,
            process=str(note.get("process", "")),
            beat_at=self._time(self._beside("json")) or str(note.get("started", "")),
            doubted_at=self._time(self._beside("doubted")),
        )
        liveness = is_alive(claim, utc_now().isoformat(timespec="seconds"))
        if liveness == "doubtful" and not claim.doubted_at > claim.beat_at:
            self._put("doubted", b"")
        return liveness == "dead"

    def end(self) -> None:
        """From here on it is not live."""
        self._put("ended", b"")

    def remove(self, keep: Collection[str] = ()) -> None:
        """Remove the run's files but `keep` (relative to the table), then its notes."""
        self.end()
        kept_paths = {posixpath.join(self.base, path) for path in keep}
        files = [info for info in self.store.entries(self.folder, recursive=True) if info.is_file]
        if any(info.path in kept_paths for info in files):
            self.store.remove_many([info.path for info in files if info.path not in kept_paths])
        elif self.store.exists(self.folder) or files:
            self.store.remove_tree(self.folder)
            self.store.remove_empty(posixpath.dirname(self.folder))
        # Whoever still finds the note "json" has read "publishing" before: see `all_runs`.
        for ending in _ENDINGS:
            self.store.remove(self._beside(ending))
        self.store.remove_unfinished(posixpath.join(self.base, LOG))
        self.store.remove_empty(posixpath.dirname(self._beside("json")))
        self.store.remove_empty(posixpath.join(self.base, LOG))

    def _time(self, path: str) -> str:
        info = self.store.info(path)
        if info.type == pafs.FileType.NotFound or info.mtime_ns is None:
            return ""
        return datetime.fromtimestamp(info.mtime_ns / 1e9, UTC).isoformat(timespec="seconds")

    def _read(self, path: str) -> bytes | None:
        return read_file(self.store.place, path)


def remove_stray_notes(store: Store, base: str) -> None:
    """Remove what is noted of runs that have ended: one wrote it when it woke up, or was killed while it removed it.

    A run has its note "json" from its beginning until its end.
    """
    folder = posixpath.join(base, LOG, _RUNS)
    names = {info.base_name for info in store.entries(folder)}
    for name in sorted(names):
        run, _, ending = name.rpartition(".")
        first = f"{run}.{_ENDINGS[0]}"
        stray = ending in _ENDINGS[1:] and first not in names
        if stray and not store.exists(posixpath.join(folder, first)):
            store.remove(posixpath.join(folder, name))
            store.remove_empty(folder)
            store.remove_empty(posixpath.dirname(folder))


@dataclass(frozen=True)
class FoundRun:
    """A run as it was found beside a table. `deferred`: see `Run.begin`."""

    run: Run
    held: HeldClaim
    publishing: tuple[str, ...]
    deferred: bool = False

    def is_of(self, claim: HeldClaim) -> bool:
        """Whether the run may publish what the one that holds `claim` may: the tasks of a stream's batch begin runs of
        one name.
        """
        names = self.held.owner, self.held.position
        return self._same_write(claim) and names == (claim.owner, claim.position)

    def is_rival(self, claim: HeldClaim) -> bool:
        """Whether it is another run of the write."""
        return self._same_write(claim) and not self.is_of(claim)

    def _same_write(self, claim: HeldClaim) -> bool:
        return self.held.identity.key == claim.identity.key

    def has_ended(self, claim: Claim | None) -> bool:
        """Whether the log, which has `claim`, rejects every later publish of the run."""
        if claim is None:
            return False
        if claim.has_published(self.held.position):
            return True
        if self.deferred:
            return claim.epoch > self.held.epoch
        if (
            not claim.owner
        ):  # one of an earlier run: the table was looked at before this run took it
            return claim.epoch >= self.held.epoch
        return claim.epoch > self.held.epoch and not is_own(claim, self.held)

    def may_have_published(self, claim: Claim | None) -> bool:
        """Of a run that has ended."""
        if claim is None or self.held.identity.kind == "stream":
            return claim is not None
        if self.deferred:
            return claim.state == "published" and claim.owner in ("", self.held.owner)
        if self.held.epoch == 0:
            return True
        return claim.epoch == self.held.epoch and claim.has_published(self.held.position)


def is_own(current: Claim, own_claim: HeldClaim) -> bool:
    """Whether a run without a claim has written this one, with the columns that it adds."""
    return (
        own_claim.epoch == 0
        and own_claim.identity.kind == "job"
        and current.owner == own_claim.owner
    )


def all_runs(store: Store, base: str, data: str, target: str) -> tuple[list[FoundRun], set[str]]:
    """Every run that has a note, and all files (relative to the table) that any run may have published.

    What a run publishes is read before its note is: a run whose note is there has not lost the other one yet.
    """
    notes = store.entries(posixpath.join(base, LOG, _RUNS))
    names = [
        info.base_name.rpartition(".")[0] for info in notes if info.base_name.endswith(".json")
    ]
    runs = [Run(store, base, data, name) for name in names]
    publishing = {run.name: run.publishing() for run in runs}
    found_runs = [run.read(target, publishing[run.name]) for run in runs]
    every = {path for paths in publishing.values() for path in paths}
    return [run for run in found_runs if run is not None], every


def live_runs(store: Store, base: str) -> set[str]:
    """The names of all runs that were not ended, as `Run.is_live` says of one."""
    names = {info.base_name for info in store.entries(posixpath.join(base, LOG, _RUNS))}
    runs = {run for run, _, ending in (name.rpartition(".") for name in names) if ending == "json"}
    return {run for run in runs if f"{run}.ended" not in names}
