"""The readers of files: one class, and one subclass per format.

Splits name files with size, time of change and the tag of their store, so that a retry reads the same rows or fails: a
file that was changed or removed after it was split is an error.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import pyarrow as pa

from spark_channel.arrow_schema import InexactError, cast_exactly
from spark_channel.connectors import Reader
from spark_channel.connectors.base.feed import ChangeFeed, FeedOptions
from spark_channel.connectors.files.conditions import ValueRange
from spark_channel.connectors.files.file_errors import reading
from spark_channel.connectors.files.filesystem import open_planned
from spark_channel.connectors.files.formats import format_of
from spark_channel.connectors.files.formats.base import (
    Format,
    Piece,
    ReadRequest,
    SplitRequest,
    batch_rows,
)
from spark_channel.connectors.files.listing import SourceFile
from spark_channel.connectors.files.literals import exact
from spark_channel.connectors.files.options import (
    ArrowReadOptions,
    CsvReadOptions,
    FileReadOptions,
    JsonReadOptions,
    OrcReadOptions,
    ParquetReadOptions,
)
from spark_channel.connectors.files.source import SourcePlan, find_files, plan_columns, plan_source
from spark_channel.connectors.files.splits import FilePiece, pack, target_bytes
from spark_channel.connectors.files.versions import PlannedFile, show_file, with_tag, with_tags
from spark_channel.errors import SourceError
from spark_channel.options import ReadOptions
from spark_channel.planning import Split

__all__ = ["ArrowReader", "CsvReader", "FilesReader", "JsonReader", "OrcReader", "ParquetReader"]

_FEW_FILES = 64
"""So many files are looked into on the driver for their row counts, also when too small to be cut."""


class FilesReader(Reader):
    """Reads files of one format. Everything that it remembers is plain data."""

    Options: ClassVar[type[ReadOptions]] = FileReadOptions
    options: Any
    """`FileReadOptions`, or those of a table of files, as Delta has them."""
    format: ClassVar[str]

    @property
    def form(self) -> Format:
        return format_of(self.format)

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._given: pa.Schema | None = None
        self._plan: SourcePlan | None = None
        self._files: list[SourceFile] | None = None

    def with_schema(self, schema: pa.Schema) -> Self:
        """Read with these names and types, which the user gave or `schema()` said.

        Columns are found by name, ignoring case. Those of CSV files are found by their order when the names
        are not in the header and there are as many; other formats give NULL for a column that a file does
        not have.
        """
        if self._plan is None or not self._plan.result.equals(schema):
            self._given, self._plan = schema, None
        return self

    def with_columns(self, columns: pa.Schema) -> Self:
        """Read files that have these columns by their log; no other is looked into."""
        self._plan = plan_columns(self.form, self.options, columns, pa.schema([]), None)
        return self

    def schema(self) -> pa.Schema:
        return self._planned().result

    def _planned(self) -> SourcePlan:
        if self._plan is None:
            files = find_files(self.options)
            self._plan, self._files = plan_source(
                self.form, self.options, files, self._given, own=self.schema_is_own
            )
        return self._plan

    def __getstate__(self) -> dict[str, Any]:
        # Executors get what they read in their splits.
        return {**self.__dict__, "_files": None}

    def split(self, advice: int) -> list[Split]:
        self._planned()
        # The listing that the schema came from is used once; a later read lists again.
        files, self._files = self._files, None
        if files is None:
            files = find_files(self.options)
        return self.split_files(files, advice)

    def split_files(self, files: Sequence[SourceFile], advice: int) -> list[Split]:
        """Splits that cover `files` once, but those that `where` rules out."""
        plan = self._planned()
        files = [file for file in files if self._may_match(file, plan)]
        target = target_bytes(files, advice, self.options.split_bytes)
        cut = [self._pieces(file, target, plan, few=len(files) <= _FEW_FILES) for file in files]
        to_read = [(file, pieces) for file, pieces in cut if pieces]
        tagged = with_tags([file for file, _ in to_read], self.options.login)
        is_text = self.form.text and not self._is_compressed([file for file, _ in to_read])
        splits = pack(
            [
                FilePiece(file, piece)
                for file, (_, pieces) in zip(tagged, to_read, strict=True)
                for piece in pieces
            ],
            target,
        )
        return [replace(split, is_text=is_text) for split in splits]

    def _is_compressed(self, files: Sequence[SourceFile]) -> bool:
        """Whether one of the text files is."""
        from spark_channel.connectors.files.formats.text import codec_of

        return any(codec_of(file.path, self.options.compression) is not None for file in files)

    def feed(self, options: FeedOptions) -> ChangeFeed:
        from spark_channel.connectors.files.feed import FilesFeed

        return FilesFeed(self, options)

    def columns_of(self, file: SourceFile) -> pa.Schema | None:
        """The columns that `file` says it has; None where only reading all of it would show them (JSON lines)."""
        if self.form.name == "json":
            return None
        if self.form.text and file.written is not None:
            return file.written[0]
        options = self._planned().as_written(self.options, None)
        with reading(show_file(file.root, file.path)), self._open(file) as stream:
            return self.form.schema(stream, file.path, options, multi_line=False)

    def _open(self, file: SourceFile) -> pa.NativeFile:
        return open_planned(file.root, file.path, self.options.login)

    def file_columns(self) -> pa.Schema:
        """The columns that files are expected to have."""
        return self._planned().files

    def _may_match(self, file: SourceFile, plan: SourcePlan) -> bool:
        if plan.condition is None or not file.partition:
            return True
        ranges = {}
        for name, scalar in plan.folder_values(file.partition).items():
            kind, value = scalar.type, scalar.as_py()
            with contextlib.suppress(ValueError, TypeError):
                rank = None if value is None else exact(value, kind)
                ranges[name] = ValueRange(rank, rank, int(value is None), 1)
        return plan.condition.may_match(ranges)

    def _pieces(
        self, file: SourceFile, target: int, plan: SourcePlan, *, few: bool
    ) -> tuple[SourceFile, list[Piece]]:
        """The file in pieces, and with its tag if it was looked into."""
        rows = file.listed.rows if file.listed else None
        if rows == 0 or (file.size == 0 and self.form.text):
            return file, []
        if file.listed and file.listed.multi_line and self.form.text:
            return file, [Piece({"multi_line": True}, rows, file.size)]
        if file.size <= target and not few:
            return file, [Piece({}, rows, file.size)]
        with reading(show_file(file.root, file.path)), self._open(file) as stream:
            file = with_tag(file, stream, self.options.login)
            options = plan.as_written(self.options, file.written[1] if file.written else None)
            cut = SplitRequest(file.size, target, options, plan.condition)
            pieces = self.form.pieces(stream, file.path, cut)
        if rows is None:
            return file, pieces
        # The rows that a manifest counted are shared out where the format itself does not count.
        return file, [
            piece
            if piece.rows is not None
            else replace(piece, rows=rows * piece.nbytes // file.size)
            for piece in pieces
        ]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        plan = self._planned()
        for piece in split.params["pieces"]:
            yield from self._read_piece(piece, plan)

    def _read_piece(self, piece: Mapping[str, Any], plan: SourcePlan) -> Iterator[pa.RecordBatch]:
        planned = PlannedFile.from_params(piece)
        label, login = planned.shown, self.options.login
        written = piece.get("written")
        has = plan.columns_of(written["names"] if written and self.form.name == "csv" else None)
        needed = plan.needed()
        request = ReadRequest(
            schema=pa.schema(
                [field for field in needed if field.name in has.names] or list(has)[:1]
            ),
            all=has,
            options=plan.as_written(self.options, written["dialect"] if written else None),
            fetch=self.fetch_size,
            condition=plan.condition,
            shown=label,
            strict=plan.strict and written is None,
            inferred=plan.inferred and written is None,
        )
        partition = plan.folder_values(piece["partition"])
        with reading(label):
            stream = planned.open(login)
        batches = self.form.batches(stream, piece["path"], piece["piece"], request)
        try:
            while True:
                try:
                    with reading(label):
                        batch = next(batches, None)
                    rows_left = None if batch is None else _result(batch, plan, partition, label)
                except SourceError:
                    planned.explain(login)
                    raise
                if rows_left is None:
                    with reading(label):
                        planned.check_unchanged(login)
                    return
                rows = (
                    batch_rows(self.fetch_size, rows_left.num_rows, rows_left.nbytes)
                    if rows_left.num_rows
                    else 1
                )
                for start in range(0, rows_left.num_rows, rows):
                    yield rows_left.slice(start, rows)
        finally:
            with contextlib.suppress(pa.ArrowException, OSError):
                batches.close()  # type: ignore[attr-defined] # a generator
            stream.close()


def _result(
    batch: pa.RecordBatch, plan: SourcePlan, partition: Mapping[str, pa.Scalar], label: str
) -> pa.RecordBatch:
    """The batch with all columns that are needed, filtered, then only those of the result."""
    schema_there = plan.files if plan.found is None else plan.found

    def column(field: pa.Field) -> pa.Array:
        values = nullable(field)
        if not field.nullable and values.null_count:
            raise SourceError(
                f"{label}: column {field.name!r} is NULL or not there, and its schema is NOT NULL. Give a schema in "
                "which it may be NULL; if the file itself says NOT NULL, it is damaged: write it again"
            )
        return values

    def nullable(field: pa.Field) -> pa.Array:
        if field.name in plan.partitions.names:
            return pa.repeat(partition.get(field.name, pa.scalar(None, field.type)), batch.num_rows)
        number = batch.schema.get_field_index(field.name)
        if number < 0:
            return pa.nulls(batch.num_rows, field.type)
        values = batch.column(number)
        if values.type.equals(field.type):
            return values
        type_there = values.type
        try:
            values = cast_exactly(
                values, schema_there.field(field.name).type, declared=plan.found is None
            )
            # The host of a read may want its own types, such as Spark's for unsigned numbers.
            return cast_exactly(values, field.type, declared=True)
        except InexactError as error:
            raise SourceError(
                f"{label}: column {field.name!r} is {type_there} there and does not fit {field.type}: {error}. "
                "Read such files apart from the others, or give a schema whose type holds the values of all"
            ) from error

    condition = plan.condition
    if condition is not None and condition.columns:
        everything = pa.schema([*plan.files, *plan.partitions])
        condition_fields = [everything.field(name) for name in sorted(condition.columns)]
        tested = pa.RecordBatch.from_arrays(
            [column(field) for field in condition_fields], schema=pa.schema(condition_fields)
        )
        batch = batch.filter(condition.mask(tested))
    elif condition is not None and not condition.may_match({}):
        batch = batch.slice(0, 0)
    return pa.RecordBatch.from_arrays([column(field) for field in plan.result], schema=plan.result)


class ParquetReader(FilesReader):
    """Parquet files, split and pruned by row group."""

    Options = ParquetReadOptions
    format = "parquet"


class CsvReader(FilesReader):
    """CSV files, split by byte ranges at line starts."""

    Options = CsvReadOptions
    format = "csv"


class JsonReader(FilesReader):
    """Files of JSON lines, split by byte ranges at line starts."""

    Options = JsonReadOptions
    format = "json"


class ArrowReader(FilesReader):
    """Arrow IPC files, split by batch."""

    Options = ArrowReadOptions
    format = "arrow"


class OrcReader(FilesReader):
    """ORC files, split by stripe."""

    Options = OrcReadOptions
    format = "orc"
