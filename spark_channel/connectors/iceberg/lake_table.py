"""An Iceberg table, with the interface that the writers of lakehouse tables use."""

import posixpath
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_channel.clock import utc_now
from spark_channel.connectors.base.claims import Claim, Identity, unless_replaced
from spark_channel.connectors.base.kept_claims import ClaimName, KeptClaim
from spark_channel.connectors.files.conditions import ValueRange
from spark_channel.connectors.iceberg.catalog import explained, file_io, open_catalog
from spark_channel.connectors.iceberg.columns import arrow_columns, planned
from spark_channel.connectors.iceberg.data_files import store_at
from spark_channel.connectors.iceberg.guard import value_ranges
from spark_channel.connectors.iceberg.options import TableOptions
from spark_channel.connectors.iceberg.outside_files import check_inside
from spark_channel.connectors.iceberg.versions import gathered, without_versions
from spark_channel.connectors.lake.columns import check_partition_column
from spark_channel.connectors.lake.table import (
    Change,
    CreatedMeanwhileError,
    LakeTable,
    NewFile,
    TableFile,
    TableNotes,
    TableState,
)
from spark_channel.errors import ChannelError, CommitError, TargetError, UnsupportedError
from spark_channel.masking import without_login

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.metadata import TableMetadata
from spark_channel.connectors.iceberg.claims import (
    KEY,
    OVERWRITES,
    PREFIX,
    claim_of,
    forgotten,
    kept_in,
    property_name,
    property_value,
)

__all__ = ["IcebergLake", "IcebergState", "check_files", "partition_columns_of", "planned_files"]

_DIGITS = 38
_REFUSALS = frozenset({400, 401, 403, 404, 419})
"""A REST catalog's answers to a commit that it has not made, beside 409, as its protocol has them."""
_IN_SPARK = "use Iceberg in Spark for this table"
Place = tuple[str, dict[str, Any]]
"""(the table's location, the settings of its files)."""


class IcebergLake(LakeTable):
    """The table that the options name. Where it is, is known once it was opened, or planned."""

    data = "data/spark-channel"
    merged_files = "stay until the snapshots before this one expire"

    def __init__(self, options: TableOptions, location: Place | None = None) -> None:
        self._options = options
        self.shown = options.dbtable
        self.place: Place | None = None
        if location is not None:
            self._found(*location)

    def _found(self, location: str, settings: dict[str, Any]) -> "FileIO":
        io = file_io(settings, location)
        self.place = (location, settings)
        self.store, self.base = store_at(io, location)
        return io

    def full(self, path: str) -> str:
        assert self.place is not None
        return posixpath.join(self.place[0], path)

    def open(self) -> "IcebergState | None":
        from pyiceberg.exceptions import NoSuchTableError

        with explained(self.shown, TargetError), open_catalog(self._options) as catalog:
            try:
                table = catalog.load_table(self._options.dbtable)
            except NoSuchTableError:
                return None
            location, settings = table.location(), dict(table.io.properties)
            if self.place is not None and self.place[0] != location:
                raise TargetError(
                    f"{self.shown} was created again while a write to it was running; run it again"
                )
            io = self._found(location, settings)
            return IcebergState(table, io, self._options, self)

    def renew(self, columns: pa.Schema) -> "IcebergState | None":
        state = self.open()
        if state is None:
            self.planned_columns(columns, ())
        return state

    def planned_columns(self, schema: pa.Schema, partition_by: Sequence[str]) -> pa.Schema:
        columns = planned(schema)
        with explained(self.shown, TargetError), open_catalog(self._options) as catalog:
            transaction = self._created(catalog, columns, partition_by)
            # A catalog may choose another folder for each creation: files are in the first one.
            location = transaction.table_metadata.location if self.place is None else self.place[0]
            self._found(location, dict(transaction._table.io.properties))  # noqa: SLF001 - pyiceberg has no public way
            return arrow_columns(transaction.table_metadata.schema(), self.shown)

    def _created(
        self, catalog: Any, columns: pa.Schema, partition_by: Sequence[str]
    ) -> "Transaction":
        """The creation, not committed.

        Raises:
            CreatedMeanwhileError: the table exists now.
        """
        from pyiceberg.exceptions import TableAlreadyExistsError

        bare = planned(columns)
        location = None if self.place is None else self.place[0]
        try:
            transaction: Transaction = catalog.create_table_transaction(
                self._options.dbtable, schema=bare, location=location
            )
        except TableAlreadyExistsError as error:
            raise CreatedMeanwhileError(
                f"{self.shown} was created by another job while this one planned to; run it again"
            ) from error
        for name in partition_by:
            check_partition_column(bare.field(name), self.shown)
        if partition_by:
            with transaction.update_spec() as spec:
                for name in partition_by:
                    spec.add_identity(name)
        return transaction

    def create(self, columns: pa.Schema, partition_by: Sequence[str], change: Change) -> bool:
        from pyiceberg.table.update import AssertCreate

        assert self.place is not None
        with explained(self.shown, CommitError), open_catalog(self._options) as catalog:
            try:
                transaction = self._created(catalog, columns, partition_by)
            except CreatedMeanwhileError:
                return False
            if not arrow_columns(transaction.table_metadata.schema(), self.shown).equals(
                columns, check_metadata=True
            ):
                raise CommitError(
                    f"the catalog plans other column ids for {self.shown} than it did before: run it again"
                )
            _note(transaction, change.notes)
            io = self._found(*self.place)
            # Where a catalog chooses another folder for each creation, the files stay in the one that was planned.
            producer = _stage(transaction, transaction.table_metadata, change, self.place[0], io)
            table, updates = transaction._table, transaction._updates  # noqa: SLF001 - pyiceberg has no public way
            if not _is_committed(catalog, table, (AssertCreate(),), updates, producer, self.shown):
                return False
            self._found(transaction.table_metadata.location, self.place[1])
        return True


def _note(transaction: "Transaction", notes: TableNotes) -> None:
    """Give the table that is made its comments and its identifier fields, which Iceberg has for keys."""
    if notes.key or notes.comments:
        with transaction.update_schema() as update:
            for name, comment in notes.comments:
                update.update_column((name,), doc=comment)
            update.set_identifier_fields(*notes.key)
    properties = {KEY: ",".join(notes.key)} if notes.key else {}
    if notes.comment is not None:
        properties["comment"] = notes.comment
    if properties:
        transaction.set_properties(properties)


class IcebergState(TableState):
    """One version of the metadata. A commit requires its snapshot to be the newest of `main`."""

    def __init__(
        self, table: "Table", io: "FileIO", options: TableOptions, lake: IcebergLake
    ) -> None:
        self._table, self._io, self._options, self._lake = table, io, options, lake
        self.columns = arrow_columns(table.schema(), options.dbtable)
        self.partition_columns = partition_columns_of(table.metadata)

    @property
    def metadata(self) -> "TableMetadata":
        return self._table.metadata

    @property
    def io(self) -> "FileIO":
        return self._io

    def claim(self, identity: Identity, job: str) -> Claim | None:
        claim = claim_of(self._table.properties, identity, self._options.dbtable)
        return None if claim is None else unless_replaced(claim, self.overwrites)

    def kept(self, target: str, names: Sequence[ClaimName]) -> list[KeptClaim]:
        now = utc_now().isoformat(timespec="seconds")
        claims = []
        for name, text in self._table.properties.items():
            if name.startswith(PREFIX):
                claims.append(kept_in(name, text, target, now))
        return sorted((claim for claim in claims if claim is not None), key=lambda claim: claim.at)

    @property
    def identity(self) -> str:
        return str(self._table.metadata.table_uuid)

    @property
    def overwrites(self) -> int:
        return int(self._table.properties.get(OVERWRITES, 0))

    def check_writable(self, *, removes: bool) -> None:
        from pyiceberg.transforms import IdentityTransform, VoidTransform

        label, metadata = self._options.dbtable, self._table.metadata
        if metadata.format_version > 2:
            raise UnsupportedError(
                f"{label} is of format version {metadata.format_version}; {_IN_SPARK}"
            )
        for field in metadata.spec().fields:
            if isinstance(field.transform, VoidTransform):
                _check_dropped(field, metadata.schema(), label)
            elif not isinstance(field.transform, IdentityTransform):
                raise UnsupportedError(
                    f"{label} is partitioned by {field.transform} of a column, and files are made here by whole "
                    f"values; {_IN_SPARK}"
                )
        for name in self.partition_columns:
            if name not in self.columns.names:
                raise UnsupportedError(
                    f"{label} is partitioned by {name!r}, a field inside a column, and files are made here by whole "
                    f"columns; {_IN_SPARK}"
                )
            check_partition_column(self.columns.field(name), label)
        if metadata.sort_order().fields:
            raise UnsupportedError(
                f"{label} has a sort order, and rows come here in any order; {_IN_SPARK}"
            )
        if removes:
            self.files()

    def files(self) -> list[TableFile]:
        label = self._options.dbtable
        with explained(label, TargetError):
            outside = self._options.external_access
            tasks = planned_files(self._table, self._table.scan(), label, outside=outside)
            return [
                TableFile(task.file.file_path, task.file.file_size_in_bytes, (), task.file)
                for task in tasks
            ]

    def kind(self, file: TableFile) -> tuple[Any, ...] | None:
        data_file = file.handle
        return (
            tuple(data_file.partition) if data_file.spec_id == self._table.spec().spec_id else None
        )

    def ranges(self, file: TableFile, names: Collection[str]) -> dict[str, ValueRange]:
        return value_ranges(file.handle, self._table.schema(), self.columns, names)

    def commit(self, change: Change) -> bool:
        with explained(self._options.dbtable, CommitError):
            return self._put(self._transaction(), change)

    def _transaction(self) -> "Transaction":
        """One of the table with its newest snapshot alone, to whose metadata the catalog adds what is committed.

        pyiceberg copies the metadata again and again: findings/pyiceberg-copies-all-snapshots.sh
        """
        from pyiceberg.table import Table
        from pyiceberg.table.refs import MAIN_BRANCH

        table, metadata = self._table, self._table.metadata
        newest = metadata.snapshot_by_name(MAIN_BRANCH)
        snapshots = [] if newest is None else [newest]
        few = {"snapshots": snapshots, "snapshot_log": [], "metadata_log": []}
        return Table(
            table.name(),
            metadata.model_copy(update=few),
            table.metadata_location,
            table.io,
            table.catalog,
            table.config,
        ).transaction()

    def _put(self, transaction: "Transaction", change: Change) -> bool:
        from pyiceberg.table.update import AssertTableUUID

        properties = self._table.properties
        # Not the claim of this commit: it is written below, and may be that of a version which is published again.
        others = {
            name: text
            for name, text in properties.items()
            if name != property_name(change.claim.identity)
        }
        forgets, remaining = without_versions(others, change.forgotten, self._options.dbtable)
        others = {
            name: text for name, text in {**others, **remaining}.items() if name not in forgets
        }
        gone, texts = gathered(others, change.claim.identity.target, PREFIX, property_name)
        texts = {**remaining, **texts}
        old = [*forgets, *forgotten(others), *gone]
        if old:
            transaction.remove_properties(*old)
        if texts:
            transaction.set_properties(texts)
        producer = _stage(
            transaction, self._table.metadata, change, self._table.location(), self._io
        )
        requirements = (
            *transaction._requirements,  # noqa: SLF001 - pyiceberg has no public way
            AssertTableUUID(uuid=self._table.metadata.table_uuid),
        )
        updates = transaction._updates  # noqa: SLF001 - pyiceberg has no public way
        if change.operation == "compact":
            updates = tuple(map(_without_changes, updates))
        with open_catalog(self._options) as catalog:
            # Once: pyiceberg's own commit would try again on a later version, for which nothing was decided.
            return _is_committed(
                catalog, self._table, requirements, updates, producer, self._options.dbtable
            )

    def wider(self, column: pa.Field, rows: pa.DataType) -> pa.Field | None:
        """As Iceberg promotes types: int to long, float to double, a decimal to more digits before the point."""
        was, kind = column.type, None
        if was == pa.int32() and pa.types.is_integer(rows):
            kind = pa.int64()
        elif was == pa.float32() and rows == pa.float64():
            kind = pa.float64()
        elif pa.types.is_decimal(was) and pa.types.is_decimal(rows) and rows.scale <= was.scale:
            digits = rows.precision - rows.scale + was.scale
            kind = pa.decimal128(digits, was.scale) if digits <= _DIGITS else None
        return None if kind is None else column.with_type(kind)

    def planned_new(self, fields: Sequence[pa.Field]) -> list[pa.Field]:
        with explained(self._options.dbtable, TargetError):
            transaction = self._transaction()
            _add(transaction, fields)
            columns = arrow_columns(transaction.table_metadata.schema(), self._options.dbtable)
        return [columns.field(field.name) for field in fields]

    def add_columns(self, fields: Sequence[pa.Field], change: Change) -> bool:
        with explained(self._options.dbtable, CommitError):
            transaction = self._transaction()
            _add(transaction, fields)
            return self._put(transaction, replace(change, added=(), removed=()))


def _without_changes(update: Any) -> Any:
    """The update, whose snapshot says that no row changed: streams pass it. pyiceberg makes no such snapshot."""
    from pyiceberg.table.snapshots import Operation, Summary
    from pyiceberg.table.update import AddSnapshotUpdate

    if not isinstance(update, AddSnapshotUpdate) or update.snapshot.summary is None:
        return update
    properties = update.snapshot.summary.additional_properties
    snapshot = update.snapshot.model_copy(
        update={"summary": Summary(Operation.REPLACE, **properties)}
    )
    return update.model_copy(update={"snapshot": snapshot})


def _is_committed(
    catalog: "Catalog",
    table: "Table",
    requirements: tuple[Any, ...],
    updates: tuple[Any, ...],
    producer: Any,
    label: str,
) -> bool:
    """Commit once; False: another commit was first. What `producer` wrote for a commit that was refused is removed.

    Raises:
        TargetError: it is not known whether the catalog has committed, so the table has to be looked at.
    """
    from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

    try:
        catalog.commit_table(table, requirements, updates)
    except (ChannelError, OSError):
        raise
    except Exception as error:
        if not _is_refusal(error):
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise TargetError(
                f"the catalog did not say whether it has committed to {label}: {without_login(first)}"
            ) from error
        producer._clean_all_uncommitted()  # noqa: SLF001 - pyiceberg has no public way
        if isinstance(error, (CommitFailedException, TableAlreadyExistsError)):
            return False
        raise
    return True


def _is_refusal(error: Exception) -> bool:
    """Whether a catalog's error says that the commit was not made. A gateway, or a server that is lost after its
    COMMIT, does not say so.
    """
    from pyiceberg import exceptions

    refusals = (
        exceptions.CommitFailedException,
        exceptions.TableAlreadyExistsError,
        exceptions.NoSuchNamespaceError,
        exceptions.NoSuchTableError,
    )
    answer = getattr(error.__cause__, "response", None)
    return isinstance(error, refusals) or getattr(answer, "status_code", None) in _REFUSALS


def _add(transaction: "Transaction", fields: Sequence[pa.Field]) -> None:
    with transaction.update_schema() as update:
        update.union_by_name(planned(pa.schema(fields)))


def _stage(
    transaction: "Transaction",
    metadata: "TableMetadata",
    change: Change,
    location: str,
    io: "FileIO",
) -> Any:
    """Put the change, whose files are below `location`, into the transaction; gives the producer of its snapshot.

    `metadata`: of the table, without the change. A transaction copies all of it each time that it is asked.
    """
    from spark_channel.connectors.iceberg.guard import check_names_no_code

    check_names_no_code(metadata.properties, ".".join(transaction._table.name()))  # noqa: SLF001 - pyiceberg has no public way
    name, value = property_name(change.claim.identity), property_value(change.claim)
    transaction.set_properties({name: value})
    if change.operation == "overwrite":
        before = int(metadata.properties.get(OVERWRITES, 0))
        transaction.set_properties({OVERWRITES: str(before + 1)})
    summary = {
        "spark-channel.job": change.job,
        "spark-channel.operation": change.operation,
        name: value,
    }
    update = transaction.update_snapshot(snapshot_properties=summary)
    producer: Any = update.overwrite() if change.removed else update.fast_append()
    with producer:
        for file in change.removed:
            producer.delete_data_file(file.handle)
        for new in change.added:
            producer.append_data_file(_data_file(metadata, new, location, io))
    return producer


def _data_file(metadata: "TableMetadata", new: NewFile, location: str, io: "FileIO") -> "DataFile":
    """The manifest entry of a new file, with the bounds of its Parquet footer."""
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    schema, path = metadata.schema(), posixpath.join(location, new.path)
    with io.new_input(path).open() as stream:
        footer = pq.read_metadata(stream)
    paths = [footer.schema.column(number).path for number in range(footer.num_columns)]
    # pyiceberg knows columns by their paths in the file, which a name with dots can share with another column.
    properties = (
        metadata.properties
        if len(set(paths)) == len(paths)
        else {"write.metadata.metrics.default": "none"}
    )
    statistics = data_file_statistics_from_parquet_metadata(
        footer,
        compute_statistics_plan(schema, properties),
        parquet_path_to_id_mapping(schema),
    )
    values = {name: _typed(value, schema.find_type(name)) for name, value in new.partition}
    columns = {
        field.field_id: schema.find_column_name(field.source_id) for field in _files_by(metadata)
    }
    partition = [values.get(columns.get(field.field_id) or "") for field in metadata.spec().fields]
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(*partition),
        file_size_in_bytes=new.size,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _typed(text: str | None, kind: Any) -> object:
    """A partition value as manifests have it."""
    from datetime import date

    from pyiceberg.types import BooleanType, DateType, IntegerType, LongType

    if text is None:
        return None
    if isinstance(kind, BooleanType):
        return text == "true"
    if isinstance(kind, IntegerType | LongType):
        return int(text)
    if isinstance(kind, DateType):
        return (date.fromisoformat(text) - date(1970, 1, 1)).days
    return text


def partition_columns_of(metadata: "TableMetadata") -> tuple[str, ...]:
    """The columns by whose values files are made. A field that was dropped from a table of format version 1 stays in
    its partition spec, as `void`.
    """
    schema = metadata.schema()
    return tuple(schema.find_column_name(field.source_id) or "" for field in _files_by(metadata))


def _files_by(metadata: "TableMetadata") -> list[Any]:
    from pyiceberg.transforms import VoidTransform

    fields = metadata.spec().fields
    return [field for field in fields if not isinstance(field.transform, VoidTransform)]


def _check_dropped(dropped: Any, schema: "Schema", table: str) -> None:
    """Check that pyiceberg writes the NULL of a dropped partition field: it takes the field for required if its column
    is so, and cannot read the manifests that it writes when the column is gone.

    Raises:
        UnsupportedError: names the field.
    """
    name = schema.find_column_name(dropped.source_id)
    if name is not None and schema.find_field(name).optional:
        return
    fault = "whose column is gone" if name is None else f"of column {name!r}, which is NOT NULL"
    raise UnsupportedError(
        f"the partition field {dropped.name!r} of {table} was dropped, {fault}, and pyiceberg cannot write such a "
        f"table; {_IN_SPARK}"
    )


def planned_files(table: "Table", scan: Any, label: str, *, outside: bool) -> list[Any]:
    """The data files of a scan of the table. `outside`: option `externalAccess`.

    Raises:
        UnsupportedError: see `check_files`.
    """
    location = scan.table_metadata.location
    snapshot = scan.snapshot()
    if snapshot is not None and not outside:
        # The metadata says where the table is: the catalog says where the metadata is.
        check_inside([table.metadata_location, snapshot.manifest_list], label, location)
        manifests = (manifest.manifest_path for manifest in snapshot.manifests(scan.io))
        check_inside(manifests, label, location)
    try:
        tasks = list(scan.plan_files())
    except (ValueError, NotImplementedError) as error:
        if "equality delete" not in str(error):
            raise
        raise _merged(label, "by equality") from error
    check_files(tasks, label, None if outside else location)
    return tasks


def _merged(label: str, way: str) -> UnsupportedError:
    return UnsupportedError(
        f"{label} has delete files (merge-on-read), {way}; write the files again with CALL "
        "system.rewrite_data_files in Spark, and read or replace it then"
    )


def check_files(tasks: Sequence[Any], label: str, location: str | None) -> None:
    """`location`: of the table; None = its files may be anywhere.

    Raises:
        UnsupportedError: delete files (merge-on-read), files that are not Parquet, or see `check_inside`.
    """
    from pyiceberg.manifest import FileFormat

    if location is not None:
        check_inside((task.file.file_path for task in tasks), label, location)
    for task in tasks:
        if task.delete_files:
            raise _merged(label, f"such as for {task.file.file_path}")
        if task.file.file_format != FileFormat.PARQUET:
            raise UnsupportedError(
                f"{label} has a file of format {task.file.file_format}; this connector reads and replaces Parquet"
            )
