"""Groups of small tables that one transaction copies: the parts that PostgreSQL and MySQL share."""

from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar, cast

from spark_channel.connectors.base import claims as rules
from spark_channel.connectors.base.claims import Identity
from spark_channel.connectors.base.contract import Reader, Writer
from spark_channel.connectors.base.small_tables import SmallTable
from spark_channel.connectors.sql.catalog import MisfitError
from spark_channel.connectors.sql.session import BatchSize
from spark_channel.connectors.sql.write.database import WriteDatabase
from spark_channel.connectors.sql.write.encode import BadValueError
from spark_channel.connectors.sql.write.in_session import claims_at
from spark_channel.connectors.sql.write.plan import SqlPlan
from spark_channel.connectors.sql.write.sweep import sweep as swept
from spark_channel.errors import ChannelError, TargetError
from spark_channel.plain_text import log_of

__all__ = [
    "LOGIN",
    "LONGEST_SECONDS",
    "PIECE",
    "RefusedError",
    "alone",
    "are_joined",
    "by_schema",
    "database_of",
    "sweep",
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


class RefusedError(Exception):
    """A table of a group was refused, and the transaction is rolled back. `table`: None = it is not known which."""

    def __init__(self, table: SmallTable | None, reason: Exception) -> None:
        super().__init__(str(reason))
        self.table, self.why = table, reason


def are_joined(reader: Reader, database: WriteDatabase[Any], login: Set[str]) -> bool:
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


def by_schema(tables: Sequence[SmallTable]) -> list[list[SmallTable]]:
    """The tables that are left, by the schema of their targets, where their claims are."""
    groups: dict[str, list[SmallTable]] = {}
    for table in tables:
        if table.is_left:
            groups.setdefault(str(table.plan.place.schema), []).append(table)
    return [groups[schema] for schema in sorted(groups)]


def sweep(database: WriteDatabase[Any], session: Any, table: SmallTable) -> None:
    """Remove the staging of runs that are dead, as a copy of one table does."""
    assert table.schema is not None
    plan = SqlPlan(table.job, table.schema, "job", place=table.plan.place)
    held_claim = rules.HeldClaim(
        Identity(table.plan.stream_of, "stream", table.stream), table.job, 0
    )
    try:
        claims = claims_at(database, session, plan.place)
        swept(database, session, replace(plan, held=held_claim), claims)
    except TargetError as error:
        _log.warning("staging of earlier runs stays for now: %s", error)
