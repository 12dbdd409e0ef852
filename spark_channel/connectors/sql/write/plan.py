"""What one write is planned to do: its target, the table it expects there, and the claim that it holds."""

import string
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_channel.connectors.base.claims import HeldClaim
from spark_channel.connectors.base.contract import WritePlan
from spark_channel.connectors.sql.catalog import NOWHERE, Table, TargetTable
from spark_channel.connectors.sql.write.claim_tables import STAGE, Ledger, stage_prefix

if TYPE_CHECKING:
    from spark_channel.connectors.base.definition import SequenceDefinition, TableDefinition
    from spark_channel.connectors.sql.definition import NewTable

__all__ = [
    "NOT_TAKEN",
    "STAGING_WAYS",
    "WAYS",
    "NumberedColumn",
    "SqlPlan",
    "WriteTarget",
    "numbered_columns",
    "own_plan",
]

NOT_TAKEN = 0
"""The epoch of a claim that is taken when the database, a file, is made."""
_FOLDED = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
WAYS = (
    "Grant the right; or set 'stagingSchema' or 'ledgerTable' to where this role may create tables; or set 'ledger' to "
    "none, which writes without these tables, at least once"
)
STAGING_WAYS = (
    "The rows of the job are staged before they are published together: grant the right; or set 'stagingSchema' to "
    "where this role may create tables; or set 'commit' to task, which leaves the rows of finished tasks when the job "
    "fails"
)


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """The place of a write. `label` names the table in messages and claims; `table` is its entry in the catalog, None
    if the write creates it. `schema` contains the table.
    """

    schema: str
    name: str
    label: str
    table: Table | pa.Schema | None = None
    folds: bool = False
    """The database takes names that differ in the case of A to Z for one."""
    ledger: Ledger | None = None
    """None: claims and staging are beside the table."""

    @property
    def staging(self) -> str:
        """The schema of staging tables."""
        return self.schema if self.ledger is None else self.ledger.staging

    @property
    def stage(self) -> str:
        """How the names of staging tables begin."""
        return STAGE if self.ledger is None else self.ledger.stage

    @property
    def has_ledger(self) -> bool:
        return self.ledger is None or not self.ledger.without

    @property
    def claimed(self) -> str:
        """The table as claims know it: one name for all its spellings."""
        return self.label.translate(_FOLDED) if self.folds else self.label


@dataclass(frozen=True, slots=True)
class NumberedColumn:
    """A column that `sequence` numbers. `following`: the next number of the source's column; None = it has none."""

    name: str
    sequence: "SequenceDefinition"
    following: int | None = None


def numbered_columns(
    table: "TableDefinition", source: "TableDefinition | None"
) -> tuple[NumberedColumn, ...]:
    """Those of a table, with the next numbers of its source."""
    columns = []
    for column in table.columns:
        if column.sequence is not None:
            theirs = None if source is None else source.column(column.name)
            sequence = None if theirs is None else theirs.sequence
            following = None if sequence is None else sequence.following
            columns.append(NumberedColumn(column.name, column.sequence, following))
    return tuple(columns)


@dataclass(frozen=True)
class SqlPlan(WritePlan):
    """Databases subclass it with their own fields. `target` is the table as the plan expects it."""

    place: WriteTarget = WriteTarget("", "", "")
    target: TargetTable = NOWHERE
    longest_name: int = 63
    new_table: "NewTable | None" = None
    """What the table gets that the write makes, where it is asked to take its source's definition."""
    computed: tuple[str, ...] = ()
    """Columns that the table, which is there, computes as the rows' source does: they are not written."""
    numbers: tuple[NumberedColumn, ...] = ()
    """Of the table, which is there: they are to count on behind its rows."""

    @property
    def stage(self) -> str:
        """The prefix of this run's staging tables, or its only name if names must be short."""
        return stage_prefix(self.claim, longest=self.longest_name, beginning=self.place.stage)

    @property
    def is_claimed(self) -> bool:
        """Whether the database has the claim; before a file is made, it has none."""
        return self.held is not None and self.held.epoch != NOT_TAKEN

    @property
    def at_least_once(self) -> bool:
        return not self.place.has_ledger

    @property
    def claim(self) -> HeldClaim:
        assert self.held is not None, "a published write holds no claim"
        return self.held


def own_plan(plan: WritePlan) -> SqlPlan:
    assert isinstance(plan, SqlPlan)
    return plan
