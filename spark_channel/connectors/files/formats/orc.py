"""ORC: split and read by stripe. Times have nanoseconds in ORC, and are read as microseconds."""

import io
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import orc

from spark_channel.connectors.files.formats.base import (
    Encoder,
    Format,
    Piece,
    ReadRequest,
    SplitRequest,
    WriterEncoder,
    even_pieces,
    pick,
)
from spark_channel.connectors.files.formats.checked import check_types, checked
from spark_channel.connectors.files.options import OrcWriteOptions
from spark_channel.errors import TargetError

__all__ = ["OrcFormat"]


class OrcFormat(Format):
    name = "orc"
    refusal = "cannot be carried by ORC; cast it first"

    def schema(self, opened: pa.NativeFile, path: str, options: Any, multi_line: bool) -> pa.Schema:
        return _in_micros(check_types(orc.ORCFile(opened).schema, path))

    def pieces(self, opened: pa.NativeFile, path: str, cut: SplitRequest) -> list[Piece]:
        file = orc.ORCFile(opened)
        return even_pieces("stripes", file.nstripes, cut.size, cut.target, file.nrows)

    def batches(
        self, opened: pa.NativeFile, path: str, params: Mapping[str, Any], wanted: ReadRequest
    ) -> Iterator[pa.RecordBatch]:
        file = orc.ORCFile(opened)
        columns = pick(wanted.schema.names, file.schema.names)
        for number in range(*params.get("stripes", (0, file.nstripes))):
            yield checked(file.read_stripe(number, columns), wanted, decoded=True)

    def carries(self, kind: pa.DataType) -> bool:
        types = pa.types
        if types.is_timestamp(kind):
            return bool(kind.tz in (None, "UTC"))
        if types.is_nested(kind):
            return bool(types.is_struct(kind) or types.is_map(kind) or types.is_list(kind))
        return bool(
            types.is_boolean(kind)
            or types.is_signed_integer(kind)
            or types.is_float32(kind)
            or types.is_float64(kind)
            or types.is_string(kind)
            or types.is_binary(kind)
            or types.is_date32(kind)
            or (types.is_decimal128(kind) and kind.scale >= 0)
        )

    def extension(self, options: OrcWriteOptions) -> str:
        codec = options.compression or "zstd"
        return "orc" if codec == "none" else f"{codec}.orc"

    def encoder(self, sink: Any, schema: pa.Schema, options: OrcWriteOptions) -> Encoder:
        return _OrcEncoder(sink, schema, options)


class _NonRaisingSink(io.RawIOBase):
    """A sink that never raises: an error in one ends the process inside the ORC library.

    The first error is kept for `check`, and later batches are dropped.
    """

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self._error: Exception | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self._error is None:
            try:
                self._sink.write(data)
            except Exception as error:
                self._error = error
        return len(data)

    def check(self) -> None:
        if self._error is not None:
            raise self._error


class _OrcEncoder(WriterEncoder):
    def __init__(self, sink: Any, schema: pa.Schema, options: OrcWriteOptions) -> None:
        self._schema = schema
        self._zoned = [
            number for number, field in enumerate(schema) if pa.types.is_timestamp(field.type)
        ]
        codec = options.compression or "zstd"
        self._sink = _NonRaisingSink(sink)
        self._writer = orc.ORCWriter(
            self._sink,
            compression="uncompressed" if codec == "none" else codec,
            stripe_size=options.stripe_bytes,
        )
        self._empty = True

    def write(self, batch: pa.RecordBatch) -> None:
        for number in self._zoned:
            _check_range(self._schema.field(number).name, batch.column(number))
        self._writer.write(pa.Table.from_batches([batch]))
        self._sink.check()
        self._empty = False

    def finish(self) -> None:
        if self._empty:
            self._writer.write(self._schema.empty_table())
        super().finish()
        self._sink.check()


_LIMIT_SECONDS = 2**63 // 10**9


def _check_range(name: str, values: pa.Array) -> None:
    """Arrow's ORC reader holds times in 64-bit nanoseconds: 1677 to 2262."""
    edges = pc.min_max(
        pc.cast(values, pa.timestamp("s", values.type.tz), safe=False).cast(pa.int64())
    )
    for edge in (edges["min"].as_py(), edges["max"].as_py()):
        if edge is not None and abs(edge) >= _LIMIT_SECONDS - 1:
            raise TargetError(
                f"column {name!r} holds a time outside of 1677-09-21 to 2262-04-11, which ORC files "
                "cannot give back; write Parquet, or cast the column to text"
            )


def _in_micros(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_type(_micros(field.type)).remove_metadata() for field in schema])


def _micros(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([field.with_type(_micros(field.type)) for field in fields])
    if pa.types.is_map(kind):
        return pa.map_(_micros(kind.key_type), _micros(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_micros(kind.value_type)))
    return kind
