"""The interface of a lakehouse table for writers: one state of its log, and a conditional commit of the next state."""

import posixpath
from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any, ClassVar

import pyarrow as pa

from spark_channel.connectors.base.claims import Claim, Identity
from spark_channel.connectors.base.kept_claims import ClaimName, KeptClaim
from spark_channel.connectors.files.conditions import ValueRange
from spark_channel.connectors.files.store import Store
from spark_channel.errors import TargetError

__all__ = ["Change", "CreatedMeanwhileError", "LakeTable", "NewFile", "TableFile", "TableState"]


Partition = tuple[tuple[str, str | None], ...]
"""(column, value as text) of each partition column; None = NULL."""


class CreatedMeanwhileError(TargetError):
    """Another job created the table while this one planned to: a write opens it again."""


@dataclass(frozen=True, slots=True)
class NewFile:
    """A data file that no commit names yet. `path` is relative to the table; `statistics` by column."""

    path: str
    rows: int
    size: int
    partition: Partition = ()
    statistics: Mapping[str, Any] = dataclass_field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableFile:
    """A data file of the table. `path` is absolute; `handle` is what the format's library knows it by; `rows` what the
    log says, if whoever reads the file does not check it.
    """

    path: str
    size: int
    partition: Partition = ()
    handle: Any = None
    rows: int | None = None


@dataclass(frozen=True)
class TableNotes:
    """What a new table says of its columns, beside names, types and NOT NULL. Nothing of it changes or refuses a row.

    `comments` are those of columns, by name. `key` are the columns of the source's primary key.
    """

    key: tuple[str, ...] = ()
    comment: str | None = None
    comments: tuple[tuple[str, str], ...] = ()


NO_NOTES = TableNotes()


@dataclass(frozen=True, slots=True)
class Change:
    """The next commit. `claim` is written in any case, with the job that writes it; `forgotten` go."""

    job: str
    claim: Claim
    added: Sequence[NewFile] = ()
    removed: Sequence[TableFile] = ()
    operation: str = "append"
    forgotten: Sequence[KeptClaim] = ()
    notes: TableNotes = NO_NOTES
    """The notes that `create` gives the new table."""


class TableState(ABC):
    """One version of a table."""

    columns: pa.Schema
    """As they are read. Nullability is the table's; metadata of fields is what its data files carry."""
    partition_columns: tuple[str, ...]

    @property
    @abstractmethod
    def identity(self) -> str:
        """Another one for a table that was dropped and created again."""

    @property
    @abstractmethod
    def overwrites(self) -> int:
        """How often the table has been overwritten."""

    @abstractmethod
    def claim(self, identity: Identity, job: str) -> Claim | None:
        """The claim of `identity` that this version has; `job` is the caller.

        Raises:
            TargetError: another program has written what this claim is for, perhaps.
        """

    def own_claim(self, identity: Identity, job: str, *, brief: bool = False) -> Claim | None:
        """The same as jobs have written it, whatever other programs have. `brief`: without a look at earlier commits,
        which know more claims of jobs than the version does.
        """
        return self.claim(identity, job)

    @abstractmethod
    def kept(self, target: str, names: Sequence[ClaimName]) -> list[KeptClaim]:
        """What the log has of earlier writes, as `Writer.kept_claims`."""

    @abstractmethod
    def check_writable(self, *, removes: bool) -> None:
        """
        Raises:
            UnsupportedError: the table has a feature that this writer would break; names it.
        """

    @abstractmethod
    def files(self) -> list[TableFile]:
        """Every data file of this version.

        Raises:
            UnsupportedError: rows of a file are deleted elsewhere (deletion vectors, delete files).
        """

    @abstractmethod
    def kind(self, file: TableFile) -> Hashable:
        """The partition of one of `files`: those of one kind can be merged; None = it stays as it is."""

    def is_of(self, file: TableFile, new: NewFile) -> bool:
        """Whether a new file, with rows of `file`, is of the same partition."""
        return True

    def with_bounds(self, new: NewFile, sources: Sequence[TableFile]) -> NewFile:
        """A merged file, with what the log says of the files that it has the rows of, and not the file itself."""
        return new

    @abstractmethod
    def ranges(self, file: TableFile, names: Collection[str]) -> Mapping[str, ValueRange]:
        """What the log says of the columns `names` in one of `files`; those that it says nothing of are omitted."""

    @abstractmethod
    def commit(self, change: Change) -> bool:
        """Commit the version after this one. False = another commit was first, and nothing was written.

        Raises:
            TargetError: refused, or not known whether it is written.
        """

    @abstractmethod
    def planned_new(self, fields: Sequence[pa.Field]) -> list[pa.Field]:
        """As `columns` will have them after `add_columns`.

        Raises:
            SchemaError: a type that the format cannot hold exactly.
        """

    def wider(self, column: pa.Field, rows: pa.DataType) -> pa.Field | None:
        """`column` of a type to which the format can change it, and which holds values of `rows`; None = there is
        none.
        """
        return None

    def retyped(self, column: pa.Field, rows: pa.DataType) -> str:
        """What changes the column's type elsewhere, for people."""
        return "make the table again, with a column that holds both"

    @abstractmethod
    def add_columns(self, fields: Sequence[pa.Field], change: Change) -> bool:
        """As `commit`, with new nullable columns, or with the types of `wider` columns, and without files."""


class LakeTable(ABC):
    """One table, whether it is there or not."""

    shown: str
    store: Store
    base: str
    """The table's directory, in the store's filesystem."""
    data: str
    """Where runs put data files: `<data>/<run>/`. Relative to `base`."""
    merged_files: ClassVar[str]
    """Who removes files that were merged, for people."""

    @abstractmethod
    def open(self) -> TableState | None:
        """The newest version; None = the table does not exist."""

    def full(self, path: str) -> str:
        """A path that is relative to the table, as `TableFile` has it."""
        return posixpath.join(self.base, path)

    def renew(self, columns: pa.Schema) -> TableState | None:
        """Get credentials again that a catalog vends for a time: the tasks of a write may have taken longer. Return the
        table, if it was looked at for that.

        `columns` are those of a table that does not exist.
        """
        return None

    def check_commits(self) -> None:  # noqa: B027 - most commits are those of a catalog
        """
        Raises:
            UnsupportedError: the store lets two jobs commit one version, and one would lose its rows.
        """

    def check_may_write(self) -> None:  # noqa: B027 - stores other than a local disk are not asked
        """
        Raises:
            OSError: the table's folder is on the local disk, and this user may not write there.
        """

    @abstractmethod
    def planned_columns(self, schema: pa.Schema, partition_by: Sequence[str]) -> pa.Schema:
        """The columns of a table that `create` makes for rows of `schema`.

        Raises:
            SchemaError: a type that the format cannot hold exactly. CreatedMeanwhileError: the table exists now.
        """

    @abstractmethod
    def create(self, columns: pa.Schema, partition_by: Sequence[str], change: Change) -> bool:
        """Create the table with `planned_columns` and the change. False = it was created by another job."""
