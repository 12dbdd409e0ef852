"""The interface of a file format: how its files are split, read and written."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from spark_channel.arrow_schema import match_names
from spark_channel.connectors import FetchSize
from spark_channel.connectors.files.conditions import Condition
from spark_channel.connectors.files.manifest import Dialect
from spark_channel.errors import SchemaError

__all__ = [
    "BATCH_BYTES",
    "BATCH_ROWS",
    "Encoder",
    "Format",
    "Piece",
    "ReadRequest",
    "Sink",
    "SplitRequest",
    "WriterEncoder",
    "batch_rows",
    "even_pieces",
    "inner_types",
    "pick",
    "spans",
    "walk_types",
]

BATCH_ROWS = 65_536
BATCH_BYTES = 8 << 20


class Sink(Protocol):
    """An open binary stream."""

    def write(self, data: bytes, /) -> object: ...


@dataclass(frozen=True)
class SplitRequest:
    """How a file of `size` bytes is split: into pieces of about `target` bytes, with these options."""

    size: int
    target: int
    options: Any
    condition: Condition | None


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one file that is read in one go; `params` is plain data for the format itself."""

    params: Mapping[str, Any]
    rows: int | None
    nbytes: int


@dataclass(frozen=True)
class ReadRequest:
    """The request of a read for one file.

    `schema`: the columns to bring, typed as they should be (columnar formats bring their own types).
    `all`: every column of the source, in its order (text formats need it).
    `strict`: a field that `all` does not have is an error.
    `inferred`: the types come from a sample, so a number that one would change is an error.
    """

    schema: pa.Schema
    all: pa.Schema
    options: Any
    fetch: FetchSize
    condition: Condition | None
    shown: str
    strict: bool = False
    inferred: bool = False


class Encoder(ABC):
    """Writes one file. Ends with `finish`; the sink is closed by its owner.

    `multi_line`: a value that was written holds a line end, so the file cannot be cut at line ends.
    """

    multi_line = False

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None: ...

    @abstractmethod
    def finish(self) -> None:
        """Write what is still held, and the file's end."""

    def abandon(self) -> None:  # noqa: B027 - optional: most encoders have nothing to let go of
        """Let go of the sink, which is about to be dropped. Never raises."""


class WriterEncoder(Encoder):
    """An encoder round a pyarrow writer, which holds on to the sink until it is closed."""

    _writer: Any

    def finish(self) -> None:
        self._writer.close()

    def abandon(self) -> None:
        try:
            self._writer.close()
        except (OSError, ValueError, pa.ArrowException):
            pass  # the file is dropped, with the rows that it could not write


class Format(ABC):
    """Stateless. `opened` is a `pyarrow.NativeFile` at its start, closed by the caller.

    `refusal`: what `check` says of a type that `carries` denies, and what to do about it.
    """

    name: ClassVar[str]
    text: ClassVar[bool] = False
    refusal: ClassVar[str]

    @abstractmethod
    def schema(self, stream: pa.NativeFile, path: str, options: Any, multi_line: bool) -> pa.Schema:
        """The columns of one file. `multi_line`: it is known to hold line ends in values."""

    @abstractmethod
    def pieces(self, stream: pa.NativeFile, path: str, cut: SplitRequest) -> list[Piece]:
        """The file in pieces of about `cut.target` bytes; without those that `cut.condition` rules out."""

    @abstractmethod
    def batches(
        self, stream: pa.NativeFile, path: str, params: Mapping[str, Any], request: ReadRequest
    ) -> Iterator[pa.RecordBatch]:
        """The batches of one piece, before `condition`: the wanted columns that the file has, named as in `request`."""

    @abstractmethod
    def carries(self, kind: pa.DataType) -> bool:
        """Whether a file gives back such values exactly. Asked for each type inside a nested one, too."""

    def check(self, schema: pa.Schema, options: Any) -> None:
        """Refuse what a file cannot carry exactly.

        Raises:
            SchemaError: names the column and its type.
        """
        for column, path, kind in walk_types(schema):
            if not self.carries(kind):
                raise SchemaError(f"column {column!r} ({path}: {kind}) {self.refusal}")

    @abstractmethod
    def extension(self, options: Any) -> str:
        """The ending of a file's name, without the first dot."""

    @abstractmethod
    def encoder(self, sink: Sink, schema: pa.Schema, options: Any) -> Encoder:
        """Begin a file in `sink`."""

    def dialect(self, options: Any) -> Dialect:
        """The settings with which a reader reads back the files of `encoder`."""
        return {}


def batch_rows(fetch: FetchSize, rows: int | None, nbytes: int | None) -> int:
    """Rows of a batch, from the limit and the mean size of a row (`nbytes` / `rows`)."""
    row_count = min(fetch.rows or BATCH_ROWS, BATCH_ROWS)
    if rows and nbytes:
        row_count = min(row_count, (fetch.nbytes or BATCH_BYTES) * rows // nbytes)
    return max(1, row_count)


def pick(request: ReadRequest, have: Sequence[str]) -> dict[str, str]:
    """The names of a file's columns that are wanted -> their names in the source.

    At least one, since rows without a column could not be counted. All columns of the source are matched: one of them
    that is not wanted may be the one that the file has.
    """
    matched = match_names(request.all.names, have, request.shown)
    names = {matched[name]: name for name in request.schema.names if name in matched}
    return names or {name: name for name in have[:1]}


def spans(count: int, size: int, target: int) -> list[tuple[int, int]]:
    """`count` equal parts that have `size` bytes together, as (first, end) runs of about `target` bytes."""
    if count == 0:
        return []
    runs = max(1, min(count, -(-size // max(1, target))))
    edges = [count * number // runs for number in range(runs + 1)]
    return list(pairwise(edges))


def even_pieces(
    unit: str, count: int, size: int, target: int, rows: int | None = None
) -> list[Piece]:
    """A file of `count` units (stripes, batches) and `size` bytes, in runs of about `target` bytes."""
    return [
        Piece(
            {unit: [first, end]},
            None if rows is None else rows * (end - first) // count,
            size * (end - first) // count,
        )
        for first, end in spans(count, size, target)
    ]


def walk_types(schema: pa.Schema) -> Iterator[tuple[str, str, pa.DataType]]:
    """(column, path inside it, type) of every type in `schema`, nested ones included.

    Raises:
        SchemaError: two columns of one name.
    """
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise SchemaError(f"column {name!r} occurs more than once; rename one of them")
    for field in schema:
        for path, kind in inner_types(field.name, field.type):
            yield field.name, path, kind


def inner_types(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """(path, type) of `kind` and of every type inside it."""
    yield path, kind
    if pa.types.is_dictionary(kind):
        yield from inner_types(path, kind.value_type)
    elif pa.types.is_map(kind):
        yield from inner_types(f"{path}.key", kind.key_type)
        yield from inner_types(f"{path}.value", kind.item_type)
    elif pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            inner = kind.field(number)
            yield from inner_types(f"{path}.{inner.name}", inner.type)
    elif pa.types.is_nested(kind) and hasattr(kind, "value_type"):
        yield from inner_types(f"{path}.element", kind.value_type)
