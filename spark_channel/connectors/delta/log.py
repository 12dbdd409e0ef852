"""A Delta table, with the interface that the writers of lakehouse tables use."""

import json
import posixpath
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa

from spark_channel.clock import utc_now
from spark_channel.connectors.commit import Claim, Identity
from spark_channel.connectors.delta import claims
from spark_channel.connectors.delta.features import check_deletion_vectors, check_readable, check_writable
from spark_channel.connectors.delta.open import (
    columns_of,
    explained,
    open_table,
    place_of,
    settings_of,
    uri_of,
)
from spark_channel.connectors.delta.options import Table
from spark_channel.connectors.delta.types import check_partition_column, planned
from spark_channel.connectors.files.conditions import ValueRange
from spark_channel.connectors.files.literals import exact
from spark_channel.connectors.files.partitions import partition_value
from spark_channel.connectors.files.store import store_of
from spark_channel.connectors.lake.table import Change, Lake, NewFile, Partition, TableFile, TableState
from spark_channel.errors import CommitError, TargetError, UnsupportedError

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable
    from deltalake.transaction import AddAction

__all__ = ["DeltaLake", "DeltaState", "file_path", "logged_partition", "table_files"]

_HISTORY = 200
"""So many of the newest commits are looked through for the name of a claim's owner."""
_LOST_RACE = re.compile(r"Failed to commit transaction: \d+\s*\Z")
_EXISTS = "already exists"
_PLAIN = re.compile(r"[\w/=. %-]+")


class DeltaLake(Lake):
    """The table that the options name."""

    data = "spark-channel"

    def __init__(self, options: Table) -> None:
        self._options = options
        self._place = place_of(options)
        self.shown = self._place.show()
        self.store = store_of(self._place)
        self.base = self._place.path

    def open(self) -> "DeltaState | None":
        from deltalake.exceptions import TableNotFoundError

        with explained(self.shown, TargetError):
            try:
                table = open_table(self._options, self._place)
            except TableNotFoundError:
                return None
            check_readable(table, self.shown)
            return DeltaState(table, self.base, self.shown, self._options)

    def planned_columns(self, schema: pa.Schema, partition_by: Sequence[str]) -> pa.Schema:
        columns = planned(schema)
        for name in partition_by:
            check_partition_column(columns.field(name), self.shown)
        if len(columns) and len(partition_by) == len(columns):
            raise TargetError(
                f"every column of {self.shown} would be a partition column; omit one from partitionBy"
            )
        return columns

    def create(self, columns: pa.Schema, partition_by: Sequence[str], change: Change) -> bool:
        from deltalake import Schema
        from deltalake.exceptions import DeltaError
        from deltalake.transaction import create_table_with_add_actions

        settings = settings_of(self._place, self._options)
        with explained(self.shown, TargetError):
            try:
                create_table_with_add_actions(
                    uri_of(self._place),
                    Schema.from_arrow(columns),
                    [_add(file) for file in change.added],
                    mode="error",
                    partition_by=list(partition_by),
                    storage_options=settings,
                    commit_properties=_commit_properties(change, None),
                )
            except DeltaError as error:
                if _EXISTS in str(error) or _LOST_RACE.search(str(error)):
                    return False
                raise
        return True


class DeltaState(TableState):
    """One version. It is loaded once, and not refreshed: a commit is of the next version, or not written."""

    def __init__(self, table: "DeltaTable", base: str, shown: str, options: Table) -> None:
        self._table, self._base, self._shown, self._options = table, base, shown, options
        unity = options.unity()
        self._opened_with = None if unity is None else unity.current()
        self.columns = columns_of(table)
        self.partition_columns = tuple(table.metadata().partition_columns)
        self._history: list[dict[str, Any]] | None = None

    def claim(self, identity: Identity, job: str) -> Claim | None:
        version = self._table.transaction_version(claims.app_id(identity))
        if version is None:
            return self._of_another_writer(identity)
        position = self._table.transaction_version(claims.batch_app_id(identity))
        return claims.decoded(identity, version, position, job, self._named(identity, version, position))

    def _of_another_writer(self, identity: Identity) -> Claim | None:
        """The transaction pair as Delta's own writers keep it: the last version of each app id.

        Raises:
            TargetError: a later version was written by another writer, so that this one may have been, too.
        """
        if identity.kind != "txn" or identity.version is None:
            return None
        last = self._table.transaction_version(identity.name)
        if last is None or last < identity.version:
            return None
        if last == identity.version:
            at = "an unknown time"
            return Claim(identity, "another writer of Delta", 1, "published", published_at=at)
        if self._table.transaction_version(claims.app_id(replace(identity, version=last))) is not None:
            return None  # it was written here, where each version is known
        raise TargetError(
            f"option 'txnVersion' got {identity.version}, and another writer has written version {last} "
            f"of {identity.name!r} to {self._shown}: whether {identity.version} was written before "
            f"cannot be known. Use a version above {last}, or another txnAppId"
        )

    def _named(self, identity: Identity, version: int, position: int | None) -> dict[str, Any] | None:
        if self._history is None:
            try:
                self._history = self._table.history(_HISTORY)
            except Exception:
                self._history = []
        said = [commit[claims.OURS] for commit in self._history if isinstance(commit.get(claims.OURS), dict)]
        wanted = {"claim": claims.app_id(identity), "version": version}
        return next((one for one in said if {name: one.get(name) for name in wanted} == wanted), None)

    def check_writable(self, *, removes: bool) -> None:
        check_writable(self._table, self._shown, removes=removes)
        if removes:
            check_deletion_vectors(self._table, self._shown)

    def files(self) -> list[TableFile]:
        check_deletion_vectors(self._table, self._shown)
        return table_files(self._table, self._base, self._shown)

    def ranges(self, file: TableFile, names: Collection[str]) -> dict[str, ValueRange]:
        found = {}
        for name, text in file.partition:
            if name in names:
                kind = self.columns.field(name).type
                value = partition_value(name, text, kind).as_py()
                with suppress(ValueError, TypeError):
                    rank = None if value is None else exact(value, kind)
                    found[name] = ValueRange(rank, rank, int(value is None), 1)
        return found

    def _renew(self) -> None:
        """Open the same version with new credentials, if rewriting files took longer than the old ones hold."""
        unity = self._options.unity()
        if unity is not None and unity.current() != self._opened_with:
            with explained(self._shown, CommitError):
                self._table = open_table(self._options, place_of(self._options), int(self._table.version()))
            self._opened_with = unity.current()

    def commit(self, change: Change) -> bool:
        from deltalake import Schema

        # An overwrite lists nothing: deltalake removes every file of this version, by the names that its log has.
        whole = change.operation == "overwrite"
        removed = [] if whole else [_remove(file, self._shown) for file in change.removed]
        actions = [*map(_add, change.added), *removed]
        self._renew()
        with _committing(self._shown) as outcome:
            self._table.create_write_transaction(
                actions,
                "overwrite" if whole else "append",
                Schema.from_arrow(self.columns),
                list(self.partition_columns),
                commit_properties=_commit_properties(change, self._table),
            )
        return outcome == []

    def retyped(self, column: pa.Field, rows: pa.DataType) -> str:
        return (
            "write the table again in Spark with the column cast (mode overwrite, overwriteSchema=true), since "
            "deltalake changes no type of a column"
        )

    def planned_new(self, fields: Sequence[pa.Field]) -> list[pa.Field]:
        return list(planned(pa.schema(fields)))

    def add_columns(self, fields: Sequence[pa.Field], change: Change) -> bool:
        from deltalake import Field, Schema

        # Nothing of the claim changes; a commit is of the next version only, so the claim still holds in it.
        properties = _commit_properties(change, None, claim=False)
        new: list[Field] = list(Schema.from_arrow(pa.schema(fields)).fields)
        self._renew()
        with _committing(self._shown) as outcome:
            self._table.alter.add_columns(new, commit_properties=properties)
        return outcome == []


@contextmanager
def _committing(shown: str) -> Iterator[list[str]]:
    """Gives a list that is not empty afterwards if another commit was first."""
    from deltalake.exceptions import CommitFailedError

    outcome: list[str] = []
    with explained(shown, CommitError):
        try:
            yield outcome
        except CommitFailedError as error:
            if not _LOST_RACE.search(str(error)):
                raise
            outcome.append(str(error))


def _commit_properties(
    change: Change, table: "DeltaTable | None", *, claim: bool = True
) -> "CommitProperties":
    """Without retries: deltalake would write a later version, for which nothing was decided."""
    from deltalake import CommitProperties, Transaction

    found, now = change.claim, int(utc_now().timestamp() * 1000)
    identity = found.identity
    transactions = [Transaction(claims.app_id(identity), claims.encoded(found), now)] if claim else []
    if claim and found.position is not None:
        transactions.append(Transaction(claims.batch_app_id(identity), found.position, now))
    if claim and identity.kind == "txn" and identity.version is not None and found.state == "published":
        last = None if table is None else table.transaction_version(identity.name)
        if last is None or last < identity.version:
            transactions.append(
                Transaction(identity.name, identity.version, now)
            )  # as Delta's own writers do
    said = {claims.OURS: {**claims.about(found, change.job), "operation": change.operation}}
    return CommitProperties(said, max_commit_retries=0, app_transactions=transactions)


def _add(file: NewFile) -> "AddAction":
    from deltalake.transaction import AddAction

    known = {name: values for name, values in file.statistics.items() if values[2] is not None}
    statistics = {
        "numRecords": file.rows,
        "minValues": {name: low for name, (low, _, _) in known.items() if low is not None},
        "maxValues": {name: high for name, (_, high, _) in known.items() if high is not None},
        "nullCount": {name: nulls for name, (_, _, nulls) in known.items()},
    }
    return AddAction(
        file.path,
        file.size,
        dict(file.partition),
        int(utc_now().timestamp() * 1000),
        True,
        json.dumps(statistics),
    )


def _remove(file: TableFile, shown: str) -> Any:
    """deltalake writes the path encoded, in its own way: another spelling than the log's would remove nothing.

    Raises:
        UnsupportedError: the file's name has such a spelling.
    """
    from deltalake.transaction import RemoveAction

    path = unquote(file.handle)
    if not _PLAIN.fullmatch(path) or quote(path, safe="/=-_.") != file.handle:
        raise UnsupportedError(
            f"{shown} has the file {file.handle!r}, whose name deltalake would encode differently, "
            "so that its rows would stay; overwrite the whole table, or use Delta Lake in Spark"
        )
    return RemoveAction(
        path, True, int(utc_now().timestamp() * 1000), size=file.size, partition_values=dict(file.partition)
    )


def table_files(table: "DeltaTable", base: str, shown: str) -> list[TableFile]:
    """Every data file of the version.

    Raises:
        UnsupportedError: see `file_path`.
    """
    actions = pa.table(table.get_add_actions())
    parts = actions.column("partition").to_pylist() if "partition" in actions.column_names else None
    found = []
    for number, (path, size) in enumerate(
        zip(actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist(), strict=True)
    ):
        partition = _partition({} if parts is None else parts[number] or {})
        found.append(TableFile(file_path(base, path, shown), size, partition, path))
    return found


def file_path(base: str, path: str, shown: str) -> str:
    """Where the file is that the log names `path`.

    Raises:
        UnsupportedError: outside of the table's directory, such as in a shallow clone, or by a log that was edited.
    """
    plain = unquote(path)
    inside = posixpath.normpath(plain)
    if urlsplit(path).scheme or inside.startswith("/") or inside.split("/")[0] == "..":
        raise UnsupportedError(
            f"{shown} names the file {path}, which is outside its directory, as a shallow clone does; clone "
            "it with its files, or use Delta Lake in Spark"
        )
    return posixpath.join(base, plain)


def logged_partition(values: Mapping[str, str | None], columns: pa.Schema) -> Partition:
    """Partition values as a commit has them, in the texts that `table_files` gives."""
    return tuple((name, _read_text(text, _type_of(columns, name))) for name, text in values.items())


def _type_of(columns: pa.Schema, name: str) -> pa.DataType | None:
    index = columns.get_field_index(name)
    return None if index < 0 else columns.field(index).type


def _read_text(text: str | None, kind: pa.DataType | None) -> str | None:
    if not text:
        return None  # Delta's NULL, in either spelling
    if kind is None or not pa.types.is_timestamp(kind) or kind.tz is None:
        return text
    try:
        without_zone = datetime.fromisoformat(text).tzinfo is None
    except ValueError:
        return text  # its reader refuses it
    return f"{text}Z" if without_zone else text


def _partition(values: dict[str, Any]) -> Partition:
    return tuple((name, _text(value)) for name, value in values.items())


def _text(value: Any) -> str | None:
    """A partition value as the log has it: typed by deltalake, and read as text again."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
