"""Small tables that one transaction copies: what PostgreSQL and MySQL share.

They are published as `SqlWriter` publishes one: claims, rows and notes are in one transaction.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, cast

from spark_channel.clock import utc_text
from spark_channel.connectors.base import claims as rules
from spark_channel.connectors.base.claims import Identity
from spark_channel.connectors.base.contract import Reader, Writer
from spark_channel.connectors.base.small_tables import SmallTable, Together
from spark_channel.connectors.sql.catalog import MisfitError, Table, TargetTable
from spark_channel.connectors.sql.definition import NewTable
from spark_channel.connectors.sql.session import BatchSize, S
from spark_channel.connectors.sql.write.checks import check_planned
from spark_channel.connectors.sql.write.claim_tables import Ledger, is_own_table
from spark_channel.connectors.sql.write.claim_taking import ensure
from spark_channel.connectors.sql.write.encode import BadValueError
from spark_channel.connectors.sql.write.group_claims import GroupClaims, SeenClaim
from spark_channel.connectors.sql.write.in_session import claims_at
from spark_channel.connectors.sql.write.plan import SqlPlan, WriteTarget
from spark_channel.connectors.sql.write.sweep import sweep
from spark_channel.connectors.sql.write.table_database import TableDatabase, write_target
from spark_channel.errors import ChannelError, TargetError
from spark_channel.plain_text import log_of

__all__ = [
    "LOGIN",
    "LONGEST_SECONDS",
    "PIECE",
    "RefusedError",
    "SmallPlan",
    "SqlTogether",
    "alone",
    "are_joined",
    "database_of",
    "place_in_group",
]

_log = log_of(__name__)
_D = TypeVar("_D")

LOGIN = frozenset(
    {"url", "dbtable", "user", "password", "sslrootcert", "sslcert", "sslkey", "sslmode"}
    | {"connect_timeout", "retry_timeout"}
)
"""Options of each database by which a session is opened."""
PIECE = BatchSize(1 << 16, 1 << 20)
LONGEST_SECONDS = 5.0
"""The tables of a transaction are locked for so long, and for the statement or the table that is written then."""
_MADE = ("columns", "auto", "keys", "full")
_TRIES = 5
"""How often a group is tried, each time without the table that was refused."""


class RefusedError(Exception):
    """A table of a group was refused, and the transaction is rolled back. `table`: None = it is not known which."""

    def __init__(self, table: SmallTable | None, reason: Exception) -> None:
        super().__init__(str(reason))
        self.table, self.why = table, reason


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallPlan:
    """`new`: what the table, if it is to be made, gets of its source's definition. `seen`: see `GroupClaims`."""

    place: WriteTarget
    target: TargetTable
    new: NewTable | None = None
    seen: SeenClaim = (0, "", None)

    @property
    def stream_of(self) -> str:
        """The table, as claims name it."""
        return self.place.claimed


class SqlTogether(Together, Generic[S]):
    """See `Together`. `reader` and `database` are those of one of the tables."""

    def __init__(self, reader: Reader, database: TableDatabase[S]) -> None:
        self._reader, self._database = reader, database

    @abstractmethod
    def on_conflict(self, names: Sequence[str]) -> str:
        """The end of an INSERT of claims that sets these columns of a row which is there to those of the new row.

        Without names it leaves the row as it is.
        """

    @abstractmethod
    def session(self) -> AbstractContextManager[S]:
        """A session that writes the tables of one group."""

    def prepared(
        self, session: S, claims: GroupClaims, tables: Sequence[SmallTable]
    ) -> AbstractContextManager[None]:
        """Around all tries: for what cannot be in their transaction, and to undo it for tables that were refused."""
        return nullcontext()

    @abstractmethod
    def transaction(self, session: S) -> AbstractContextManager[None]: ...

    def claiming(self) -> AbstractContextManager[None]:
        """Around statements of claims: raises a `RefusedError` where the group may be tried again."""
        return nullcontext()

    @abstractmethod
    def refusing(self, table: SmallTable | None) -> AbstractContextManager[None]:
        """Around statements of a table, or None = of all: raises a `RefusedError`, unless the server is away."""

    @abstractmethod
    def write(self, session: S, tables: Sequence[SmallTable], *, at_once: bool) -> list[SmallTable]:
        """Make or empty the tables, and put their rows in. Returns the first of them, if time is over.

        `at_once`: what all tables need may be one statement, of which it is not known which table it fails for.

        Raises:
            RefusedError: a table is refused.
        """

    def claims(self, session: S, tables: Sequence[SmallTable]) -> GroupClaims:
        """Those of the tables, which are in one schema."""
        dialect = self._database.claim_dialect(session, tables[0].plan.place)
        return GroupClaims(session, dialect, self.on_conflict)

    def look_at_claims(self, session: S, tables: Sequence[SmallTable]) -> None:
        for some in _by_schema(tables):
            self.claims(session, some).look(some)

    def publish(self, tables: Sequence[SmallTable]) -> None:
        """A COMMIT without an answer raises: a table that is copied alone then waits for its claim, and looks at it."""
        for some in _by_schema(tables):
            with self.session() as session:
                claims = self.claims(session, some)
                ensure(self._database, session, claims)
                with self.prepared(session, claims, some):
                    self._try(session, claims, some)

    def _try(self, session: S, claims: GroupClaims, tables: Sequence[SmallTable]) -> None:
        tries = _TRIES
        while tries and (left := [table for table in tables if table.is_left]):
            try:
                with self.transaction(session):
                    new = self._publish(session, claims, left, at_once=tries == _TRIES)
            except RefusedError as refused:
                tries -= 1
                if refused.table is not None:
                    refused.table.why = refused.why
                continue
            at = utc_text()
            for table in new:
                table.published_at, table.is_new = at, True
                if (definition := table.plan.new) is not None:
                    definition.remark(table.plan.place.label)
                    table.left_out, table.renamed = definition.left_out, definition.renamed
            if new:
                self._sweep(session, new[0])
        for table in tables:
            if table.is_left:
                table.why = TargetError("too many tables of its group were refused")

    def _publish(
        self, session: S, claims: GroupClaims, tables: Sequence[SmallTable], *, at_once: bool
    ) -> list[SmallTable]:
        """All of the transaction. Returns the tables whose rows it publishes."""
        # The claims first: their locks exclude other runs, and a COMMIT that was not answered is seen here.
        with self.claiming():
            decisions = claims.take_all(tables)
        held = [table for table, decision in decisions.items() if decision.held is not None]
        new = self.write(session, held, at_once=at_once)
        # Last: the rows are there with their notes, or neither is.
        with self.claiming():
            claims.publish_all(new, decisions)
        for table, decision in decisions.items():
            if decision.held is None:
                table.published_at = decision.published_at or ""
        return new

    def _sweep(self, session: S, table: SmallTable) -> None:
        """Remove the staging of runs that are dead, as a copy of one table does."""
        assert table.schema is not None
        held_claim = rules.HeldClaim(
            Identity(table.plan.stream_of, "stream", table.stream), table.job, 0
        )
        place = table.plan.place
        plan = SqlPlan(table.job, table.schema, "job", place=place, held=held_claim)
        try:
            sweep(self._database, session, plan, claims_at(self._database, session, place))
        except TargetError as error:
            _log.warning("staging of earlier runs stays for now: %s", error)

    def check_as_planned(
        self,
        tables: Sequence[SmallTable],
        existing: Sequence[Table | None],
        is_special: Callable[[Any], bool],
    ) -> None:
        """Check that tables which no one alters now are as they were planned. `is_special`: one is written alone."""
        for table, now in zip(tables, existing, strict=True):
            with self.refusing(table):
                check_planned(self._database.dialect, table.plan.target, now)
                if now is None or is_special(now):
                    raise TargetError(f"table {table.plan.target.label} was altered")


def are_joined(reader: Reader, database: TableDatabase[Any], login: Set[str]) -> bool:
    """Whether no option asks for what only a copy of one table does. `login`: options that ask for nothing."""
    reads, writes = login | {"reader"}, login | {"writer", "create_table"}
    is_known = (
        reader.options.model_fields_set <= reads and database.options.model_fields_set <= writes
    )
    return is_known and getattr(database.options, "create_table", "") in _MADE


def database_of(writer: Writer, database_class: type[_D]) -> _D:
    """What `writer`, a `SqlWriter`, writes to."""
    database = cast(Any, writer).database
    assert isinstance(database, database_class)
    return database


@contextmanager
def alone(table: SmallTable) -> Iterator[None]:
    """Note an error of one table, which leaves the group: a copy of that table alone meets the error again."""
    try:
        yield
    except (ChannelError, BadValueError, MisfitError) as error:
        table.why = error


def place_in_group(
    schema: str, name: str, table: Table | None, others: set[str], *, is_long: bool
) -> WriteTarget:
    """The place of a table, whose claims are beside it. `others`: those of the group, to which it is added.

    Raises:
        TargetError: it is written alone, or by no one.
    """
    place = write_target(schema, name, table)
    if is_own_table(name) or is_long:
        raise TargetError(f"table {name!r} cannot be written")
    if place.claimed in others:
        raise TargetError(f"{place.label} is the target of two tables")
    others.add(place.claimed)
    return replace(place, ledger=Ledger(schema, schema))


def _by_schema(tables: Sequence[SmallTable]) -> list[list[SmallTable]]:
    """The tables that are left, by the schema of their targets, where their claims are."""
    groups: dict[str, list[SmallTable]] = {}
    for table in tables:
        if table.is_left:
            groups.setdefault(str(table.plan.place.schema), []).append(table)
    return [groups[schema] for schema in sorted(groups)]
