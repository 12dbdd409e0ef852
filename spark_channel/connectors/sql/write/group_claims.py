"""The claims of small tables that are copied together: each by the rules of a single table, in few statements."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from spark_channel.clock import utc_text
from spark_channel.connectors.base import claims as rules
from spark_channel.connectors.base.claims import Claim, ClaimDecision, Identity
from spark_channel.connectors.base.small_tables import SmallTable
from spark_channel.connectors.sql.write.claim_tables import (
    CLAIMS,
    COLUMNS,
    TASKS,
    ClaimDialect,
    RowSession,
    claim_of,
)
from spark_channel.connectors.sql.write.claims import Claims
from spark_channel.errors import TargetError
from spark_channel.plain_text import log_of

__all__ = ["GroupClaims", "SeenClaim"]

_log = log_of(__name__)

SeenClaim = tuple[int, str, int | None]
"""What each run that takes a claim, gives it back or publishes changes: of none it is that of a new one."""


class GroupClaims(Claims):
    """The claims of several tables of one schema, read and written by few statements.

    The `plan` of each `SmallTable` has `stream_of`, the table as claims name it, and is a dataclass with `seen`.
    """

    def __init__(
        self,
        session: RowSession,
        dialect: ClaimDialect,
        on_conflict: Callable[[Sequence[str]], str],
    ) -> None:
        """`on_conflict`: see `SqlTogether`."""
        super().__init__(session, dialect)
        self._on_conflict = on_conflict

    def look(self, tables: Sequence[SmallTable]) -> None:
        """Note how far the streams have published, and the states of their claims."""
        if not self.exist():
            return
        streams = {table: _stream(table) for table in tables}
        by_identity = self._found(list(streams.values()))
        for table, identity in streams.items():
            claim = by_identity.get(identity)
            if claim is None:
                continue
            table.plan = replace(table.plan, seen=_state(claim))
            # Of a stream whose batches follow each other, the table's claim says whether its rows are still there.
            table.known = (
                rules.progress_of(claim)
                if claim.generation is None
                else self.progress(identity.target, identity.name)
            )

    def take_all(self, tables: Sequence[SmallTable]) -> dict[SmallTable, ClaimDecision]:
        """Lock the claims of the tables and of their streams, and decide which of the tables are to be published.

        Tables that another run has begun to publish since they were looked up get a `why`, and no decision.
        """
        streams = {table: _stream(table) for table in tables}
        by_identity = self._made(list(streams.values()))
        self._of_tables = self._made([_table(table) for table in tables])
        keys = [stream.key for stream in streams.values()]
        tasks = self._dialect.table(TASKS)
        if self._run(f"SELECT 1 FROM {tasks} WHERE claim IN ({_marks(keys)}) LIMIT 1", keys):  # noqa: S608 - quoted
            raise TargetError("a claim of the group has tasks that committed alone")
        process, now = rules.own_process(), utc_text()
        decided = {}
        for table, identity in streams.items():
            claim = by_identity[identity]
            if _state(claim) != table.plan.seen and not claim.has_published(table.position):
                table.why = TargetError(f"another run publishes {identity.target}")
                continue
            claim = rules.unless_replaced(claim, self._of_tables[_table(table)].epoch)
            decided[table] = rules.take(
                claim,
                identity,
                table.job,
                position=table.position,
                follows=table.follows,
                process=process,
                now=now,
            )
            if decided[table].overtaken is not None:
                _log.warning("job %s takes the claim of %s over", table.job, identity.target)
        return decided

    def make_tables(self, tables: Sequence[SmallTable]) -> None:
        """See `claims.makes_table`. Tables that another run has begun to publish get a `why`."""
        streams = {table: _stream(table) for table in tables}
        by_identity = self._made(list(streams.values()))
        written = []
        for table, identity in streams.items():
            claim = by_identity[identity]
            if _state(claim) != table.plan.seen:
                table.why = TargetError(f"another run publishes {identity.target}")
                continue
            written.append(rules.makes_table(claim))
            table.plan = replace(table.plan, seen=_state(written[-1]))
        if written:
            self._insert(written, COLUMNS.split(", ")[1:])

    def publish_all(
        self, tables: Sequence[SmallTable], decisions: Mapping[SmallTable, ClaimDecision]
    ) -> None:
        """Write the claims of `tables`, which are locked, as published."""
        at, written = utc_text(), []
        for table in tables:
            held_claim, claim = decisions[table].held, decisions[table].claim
            assert held_claim is not None
            if claim is None:
                raise TargetError("the claim of this run is there already")
            published = rules.publish(
                claim, held_claim, at=at, rows=table.rows, nbytes=table.nbytes
            )
            assert published is not None, "the claim is locked"
            owned = self._of_tables[_table(table)]
            owned = replace(owned, epoch=owned.epoch + 1, owner=table.job)
            if table.follows is not None:
                published = replace(published, generation=owned.epoch)
            written += [published, owned]
        if written:
            self._insert(written, COLUMNS.split(", ")[1:])

    def _made(self, keys: Sequence[Identity]) -> dict[Identity, Claim]:
        """The claims, locked; those that are not there are made. By their keys, as in every other group."""
        ordered = sorted(keys, key=lambda identity: identity.key)
        self._insert([Claim(identity, "", 0) for identity in ordered], ())
        return self._found(ordered, self._dialect.update or "")

    def _found(self, keys: Sequence[Identity], lock: str = "") -> dict[Identity, Claim]:
        by_key = {identity.key: identity for identity in keys}
        ordered = sorted(by_key)
        sql = f"{self._select} WHERE claim IN ({_marks(ordered)}) ORDER BY claim {lock}"
        by_identity = {}
        for row in self._run(sql, ordered):
            identity = by_key[str(row[0])]
            by_identity[identity] = replace(claim_of(row), identity=identity)
        return by_identity

    def _insert(self, new_claims: Sequence[Claim], names: Sequence[str]) -> None:
        rows = [self._writing(row, None)[1] for row in new_claims]
        values = ", ".join(f"({_marks(row)})" for row in rows)
        into = f"INSERT INTO {self._dialect.table(CLAIMS)} ({COLUMNS})"
        parameters = [value for row in rows for value in row]
        self._run(f"{into} VALUES {values} {self._on_conflict(names)}", parameters)


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" for _ in values)


def _state(claim: Claim) -> SeenClaim:
    return claim.epoch, claim.owner, claim.position


def _stream(table: SmallTable) -> Identity:
    return Identity(table.plan.stream_of, "stream", table.stream)


def _table(table: SmallTable) -> Identity:
    return Identity(table.plan.stream_of, "table", table.plan.stream_of)
