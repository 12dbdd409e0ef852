"""Parquet: row groups pruned, gathered."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import cache, partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_channel.connectors.base.definition import KEY_NOTE
from spark_channel.connectors.files.conditions import Condition, ValueRange
from spark_channel.connectors.files.formats.base import (
    Encoder,
    Format,
    Piece,
    ReadRequest,
    Sink,
    SplitRequest,
    batch_rows,
    pick,
)
from spark_channel.connectors.files.formats.types import (
    INSTANT,
    Julian,
    Notes,
    as_spark,
    as_type,
    check_types,
    checked,
    leaf_columns,
    map_leaves,
    picked,
    plain_leaf,
    renamed,
    temporal_leaves,
)
from spark_channel.connectors.files.literals import exact
from spark_channel.connectors.files.options import ParquetWriteOptions
from spark_channel.errors import SourceError
from spark_channel.lazy import compute as pc

__all__ = [
    "ParquetFormat",
    "RowGroupEncoder",
]

_LONG_VALUE = 1 << 20
"""Bytes of a text or binary value whose column has no statistics and no dictionary."""
_DICTIONARY_BYTES = 1_000_000
"""The most bytes of a dictionary. At pyarrow's 1 MiB the hash table of its encoder grows from 6 to 25 MB at the very
value of eight bytes at which the dictionary is given up."""
_FLOATING = ("FLOAT", "DOUBLE")
_READ_BUFFER = 1 << 20
_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_TEXTS = frozenset({"UUID", "JSON", "ENUM", "INTERVAL"})
"""Types of Parquet, by logical and by converted type, that are read as text."""
_NOTES = (b"comment", KEY_NOTE.encode())


class RowGroupEncoder(Encoder):
    """Gathers batches into row groups: one has at most `group_rows` rows, and ends once it has `group_bytes` of Arrow.

    `in_file` is the schema in the file, if it is another one than that of the rows. `options` is for
    `pyarrow.parquet.ParquetWriter`.
    """

    def __init__(
        self,
        sink: Sink,
        schema: pa.Schema,
        group_rows: int,
        group_bytes: int,
        *,
        in_file: pa.Schema | None = None,
        **options: Any,
    ) -> None:
        self._schema, self._in_file = schema, in_file or schema
        self._group_rows, self._group_bytes = group_rows, group_bytes
        self._held: list[pa.RecordBatch] = []
        self._rows = 0
        self.held_bytes = 0
        """Arrow bytes of the row group that is being gathered."""
        self._open = partial(
            pq.ParquetWriter,
            sink,
            self._in_file,
            version="2.6",
            dictionary_pagesize_limit=_DICTIONARY_BYTES,
            **options,
        )
        self._writer: pq.ParquetWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        start = 0
        while start < batch.num_rows:
            rows = batch.slice(start, self._group_rows - self._rows)
            start += rows.num_rows
            self._held.append(rows)
            self._rows += rows.num_rows
            self.held_bytes += rows.nbytes
            if self._rows >= self._group_rows or self.held_bytes >= self._group_bytes:
                self._write_group()

    def _write_group(self) -> None:
        if self._rows:
            table = pa.Table.from_batches(self._held, self._schema)
            if self._in_file is not self._schema:
                table = table.cast(self._in_file)
            if self._writer is None:
                described, in_dictionaries = _chosen_columns(table)
                self._writer = self._open(
                    write_statistics=described, use_dictionary=in_dictionaries
                )
            self._writer.write_table(table, row_group_size=self._rows)
        self._held, self._rows, self.held_bytes = [], 0, 0

    def finish(self) -> None:
        self._write_group()
        writer = self._open() if self._writer is None else self._writer
        writer.close()

    def abandon(self) -> None:
        self._held = []
        if self._writer is None:
            return
        try:
            self._writer.close()
        except (OSError, RuntimeError, ValueError, pa.ArrowException):
            self._writer.is_open = False  # or it would try again when it is collected


def _chosen_columns(table: pa.Table) -> tuple[bool | list[str], bool | list[str]]:
    """The columns, as their paths in the file, that get statistics, and those that get a dictionary; True = all.

    pyarrow copies the least and the greatest value four times, and leaves them out at the end where they are longer
    than 4 kB; a dictionary is one more copy. A document of 64 MB took nine times its size.

    Floating-point columns get no statistics, which leave out NaN: Spark, for which NaN is the greatest value, would
    pass over a row group with NaN that fits its filter (findings/arrow-statistics-hide-nan-from-spark.sh). By a
    dictionary with -0.0 it would pass over `= 0.0`.
    """
    columns = dict(zip(table.column_names, table.columns, strict=True))
    long = {name for name, values in columns.items() if _is_long(values)}
    names = [table.column_names[position] for position in leaf_columns(table.schema)]
    leaves = _leaves(table.schema)
    if not long and not any(is_floating for _, is_floating in leaves):
        return True, True
    described, in_dictionaries = [], []
    for name, (path, is_floating) in zip(names, leaves, strict=True):
        values = columns[name]
        if name in long or (long and pa.types.is_nested(values.type)):
            continue
        if not is_floating:
            described.append(path)
        if not is_floating or not _may_have_minus_zero(values):
            in_dictionaries.append(path)
    return described, in_dictionaries


def _leaves(schema: pa.Schema) -> list[tuple[str, bool]]:
    """The leaf columns of a file: the path of each, and whether it is floating-point."""
    sink = pa.BufferOutputStream()
    pq.write_metadata(schema, sink)
    parquet_schema = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    leaves = [parquet_schema.column(number) for number in range(len(parquet_schema))]
    return [(leaf.path, leaf.physical_type in _FLOATING) for leaf in leaves]


def _may_have_minus_zero(values: pa.ChunkedArray) -> bool:
    if not pa.types.is_floating(values.type):
        return True
    # 1 / -0.0 is -Infinity, and so is no other quotient of a number that is equal to 0.
    zeros = values.filter(pc.equal(values, 0))
    return bool(pc.any(pc.less(pc.divide(1.0, zeros), 0)).as_py())


def _is_long(values: pa.ChunkedArray) -> bool:
    kind, types = values.type, pa.types
    if values.nbytes <= _LONG_VALUE:
        return False
    if types.is_nested(kind):
        return bool(values.nbytes // len(values) > _LONG_VALUE)
    is_measured = types.is_string(kind) or types.is_binary(kind)
    if not (is_measured or types.is_large_string(kind) or types.is_large_binary(kind)):
        return False
    return bool((pc.max(pc.binary_length(values)).as_py() or 0) > _LONG_VALUE)


class ParquetFormat(Format):
    """Split and pruned by row group, read one column chunk at a time."""

    name = "parquet"
    refusal = "has no counterpart in Parquet; cast it first"

    def _open(self, stream: pa.NativeFile, *, keyed: bool = False) -> pq.ParquetFile:
        # With a buffer a column chunk is streamed; without one it is read whole.
        try:
            return pq.ParquetFile(
                stream,
                buffer_size=_READ_BUFFER,
                pre_buffer=False,
                # Nanoseconds end in the year 2262, and wrap around: findings/arrow-int96-wraps.sh
                coerce_int96_timestamp_unit="us",
                decryption_properties=_no_keys()[1] if keyed else None,
            )
        except UnicodeDecodeError as error:
            raise OSError(f"the name of a column is not UTF-8: {error.object!r}") from error
        except OSError as error:
            if "encrypted metadata" not in str(error):
                raise
            raise OSError(
                "its footer is encrypted, and spark-channel has no keys; decrypt it first"
            ) from error

    def _open_for(
        self, stream: pa.NativeFile, condition: Condition | None
    ) -> tuple[pq.ParquetFile, Condition | None]:
        """The file, and the condition that its statistics may be asked about: none if a column is encrypted.

        Opened as if there were keys, a file that is encrypted fails, and another one opens as it does without.
        """
        if condition is not None:
            try:
                return self._open(stream, keyed=True), condition
            except (OSError, ValueError, pa.ArrowException):
                stream.seek(0)
        return self._open(stream), None

    def schema(self, stream: pa.NativeFile, path: str, options: Any, multi_line: bool) -> pa.Schema:
        with closing(self._open(stream)) as file:
            return _readable(file, path)

    def pieces(self, stream: pa.NativeFile, path: str, cut: SplitRequest) -> list[Piece]:
        file, condition = self._open_for(stream, cut.condition)
        with closing(file):
            row_groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
            # Not the sizes of the columns: encrypted ones have none to ask for.
            weights = [max(group.total_byte_size, group.num_rows, 0) for group in row_groups]
            total = sum(weights)
            pieces: list[Piece] = []
            groups: list[int] = []
            rows = nbytes = 0
            for number, (group, weight) in enumerate(zip(row_groups, weights, strict=True)):
                if group.num_rows == 0 or not _may_match(file, number, condition):
                    continue
                groups.append(number)
                rows += group.num_rows
                nbytes += cut.size * weight // total
                if nbytes >= cut.target:
                    pieces.append(Piece({"groups": groups}, rows, nbytes))
                    groups, rows, nbytes = [], 0, 0
            if groups:
                pieces.append(Piece({"groups": groups}, rows, nbytes))
            return pieces

    def batches(
        self, stream: pa.NativeFile, path: str, params: Mapping[str, Any], request: ReadRequest
    ) -> Iterator[pa.RecordBatch]:
        file, condition = self._open_for(stream, request.condition)
        with closing(file):
            readable, julian = _readable(file, path), _julian(file)
            names = pick(request, readable.names)
            for number in params.get("groups", range(file.num_row_groups)):
                if _may_match(file, number, condition):
                    for batch in _group(file, number, list(names), request):
                        valid = checked(batch, request, names, readable, decoded=True)
                        if julian is not None:
                            valid = julian.rebased(valid, request.shown)
                        yield renamed(valid, names)

    def check_times(self, stream: pa.NativeFile, label: str) -> None:
        """Refuse times of which pyiceberg's reader makes others: it holds those of 96 bits in nanoseconds, cuts
        nanoseconds, and takes each day for a Gregorian one.

        Raises:
            SourceError: names the column.
        """
        with closing(self._open(stream)) as file:
            file_schema, readable, julian = file.schema_arrow, _readable(file, label), _julian(file)
            odd = [
                field.name
                for field, plain in zip(file_schema, readable, strict=True)
                if julian is not None
                or not field.type.equals(plain.type)
                or "[ns" in str(field.type)
            ]
            if not odd:
                return
            for number in range(file.num_row_groups):
                for batch in file.iter_batches(row_groups=[number], columns=odd, use_threads=False):
                    batch = picked(batch, odd, label)
                    columns = [
                        as_type(values, readable.field(name).type)
                        for name, values in zip(batch.schema.names, batch.columns, strict=True)
                    ]
                    if julian is not None:
                        julian.check(pa.RecordBatch.from_arrays(columns, names=odd), label)
                    for name, values in zip(odd, columns, strict=True):
                        for leaf in temporal_leaves(values):
                            _check_nanoseconds(leaf, name, label)

    def carries(self, kind: pa.DataType) -> bool:
        types = pa.types
        negative = types.is_decimal(kind) and kind.scale < 0
        empty = types.is_struct(kind) and not kind.num_fields
        return not (types.is_interval(kind) or types.is_union(kind) or negative or empty)

    def extension(self, options: ParquetWriteOptions) -> str:
        codec = options.compression or options.default_codec
        return "parquet" if codec == "none" else f"{codec}.parquet"

    def encoder(self, sink: Sink, schema: pa.Schema, options: ParquetWriteOptions) -> Encoder:
        codec = options.compression or options.default_codec
        # A file's size is known when a row group ends.
        most_bytes = min(
            options.row_group_bytes, options.max_bytes_per_file or options.row_group_bytes
        )
        below = [field.with_type(_below_nullable(field.type)) for field in schema]
        in_file = pa.schema(below, schema.metadata)
        return RowGroupEncoder(
            sink,
            schema,
            options.row_group_rows,
            most_bytes,
            in_file=None if in_file.equals(schema) else in_file,
            compression=codec,
            compression_level=options.compression_level,
        )


def _below_nullable(kind: pa.DataType) -> pa.DataType:
    """With every field of a struct nullable: Arrow's writer refuses a NULL struct whose field is not."""
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct(
            [
                pa.field(
                    field.name, _below_nullable(field.type), nullable=True, metadata=field.metadata
                )
                for field in fields
            ]
        )
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_below_nullable(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(_below_nullable(kind.item_type)))
    return kind


def _readable(file: pq.ParquetFile, path: str) -> pa.Schema:
    """The columns with the types as which they are read."""
    schema = check_types(file.schema_arrow, path)
    numbers = iter(range(len(file.schema)))
    noted = _spark_types(file)

    def as_read(kind: pa.DataType, notes: Notes) -> pa.DataType:
        number = next(numbers, None)
        if number is not None:
            column = file.schema.column(number)
            if column.physical_type == "INT96":
                return INSTANT
            if _has_text(column):
                return pa.string()
            if (spark := as_spark(kind, noted.get(number, ""))) is not None:
                return spark
        return plain_leaf(kind, notes)

    return pa.schema([_with_notes(field, map_leaves(field, as_read)) for field in schema])


def _with_notes(field: pa.Field, target: pa.Field) -> pa.Field:
    """What a write noted of the column's definition."""
    notes = {name: text for name, text in (field.metadata or {}).items() if name in _NOTES}
    return target.with_metadata(notes) if notes else target


def _spark_types(file: pq.ParquetFile) -> dict[int, str]:
    """The types that Spark notes in the footer for leaves, which may be numbers in the file: its intervals."""
    try:
        noted = json.loads((file.metadata.metadata or {}).get(_SPARK_SCHEMA, b"null"))
        columns = {field["name"]: list(_spark_leaves(field["type"])) for field in noted["fields"]}
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
    types: dict[int, str] = {}
    leaves = leaf_columns(file.schema_arrow)
    first = 0
    for position, name in enumerate(file.schema_arrow.names):
        count = leaves.count(position)
        kinds = columns.get(name, [])
        if len(kinds) == count:
            types.update(enumerate(kinds, first))
        first += count
    return types


def _spark_leaves(kind: Any) -> Iterator[str]:
    """The types of a type's leaves, in the order of a file."""
    if isinstance(kind, str):
        yield kind
    elif kind["type"] == "struct":
        for field in kind["fields"]:
            yield from _spark_leaves(field["type"])
    elif kind["type"] == "map":
        yield from _spark_leaves(kind["keyType"])
        yield from _spark_leaves(kind["valueType"])
    else:
        yield from _spark_leaves(kind["elementType" if kind["type"] == "array" else "sqlType"])


def _has_text(column: Any) -> bool:
    """Whether values of a leaf, which are bytes in the file, have a text form."""
    return column.logical_type.type in _TEXTS or column.converted_type in _TEXTS


def _julian(file: pq.ParquetFile) -> Julian | None:
    """What Spark wrote into the footer of its old days, as Spark reads it; None = all days are Gregorian."""
    notes = file.metadata.metadata or {}
    version = notes.get(b"org.apache.spark.version")
    if version is None:
        return None
    written = tuple(map(int, re.findall(rb"\d+", version)[:2]))
    days = written < (3, 0) or b"org.apache.spark.legacyDateTime" in notes
    times = written < (3, 1) or b"org.apache.spark.legacyINT96" in notes
    if not (days or times):
        return None
    names = file.schema_arrow.names
    # A column with both kinds inside is looked at if one of them is of the old calendar.
    old = {
        names[column]
        for number, column in enumerate(leaf_columns(file.schema_arrow))
        if (times if file.schema.column(number).physical_type == "INT96" else days)
    }
    zone = notes.get(b"org.apache.spark.timeZone")
    return Julian(None if zone is None else zone.decode(errors="replace"), old.__contains__)


def _check_nanoseconds(leaf: pa.Array, name: str, label: str) -> None:
    if not pa.types.is_timestamp(leaf.type):
        return
    try:
        leaf.cast(pa.timestamp("ns", leaf.type.tz)).cast(pa.timestamp("us", leaf.type.tz))
    except pa.ArrowInvalid as error:
        raise SourceError(
            f"{label}: column {name!r} holds a time outside of 1677-09-21 to 2262-04-11, or of nanoseconds, which "
            f"cannot be read from Iceberg tables exactly: {error}. Rewrite the data file with Spark"
        ) from error


def _group(
    file: pq.ParquetFile, number: int, columns: list[str], request: ReadRequest
) -> Iterator[pa.RecordBatch]:
    """The batches of a row group: as many rows as the footer says."""
    group = file.metadata.row_group(number)
    rows = 0
    try:
        for batch in file.iter_batches(
            batch_size=batch_rows(request.fetch, group.num_rows, group.total_byte_size),
            row_groups=[number],
            columns=columns,
            use_threads=False,
        ):
            rows += batch.num_rows
            yield picked(batch, columns, request.shown)
    except OSError as error:
        if not (encrypted := [name for name in columns if _is_encrypted(file, number, name)]):
            raise
        raise SourceError(
            f"{request.shown}: column {encrypted[0]!r} is encrypted, and spark-channel has no keys; read the "
            "others with option 'columns', or decrypt the file first"
        ) from error
    if rows != group.num_rows:
        raise SourceError(
            f"{request.shown}: row group {number + 1} has {rows} rows, and the footer says {group.num_rows}. The "
            "file is damaged; write it again"
        )


def _is_encrypted(file: pq.ParquetFile, number: int, column: str) -> bool:
    try:
        next(
            file.iter_batches(
                batch_size=1, row_groups=[number], columns=[column], use_threads=False
            ),
            None,
        )
    except OSError as error:
        return "decrypt" in str(error).lower()
    return False


@cache
def _no_keys() -> tuple[Any, Any]:
    """(their factory, the properties of a reader that asks for keys and gets none)."""
    from pyarrow.parquet import encryption

    class NoKeys(encryption.KmsClient):  # type: ignore[misc] # pyarrow is untyped
        def __init__(self, config: object) -> None:
            super().__init__()

        def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
            raise OSError("there are no keys")

        def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
            raise OSError("there are no keys")

    factory = encryption.CryptoFactory(NoKeys)
    properties = factory.file_decryption_properties(
        encryption.KmsConnectionConfig(), encryption.DecryptionConfiguration()
    )
    return factory, properties


def _may_match(file: pq.ParquetFile, number: int, condition: Condition | None) -> bool:
    return condition is None or condition.may_match(_ranges(file, number, condition.columns))


def _ranges(file: pq.ParquetFile, number: int, columns: frozenset[str]) -> dict[str, ValueRange]:
    """The ranges of top-level columns by a row group's statistics; a column without statistics is omitted."""
    if _julian(file) is not None:
        return {}
    schema, group = file.schema_arrow, file.metadata.row_group(number)
    leaves, noted = file.schema, _spark_types(file)
    ranges = {}
    for index, position in enumerate(leaf_columns(schema)[: min(group.num_columns, len(leaves))]):
        name = schema.names[position]
        if name not in columns or pa.types.is_nested(schema.field(position).type):
            continue
        chunk = group.column(index)
        if chunk.path_in_schema != name or _has_text(leaves.column(index)):
            continue
        if as_spark(schema.field(position).type, noted.get(index, "")) is not None:
            continue
        statistics = chunk.statistics
        if statistics is None:
            continue
        low = high = None
        if statistics.has_min_max:
            kind = schema.field(position).type
            kind = kind.value_type if pa.types.is_dictionary(kind) else kind
            try:
                low, high = exact(statistics.min, kind), exact(statistics.max, kind)
            except pa.ArrowNotImplementedError:  # pyarrow 18 has no bounds of a decimal
                low = high = None
            except (ValueError, TypeError, OverflowError, AttributeError):
                low = high = None
        nulls = statistics.null_count if statistics.has_null_count else None
        ranges[name] = ValueRange(low, high, nulls, group.num_rows)
    return ranges
