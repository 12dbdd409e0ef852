"""Arrow IPC: the file format is split by batch; the stream format is read in order."""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from spark_channel.connectors.files.formats.base import (
    Encoder,
    Format,
    Piece,
    ReadRequest,
    Sink,
    SplitRequest,
    WriterEncoder,
    even_pieces,
    pick,
)
from spark_channel.connectors.files.formats.types import (
    check_types,
    checked,
    map_leaves,
    plain_leaf,
    renamed,
)
from spark_channel.connectors.files.options import ArrowWriteOptions

__all__ = ["ArrowFormat"]

_MAGIC = b"ARROW1"


def _is_file(stream: pa.NativeFile) -> bool:
    start = stream.read(len(_MAGIC))
    stream.seek(0)
    return bool(start == _MAGIC)


def _open(stream: pa.NativeFile, columns: list[int] | None = None) -> Any:
    options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=columns)
    if _is_file(stream):
        return pa.ipc.open_file(stream, options=options)
    return pa.ipc.open_stream(stream, options=options)


def _readable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([map_leaves(field, plain_leaf) for field in schema])


class ArrowFormat(Format):
    name = "arrow"

    def schema(self, stream: pa.NativeFile, path: str, options: Any, multi_line: bool) -> pa.Schema:
        with _open(stream) as reader:
            return _readable(check_types(reader.schema, path))

    def pieces(self, stream: pa.NativeFile, path: str, cut: SplitRequest) -> list[Piece]:
        if not _is_file(stream):
            return [Piece({}, None, cut.size)]
        with _open(stream) as reader:
            return even_pieces("batches", reader.num_record_batches, cut.size, cut.target)

    def batches(
        self, stream: pa.NativeFile, path: str, params: Mapping[str, Any], request: ReadRequest
    ) -> Iterator[pa.RecordBatch]:
        with _open(stream) as reader:
            schema = check_types(reader.schema, path)
        have, readable = schema.names, _readable(schema)
        stream.seek(0)
        names = pick(request, have)
        columns = [have.index(name) for name in names]

        def ready(batch: pa.RecordBatch) -> pa.RecordBatch:
            return renamed(checked(batch, request, names, readable, decoded=False), names)

        with _open(stream, sorted(columns)) as reader:
            if isinstance(reader, pa.ipc.RecordBatchFileReader):
                for number in range(*params.get("batches", (0, reader.num_record_batches))):
                    yield ready(reader.get_batch(number))
            else:
                for batch in reader:
                    yield ready(batch)

    def carries(self, kind: pa.DataType) -> bool:
        return True

    def extension(self, options: ArrowWriteOptions) -> str:
        return "arrow"

    def encoder(self, sink: Sink, schema: pa.Schema, options: ArrowWriteOptions) -> Encoder:
        return _ArrowEncoder(sink, schema, options)


class _ArrowEncoder(WriterEncoder):
    def __init__(self, sink: Sink, schema: pa.Schema, options: ArrowWriteOptions) -> None:
        codec = options.compression or options.default_codec
        compression = None if codec == "none" else pa.Codec(codec, options.compression_level)
        self._writer = pa.ipc.new_file(
            sink,
            schema,
            options=pa.ipc.IpcWriteOptions(
                compression=compression,
                use_threads=False,
                emit_dictionary_deltas=False,
                unify_dictionaries=False,
            ),
        )

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)
