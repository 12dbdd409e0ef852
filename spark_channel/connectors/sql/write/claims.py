"""The claims of a database: tables in the target's schema that record who writes, and what was committed.

One layout for every connector that writes to one database:
`spark_channel_claims` has a row per identity of a write, `spark_channel_tasks` one per task that committed
(`commit=task`), until its write is published, and `spark_channel_transfers` the plans of transfers that can be
continued.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from spark_channel.clock import utc_text
from spark_channel.connectors.base import claims
from spark_channel.connectors.base.claims import (
    Claim,
    ClaimDecision,
    Follows,
    HeldClaim,
    Identity,
    StreamNote,
    StreamProgress,
)
from spark_channel.connectors.base.contract import PartialWrite, Receipt, WriteContext
from spark_channel.connectors.base.kept_claims import (
    KeptClaim,
    covers,
    kept_of,
    ranges_of_bits,
    without_bits,
)
from spark_channel.connectors.sql.statements import marked
from spark_channel.connectors.sql.write.claim_tables import (
    CLAIMS,
    COLUMNS,
    LONG_NAME,
    LONGEST_NAME,
    LONGEST_TARGET,
    PLANS,
    PUBLISHED,
    TASKS,
    ClaimDialect,
    RowSession,
    StoredPlans,
    claim_of,
    stage_prefix,
)
from spark_channel.connectors.sql.write.claim_upkeep import (
    PER_ROW,
    expired_of,
    holds,
    old_condition,
    shared_row,
    with_versions,
)
from spark_channel.errors import CommitError, TargetError
from spark_channel.final_errors import of_input

__all__ = ["Claims", "UntrustedClaimsError"]

_Statement = tuple[str, Sequence[Any]]
"""With the values of its parameters."""

_AT_ONCE = 100
"""Rows that one job removes, or looks up at once: a job pays for the jobs before it no more than for itself."""
_KEY_LETTERS = 16
"""Letters of a claim's key in the names of its staging tables."""
_LONGEST_OWNER = 250
_TASK_COLUMNS = "claim, task, attempt, row_count, byte_count, committed_at"
_NOTE = "/note"


class UntrustedClaimsError(TargetError):
    """The tables of claims are there, and must not be used."""


class Claims:
    """The claims as one session sees them. Every method but `ensure` runs in a transaction that the caller ends."""

    def __init__(self, session: RowSession, dialect: ClaimDialect) -> None:
        self._session = session
        self._dialect = dialect
        self._there = False
        self._publishing: Claim | None = None  # as `begin_publish` has locked it

    @property
    def longest_name(self) -> int:
        return self._dialect.longest_name

    def exist(self) -> bool:
        """Whether the tables are there.

        Raises:
            TargetError: one is, and must not be used.
        """
        if not self._there:
            self._there = self._usable(CLAIMS) and self._usable(TASKS)
        return self._there

    def ensure(self) -> None:
        """Make the tables that are not there.

        Raises:
            TargetError: one is there, and must not be used.
        """
        if self.exist():
            return
        text, number = self._dialect.text, "BIGINT"
        self._create(
            CLAIMS,
            f"claim {text(64)} NOT NULL, target {text(LONGEST_TARGET)} NOT NULL, kind {text(8)} NOT NULL, "
            f"name {text(LONGEST_NAME)} NOT NULL, version {number}, owner {text(_LONGEST_OWNER)} NOT NULL, "
            f"epoch {number} NOT NULL, state {text(12)} NOT NULL, batch {number}, published_at {text(32)}, "
            f"row_count {number} NOT NULL, byte_count {number} NOT NULL, process {text(500)} NOT NULL, "
            f"beat_at {text(32)} NOT NULL, doubted_at {text(32)} NOT NULL, generation {number}, PRIMARY KEY (claim)"
            f"{self._dialect.index_in_table}",
        )
        self._create(
            TASKS,
            f"claim {text(64)} NOT NULL, task {number} NOT NULL, attempt {number} NOT NULL, "
            f"row_count {number} NOT NULL, byte_count {number} NOT NULL, committed_at {text(32)} NOT NULL, "
            "PRIMARY KEY (claim, task)",
        )
        self._there = True
        if not self._dialect.index_in_table:
            self.add_index()

    def lacks_index(self) -> bool:
        """Whether the tables are of a version that made no index."""
        return bool(self._dialect.index) and not self._dialect.exists(PUBLISHED)

    def add_index(self) -> None:
        for statement in self._dialect.before(PUBLISHED):
            self._run(statement, ())
        if not self.lacks_index():  # another session may have made it before this one's turn
            return
        if self._dialect.hurry:
            self._run(self._dialect.hurry, ())
        try:
            self._run(self._dialect.index, ())
        finally:
            if self._dialect.hurry_end:
                self._run(self._dialect.hurry_end, ())

    def probe(self) -> None:
        """Change nothing, with each right that the claims need.

        Raises:
            TargetError: the server's own, for a right that is missing.
        """
        for name, columns in ((CLAIMS, COLUMNS), (TASKS, _TASK_COLUMNS)):
            table = self._dialect.table(name)
            self._run(f"UPDATE {table} SET claim = claim WHERE claim = ''", ())  # noqa: S608 - constants
            self._run(f"DELETE FROM {table} WHERE claim = ''", ())  # noqa: S608 - constants
            self._run(
                f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {table} "  # noqa: S608 - constants
                "WHERE claim = ''",
                (),
            )

    @property
    def plans(self) -> StoredPlans:
        return StoredPlans(
            self._dialect.table(PLANS),
            self._run,
            lambda: self._usable(PLANS),
            tuple(self._dialect.before(PLANS)),
            self._dialect.after,
        )

    def take(
        self,
        identity: Identity,
        owner: str,
        *,
        position: int | None = None,
        follows: Follows | None = None,
        resume: int | None = None,
    ) -> ClaimDecision:
        """Claim the write for the run `owner`, and let other runs of it know.

        Tasks that committed before another job overwrote the table count as never run: their rows are gone.

        Raises:
            TargetError: another run has committed tasks that this one does not continue.
        """
        owner = _bounded(owner)
        claim = self._without_void(self._locked(identity, self._dialect.update))
        receipts = [] if claim is None else self.receipts(identity)
        if receipts and claim is not None and self._overwritten(claim, self._dialect.share):
            self._run(*self._forgetting(identity))
            self._drop_plan(identity)
            receipts = []
        decision = claims.take(
            claim,
            identity,
            owner,
            position=position,
            follows=follows,
            committed=(len(receipts), sum(receipt.rows for receipt in receipts)),
            resume=resume,
            process=claims.own_process(),
            now=utc_text(),
        )
        if decision.held is None:
            return decision
        table = Identity(identity.target, "table", identity.target)
        written = [] if decision.claim is None else [self._writing(decision.claim, claim)]
        shared = shared_row(identity) if claim is None else None
        keys = [table.key, table.key if shared is None else shared.key]
        sql = f"{self._select} WHERE claim IN (?, ?)"
        rows = {str(row[0]): claim_of(row) for row in self._run_all(*written, (sql, keys))}
        if shared is not None and (bits := rows.get(shared.key)) is not None:
            # Another run published the version, and its row was shared, between the look at it and this insert.
            assert identity.version is not None
            if holds(bits, identity.version):
                self._run(*self._removing(identity.key))
                return ClaimDecision(None, None, bits.published_at)
        if table.key not in rows:
            self._write(Claim(table, "", 0), None)  # a row that overwrites can lock
        return decision

    def published_at(self, target: str, context: WriteContext) -> str | None:
        """When the write was published; None = it was not. Only an optimisation, without a guarantee."""
        if not self.exist():
            return None
        claim = self._without_void(self._read(Identity.for_write(target, context)))
        position = context.stream[1] if context.stream else None
        return claim.published_at if claim is not None and claim.has_published(position) else None

    def knows(self, target: str) -> bool:
        """Whether a run has claimed the table, as far as claims are kept."""
        if not self.exist():
            return False
        return self._read(Identity(target, "table", target)) is not None  # each run makes it

    def progress(self, target: str, stream: str) -> StreamProgress | None:
        """How far the stream has published."""
        if not self.exist():
            return None
        claim = self._read(Identity(target, "stream", stream))
        return claims.progress_of(self._without_void(claim))

    def makes_table(self, held_claim: HeldClaim) -> None:
        """See `claims.makes_table`."""
        claim = self._locked(held_claim.identity, self._dialect.update)
        if claim is not None and (claim.owner, claim.epoch) == (held_claim.owner, held_claim.epoch):
            self._write(claims.makes_table(claim), claim)

    def forget(self, target: str, stream: str) -> None:
        """Let the stream begin again."""
        identity = Identity(target, "stream", stream)
        if self.exist() and (claim := self._locked(identity, self._dialect.update)) is not None:
            self._write(claims.forget(claim), claim)

    def note(self, target: str, stream: str, text: str) -> None:
        """Keep a text beside the stream's claim: in a claim that no run holds, where a process would be named."""
        identity = _note_of(target, stream)
        self.ensure()
        claim = self._locked(identity, self._dialect.update)
        self._write(Claim(identity, "", published_at=utc_text(), process=text[:500]), claim)

    def noted(self, target: str, stream: str) -> StreamNote | None:
        """What `note` kept last."""
        claim = self._read(_note_of(target, stream)) if self.exist() else None
        return None if claim is None else StreamNote(claim.process, claim.published_at or "")

    def drop(self, target: str, stream: str) -> None:
        """Remove the claim of a stream: a driver of it that wakes up finds none, and writes nothing."""
        identity = Identity(target, "stream", stream)
        if self.exist() and self._locked(identity, self._dialect.update) is not None:
            self._run(*self._forgetting(identity))
            self._run(*self._removing(identity.key))

    def unfinished(self, target: str, context: WriteContext) -> PartialWrite | None:
        """The run of the same pair that committed tasks and did not end."""
        if context.txn is None or not self.exist():
            return None
        identity = Identity.for_write(target, context)
        claim = self._read(identity)
        receipts = self.receipts(identity)
        if (
            claim is None
            or claim.has_published(None)
            or not receipts
            or self._overwritten(claim, None)
        ):
            return None
        return PartialWrite(
            claim.owner, self.plans.find(identity.key), tuple(receipts), claim.epoch
        )

    def peek(self, held_claim: HeldClaim) -> Claim:
        """The claim, while it is this run's: without a lock, so that it saves an overtaken run work, and no more.

        Raises:
            SupersededError: as `fence`.
        """
        claim = self._read(held_claim.identity)
        claims.check(claim, held_claim)
        assert claim is not None
        return claim

    def fence(self, held_claim: HeldClaim, *, exclusive: bool = False) -> Claim:
        """Lock the claim until the transaction ends, and hold it to be this run's.

        Tasks share the lock; `exclusive` is for what changes the claim.

        Raises:
            SupersededError: it is another run's, was published, or was given back; or the table was overwritten.
        """
        lock = self._dialect.update if exclusive else self._dialect.share
        claim = self._locked(held_claim.identity, lock)
        claims.check(claim, held_claim)
        if held_claim.generation is not None:
            claims.check_generation(
                self._generation(held_claim.identity.target, self._dialect.share), held_claim
            )
        assert claim is not None
        return claim

    def own_publication(self, held_claim: HeldClaim, task: int) -> Receipt | None:
        """What this run's only task has published; None = nothing, or another run has. Without a lock."""
        claim = self._read(held_claim.identity)
        held_claim = replace(held_claim, owner=_bounded(held_claim.owner))
        if claim is None or not claim.has_published(held_claim.position):
            return None
        if claims.is_of_another_run(claim, held_claim):
            return None
        return Receipt(task, -1, claim.rows, claim.nbytes)

    def make_ready(self, held_claim: HeldClaim, *, overwrite: bool) -> tuple[HeldClaim, bool]:
        """Fence, before a `commit=task` run runs preSql and creates or empties its table. In that transaction.

        Returns what its tasks hold, and whether that is to be done: not by a run that continues another.

        Raises:
            SupersededError: as `fence`; or the table was overwritten since the run that this one continues.
        """
        claim = self.fence(held_claim, exclusive=True)
        if claim.state == "prepared":
            held_claim = replace(held_claim, generation=claim.generation)
            claims.check_generation(
                self._generation(held_claim.identity.target, self._dialect.share), held_claim
            )
            return held_claim, False
        target = held_claim.identity.target
        generation = (
            self.overwrite(held_claim)
            if overwrite
            else self._generation(target, self._dialect.share)
        )
        self._write(replace(claim, state="prepared", generation=generation), claim)
        return replace(held_claim, generation=generation), True

    def overwrite(self, held_claim: HeldClaim) -> int:
        """Lock the table against other overwrites until the transaction ends; the number of this one.

        In the transaction that empties the table: tasks of other jobs that write straight into it are fenced off.
        """
        table = Identity(held_claim.identity.target, "table", held_claim.identity.target)
        table_claim = self._locked(table, self._dialect.update)
        claim = (
            Claim(table, "", 1)
            if table_claim is None
            else replace(table_claim, epoch=table_claim.epoch + 1)
        )
        self._write(replace(claim, owner=held_claim.owner), table_claim)
        return claim.epoch

    def keep_table(self, held_claim: HeldClaim) -> None:
        """Until the transaction ends, no other one may `overwrite` the table, or `hold_table` it."""
        self._generation(held_claim.identity.target, self._dialect.share)

    def hold_table(self, held_claim: HeldClaim) -> None:
        """Wait for transactions that `keep_table`; until this one ends, no other may."""
        table = Identity(held_claim.identity.target, "table", held_claim.identity.target)
        self._locked(table, self._dialect.update)

    def _generation(self, target: str, lock: str | None) -> int:
        """The number of overwrites of the table; `lock` keeps it until the transaction ends."""
        table = Identity(target, "table", target)
        table_claim = self._read(table) if lock is None else self._locked(table, lock)
        return 0 if table_claim is None else table_claim.epoch

    def _overwritten(self, claim: Claim, lock: str | None) -> bool:
        """Whether another job has overwritten the table since the run made it ready (`commit=task`)."""
        return claim.generation is not None and claim.generation != self._generation(
            claim.identity.target, lock
        )

    def _without_void(self, claim: Claim | None, *, lock: bool = False) -> Claim | None:
        """As `claims.unless_replaced`. `lock`: no other job overwrites the table until the transaction ends. It
        is not shared, since an overwrite takes the same lock next.
        """
        if claim is None or claim.identity.kind != "stream" or claim.generation is None:
            return claim
        target = claim.identity.target
        if lock:
            self._locked(Identity(target, "table", target), self._dialect.update)
        return claims.unless_replaced(claim, self._generation(target, None))

    def _forgetting(self, identity: Identity) -> _Statement:
        return f"DELETE FROM {self._dialect.table(TASKS)} WHERE claim = ?", (identity.key,)  # noqa: S608 - a quoted name

    def _drop_plan(self, identity: Identity) -> None:
        if identity.kind != "stream":  # a stream keeps none
            self.plans.drop(identity.key)

    def task(self, held_claim: HeldClaim, task: int) -> Receipt | None:
        """The receipt of a task that has committed under the claim."""
        receipts = [
            receipt for receipt in self.receipts(held_claim.identity) if receipt.task == task
        ]
        return receipts[0] if receipts else None

    def receipts(self, identity: Identity) -> list[Receipt]:
        """The receipt of each task that has committed under the claim."""
        if not self.exist():
            return []
        rows = self._run(
            f"SELECT task, attempt, row_count, byte_count FROM {self._dialect.table(TASKS)} "  # noqa: S608 - a quoted name
            "WHERE claim = ? ORDER BY task",
            (identity.key,),
        )
        return [
            Receipt(int(task), int(attempt), int(count), int(size))
            for task, attempt, count, size in rows
        ]

    def add_task(
        self, held_claim: HeldClaim, receipt: Receipt, *, then: str = ""
    ) -> list[tuple[Any, ...]]:
        """Note that a task committed. The caller has fenced in this transaction. Returns the rows of the query `then`.

        Raises:
            TargetError: another attempt of the task has, or is about to.
        """
        values = (
            held_claim.identity.key,
            receipt.task,
            receipt.attempt,
            receipt.rows,
            receipt.nbytes,
            utc_text(),
        )
        note = (
            f"INSERT INTO {self._dialect.table(TASKS)} "  # noqa: S608 - a quoted name
            "(claim, task, attempt, row_count, byte_count, committed_at) VALUES (?, ?, ?, ?, ?, ?)"
        )
        return self._run_all((note, values), *([(then, ())] if then else []))

    def begin_publish(self, held_claim: HeldClaim) -> bool:
        """Lock the claim, and hold it to be this run's. False: the write was published before.

        Raises:
            SupersededError: it is another run's, or was given back.
        """
        claim = self._without_void(
            self._locked(held_claim.identity, self._dialect.update), lock=True
        )
        self._publishing = claim
        if claim is not None and claim.has_published(held_claim.position):
            return False
        claims.check(claim, held_claim)
        return True

    def lost(self, held_claim: HeldClaim) -> bool:
        """After `begin_publish`, which returned False: whether another run has published the write."""
        return claims.is_of_another_run(
            self._publishing, replace(held_claim, owner=_bounded(held_claim.owner))
        )

    def publish(self, held_claim: HeldClaim, *, rows: int, nbytes: int) -> None:
        """Mark the write as published; its tasks' rows and its plan go. After `begin_publish`, and `overwrite`."""
        claim = self._publishing
        if claim is None or claim.generation is not None:
            claim = self._without_void(self._read(held_claim.identity))
        published = claims.publish(claim, held_claim, at=utc_text(), rows=rows, nbytes=nbytes)
        assert published is not None, "begin_publish holds the lock"
        if held_claim.follows is not None:
            published = replace(
                published, generation=self._generation(held_claim.identity.target, None)
            )
        self._run_all(self._writing(published, claim), self._forgetting(held_claim.identity))
        self._drop_plan(held_claim.identity)

    def check_committed(self, held_claim: HeldClaim, receipts: Sequence[Receipt]) -> None:
        """Check that each task that has a receipt has committed.

        Raises:
            CommitError: one has not.
        """
        committed = {receipt.task for receipt in self.receipts(held_claim.identity)}
        missing = {receipt.task for receipt in receipts} - committed
        if missing:
            task = f"task {min(missing)}, which has a receipt"
            raise CommitError(
                f"{TASKS} has no row of {task}: nothing was published; run the job again"
            )

    def refuse_later(self, held_claim: HeldClaim) -> None:
        """Check that no run has claimed the write that `held_claim` stands for. In a transaction.

        Raises:
            SupersededError: one has, and did not give it back.
        """
        claim = self._locked(held_claim.identity, self._dialect.update)
        owner = _bounded(held_claim.owner)
        if (
            claim is not None
            and claim.owner not in ("", owner)
            and not claim.has_published(held_claim.position)
        ):
            claims.check(claim, replace(held_claim, owner=owner))

    def release(self, held_claim: HeldClaim, overtaken: Claim | None = None) -> list[Receipt]:
        """Give the claim back, unless tasks committed under it: their receipts. [] also when it is another run's.

        `overtaken` gets it back, if this run has only taken it.
        """
        if not self.exist():
            return []
        claim = self._locked(held_claim.identity, self._dialect.update)
        receipts = self.receipts(held_claim.identity)
        released = claims.release(claim, held_claim, tasks=len(receipts), overtaken=overtaken)
        if released is not None and released is overtaken:
            self._write(released, claim)
            return []
        if released is not None:
            if held_claim.identity.kind == "job":
                self._run(*self._removing(held_claim.identity.key))
            else:
                self._write(released, claim)
            self._drop_plan(held_claim.identity)
        if claim is None or (claim.owner, claim.epoch) != (held_claim.owner, held_claim.epoch):
            return []
        return [] if claim.has_published(held_claim.position) else receipts

    def heartbeat(self, held_claim: HeldClaim) -> None:
        """Show that the run lives."""
        self._run(
            f"UPDATE {self._dialect.table(CLAIMS)} SET beat_at = ? WHERE claim = ? AND owner = ? AND epoch = ?",  # noqa: S608 - names are quoted
            (utc_text(), held_claim.identity.key, held_claim.owner, held_claim.epoch),
        )

    def show_life(self, held_claim: HeldClaim, claim: Claim) -> None:
        """`heartbeat`, if the last one, in the claim as `peek` gave it, is an hour old: no attempt may last so long."""
        if claims.heartbeat_is_due(claim, utc_text()):
            self.heartbeat(held_claim)

    def orphans(
        self,
        stages: Sequence[str],
        keep: HeldClaim,
        *,
        beat_of: Callable[[str], str] = lambda _prefix: "",
    ) -> list[str]:
        """Those of the staging tables `stages` that belong to no live run but `keep`.

        `beat_of` is the time of the last beat that the staging itself shows, by how its names begin.
        """
        prefixed = partial(stage_prefix, longest=self.longest_name, beginning=self._dialect.stage)
        others = [name for name in stages if not name.startswith(prefixed(keep))]
        if not others:
            return []
        now, live = utc_text(), []
        for row in self._unfinished(others):
            claim, key = claim_of(row), str(row[0])
            prefix = prefixed(HeldClaim(claim.identity, claim.owner, claim.epoch), key)
            if not any(name.startswith(prefix) for name in others):
                continue
            claim = replace(claim, beat_at=max(claim.beat_at, beat_of(prefix)))
            liveness = claims.is_alive(claim, now)
            if liveness != "dead":
                live.append(prefix)
            elif claim.identity.kind == "job" and claim.state == "open":
                # No run can continue it; a task of it that is still there after all is fenced off.
                self._run(*self._removing(key))
            if liveness == "doubtful" and not claim.doubted_at > claim.beat_at:
                table = self._dialect.table(CLAIMS)
                self._run(f"UPDATE {table} SET doubted_at = ? WHERE claim = ?", (now, key))  # noqa: S608 - names are quoted
        return [name for name in others if not name.startswith(tuple(live))]

    def _unfinished(self, stages: Sequence[str]) -> list[tuple[Any, ...]]:
        """The rows of claims that may have one of the staging tables, and are not published.

        They are found by the beginnings of their keys, which the tables' names have, where these are long enough.
        """
        open_ones = f"{self._select} WHERE state <> 'published' AND kind <> 'table'"
        if self.longest_name < LONG_NAME:
            return self._run(open_ones, ())
        start = len(self._dialect.stage)
        keys = sorted({name[start : start + _KEY_LETTERS] for name in stages})
        rows = []
        for some in (keys[begin : begin + _AT_ONCE] for begin in range(0, len(keys), _AT_ONCE)):
            ranges = " OR ".join(["claim >= ? AND claim < ?"] * len(some))
            ends = [end for key in some for end in (key, f"{key}g")]  # keys are hexadecimal
            rows += self._run(f"{open_ones} AND ({ranges})", ends)
        return rows

    def tidy(self, limited: Callable[[str, int], str]) -> None:
        """Remove old claims, a bounded number, in a transaction of its own: no claim waits for it.

        `limited` is a query for its first rows, as `Dialect.limited`.

        Published jobs of long ago go: a driver of one that wakes up finds no claim, and writes nothing. Published
        versions of transaction ids get a bit in a row that they share.

        Row by row, by their key: a DELETE that looks at all rows would lock those of other runs in some databases.
        """
        condition, values = old_condition()
        query = limited(f"{self._select} WHERE {condition}", _AT_ONCE)
        expired = expired_of(self._run(query, values))
        for shared in sorted(expired.versions, key=lambda identity: identity.key):
            versions, at = expired.versions[shared]
            shared_claim = self._locked(shared, self._dialect.update)
            bits = shared_claim or Claim(shared, "", 0, "published")
            self._write(with_versions(bits, versions, at), shared_claim)
        if expired.keys:
            self._run_all(*map(self._removing, expired.keys))

    def kept(self, target: str) -> list[KeptClaim]:
        """What is recorded of writes to the table, the newest last."""
        if not self.exist():
            return []
        now, records = utc_text(), []
        sql = f"{self._select} WHERE target = ? AND kind <> 'table' ORDER BY published_at, claim"
        for row in self._run(sql, (target[:LONGEST_TARGET],)):
            claim = _kept(row, now)
            if claim is not None:
                records.append(claim)
        return records

    def forget_kept(self, claim: KeptClaim) -> KeptClaim | None:
        """Remove a record as `kept` gave it, or some of its versions. None: it has changed since, or a run holds it."""
        self._lock(claim.key, self._dialect.update)
        rows = self._run(
            f"{self._select} WHERE claim = ? {self._dialect.update or ''}", (claim.key,)
        )
        record = _kept(rows[0], utc_text()) if rows else None
        if (
            record is None
            or record.is_held
            or (record.kind, record.name) != (claim.kind, claim.name)
        ):
            return None
        row = claim_of(rows[0])
        if row.identity.kind == "versions":
            start = (row.identity.version or 0) * PER_ROW
            bits = without_bits(int(row.process or "0", 16), claim.versions, start, PER_ROW)
            if bits:
                table = self._dialect.table(CLAIMS)
                sql = f"UPDATE {table} SET process = ?, epoch = epoch + 1 WHERE claim = ?"  # noqa: S608 - a quoted name
                self._run(sql, (f"{bits:x}", claim.key))
                return claim
        elif claim.versions and not covers(claim.versions, row.identity.version or 0):
            return None
        tasks = f"DELETE FROM {self._dialect.table(TASKS)} WHERE claim = ?"  # noqa: S608 - a quoted name
        self._run_all((tasks, (claim.key,)), self._removing(claim.key))
        if row.identity.kind == "txn":
            self.plans.drop(claim.key)
        return claim

    def _removing(self, key: str) -> _Statement:
        return f"DELETE FROM {self._dialect.table(CLAIMS)} WHERE claim = ?", (key,)  # noqa: S608 - a quoted name

    @property
    def _select(self) -> str:
        return f"SELECT {COLUMNS} FROM {self._dialect.table(CLAIMS)}"  # noqa: S608 - constants

    def _locked(self, identity: Identity, lock: str | None) -> Claim | None:
        """The claim, locked until the transaction ends."""
        before = self._dialect.end_when_silent
        if before and not self._dialect.takes_scripts:
            self._run(before, ())
            before = ""
        self._lock(identity.key, lock)
        return self._read(identity, lock or "", f"{before}; " if before else "")

    def _lock(self, key: str, lock: str | None) -> None:
        """Lock a row, where its SELECT cannot."""
        if lock is None:
            table = self._dialect.table(CLAIMS)
            self._run(f"UPDATE {table} SET epoch = epoch WHERE claim = ?", (key,))  # noqa: S608 - names are quoted

    def _read(self, identity: Identity, lock: str = "", before: str = "") -> Claim | None:
        rows = self._run(*self._reading(identity, lock, before))
        if rows:
            return replace(claim_of(rows[0]), identity=identity)
        shared = shared_row(identity)
        rows = [] if shared is None else self._run(*self._reading(shared))
        if not rows or not holds(bits := claim_of(rows[0]), identity.version or 0):
            return None
        return Claim(identity, "", state="published", published_at=bits.published_at)

    def _reading(self, identity: Identity, lock: str = "", before: str = "") -> _Statement:
        return f"{before}{self._select} WHERE claim = ? {lock}".rstrip(), (identity.key,)

    def _write(self, claim: Claim, before: Claim | None) -> None:
        self._run(*self._writing(claim, before))

    def _writing(self, claim: Claim, before: Claim | None) -> _Statement:
        own = (
            claim.owner,
            claim.epoch,
            claim.state,
            claim.position,
            claim.published_at,
            claim.rows,
            claim.nbytes,
            claim.process,
            claim.beat_at,
            claim.doubted_at,
            claim.generation,
        )
        table, key = self._dialect.table(CLAIMS), claim.identity.key
        if before is not None:
            sql = (
                f"UPDATE {table} SET owner = ?, epoch = ?, state = ?, batch = ?, published_at = ?, row_count = ?, "  # noqa: S608 - names are quoted
                "byte_count = ?, process = ?, beat_at = ?, doubted_at = ?, generation = ? WHERE claim = ?"
            )
            return sql, (*own, key)
        identity = claim.identity
        values = (
            key,
            identity.target[:LONGEST_TARGET],
            identity.kind,
            identity.name[:LONGEST_NAME],
            identity.version,
            *own,
        )
        marks = ", ".join("?" for _ in values)
        return f"INSERT INTO {table} ({COLUMNS}) VALUES ({marks})", values  # noqa: S608 - constants

    def _usable(self, table: str) -> bool:
        if not self._dialect.exists(table):
            return False
        if fault := self._dialect.distrust(table):
            raise of_input(
                UntrustedClaimsError(
                    f"table {self._dialect.table(table)} records what was written, and cannot be trusted: {fault}. "
                    "Write with the role that owns it, or name another table with option 'ledgerTable'; drop it only "
                    "if nobody needs what it records"
                )
            )
        return True

    def _create(self, table: str, columns: str) -> None:
        for statement in self._dialect.before(table):
            self._run(statement, ())
        if not self._usable(table):  # another session may have made it before this one's turn
            create_sql = (
                f"CREATE TABLE {self._dialect.table(table)} ({columns}){self._dialect.after}"
            )
            self._run(create_sql, ())

    def _run_all(self, *statements: _Statement) -> list[tuple[Any, ...]]:
        """Return the rows of the last statement. All of them run in one exchange, where the driver takes scripts."""
        if self._dialect.takes_scripts:
            values = [value for _, parameters in statements for value in parameters]
            return self._run("; ".join(sql for sql, _ in statements), values)
        rows: list[tuple[Any, ...]] = []
        for sql, parameters in statements:
            rows = self._run(sql, parameters)
        return rows

    def _run(self, sql: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
        for name, written in self._dialect.reserved.items():
            sql = re.sub(rf"\b{name}\b", written, sql)
        return self._session.rows(marked(sql, self._dialect.mark), parameters)


def _note_of(target: str, stream: str) -> Identity:
    return Identity(target, "stream", f"{stream}{_NOTE}")


def _kept(row: tuple[Any, ...], now: str) -> KeptClaim | None:
    """None: a row that is no claim of a write, such as the note beside a stream."""
    claim, key = claim_of(row), str(row[0])
    identity = claim.identity
    if identity.kind == "versions":
        ranges = ranges_of_bits(int(claim.process or "0", 16), (identity.version or 0) * PER_ROW)
        return KeptClaim("txn", identity.name, ranges, at=claim.published_at or "", key=key)
    if identity.kind == "stream" and identity.name.endswith(_NOTE):
        return None
    return kept_of(claim, key, now)


def _bounded(owner: str) -> str:
    """The name of a run as its column takes it: two long ones that differ stay two."""
    if len(owner) <= _LONGEST_OWNER:
        return owner
    digest = hashlib.sha256(owner.encode()).hexdigest()[:32]
    return f"{owner[: _LONGEST_OWNER - len(digest) - 1]}~{digest}"
