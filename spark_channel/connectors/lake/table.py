"""The interface of a lakehouse table for writers: one state of its log, and the conditional commit of the next."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from spark_channel.connectors.commit import Claim, Identity
from spark_channel.connectors.files.conditions import ValueRange
from spark_channel.connectors.files.store import Store

__all__ = ["Change", "Lake", "NewFile", "TableFile", "TableState"]

Partition = tuple[tuple[str, str | None], ...]
"""(column, value as text) of each partition column; None = NULL."""


@dataclass(frozen=True, slots=True)
class NewFile:
    """A data file that no commit names yet. `path` is relative to the table; `statistics` by column."""

    path: str
    rows: int
    size: int
    partition: Partition = ()
    statistics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableFile:
    """A data file of the table. `path` is absolute; `handle` is what the format's library knows it by."""

    path: str
    size: int
    partition: Partition = ()
    handle: Any = None


@dataclass(frozen=True)
class Change:
    """The next commit. `claim` is written in any case, with the job that writes it."""

    job: str
    claim: Claim
    added: Sequence[NewFile] = ()
    removed: Sequence[TableFile] = ()
    operation: str = "append"


class TableState(ABC):
    """One version of a table."""

    columns: pa.Schema
    """As they are read. Nullability is the table's; metadata of fields is what its data files carry."""
    partition_columns: tuple[str, ...]

    @abstractmethod
    def claim(self, identity: Identity, job: str) -> Claim | None:
        """The claim of `identity` that this version has; `job` is the caller."""

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


class Lake(ABC):
    """One table, whether it is there or not."""

    shown: str
    store: Store
    base: str
    """The table's directory, in the store's filesystem."""
    data: str
    """Where runs put data files: `<data>/<run>/`. Relative to `base`."""

    @abstractmethod
    def open(self) -> TableState | None:
        """The newest version; None = the table does not exist."""

    def renew(self, columns: pa.Schema) -> None:  # noqa: B027 - most credentials hold, or are renewed by themselves
        """Get credentials again that a catalog vends for a time: the tasks of a write may have taken longer.

        `columns` are those of a table that does not exist.
        """

    @abstractmethod
    def planned_columns(self, schema: pa.Schema, partition_by: Sequence[str]) -> pa.Schema:
        """The columns of a table that `create` makes for rows of `schema`.

        Raises:
            SchemaError: a type that the format cannot hold exactly.
        """

    @abstractmethod
    def create(self, columns: pa.Schema, partition_by: Sequence[str], change: Change) -> bool:
        """Create the table with `planned_columns` and the change. False = it was created by another job."""
