"""Writes each task as one load. Its label is the task's, so that a load that is sent again counts once."""

import hashlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any, ClassVar
from urllib.parse import urlsplit

import pyarrow as pa

from spark_channel.connectors.base.contract import (
    Receipt,
    RowTally,
    TaskWriter,
    WriteContext,
    WritePlan,
)
from spark_channel.connectors.files.file_names import new_attempt
from spark_channel.connectors.records.conversion import json_text
from spark_channel.connectors.records.direct_writer import DirectWriter, RecordTask, Sink
from spark_channel.connectors.stream_load.client import Busy, Load, run, table_columns
from spark_channel.connectors.stream_load.options import StreamLoadOptions
from spark_channel.errors import OptionError, SchemaError, TargetError
from spark_channel.lazy import compute as pc
from spark_channel.options import WriteOptions
from spark_channel.plain_text import log_of
from spark_channel.retry import Retry

__all__ = [
    "HEADERS",
    "StreamLoadWriter",
    "check_types",
    "digest",
    "encoded",
]


# Stream Load's text: columns between \x01, rows between \x02, NULL as \N.
_COLUMN, _ROW, _NULL = "\x01", "\x02", r"\N"
# The end of a row is `line_delimiter` in Doris and `row_delimiter` in StarRocks; each ignores the other's.
HEADERS = {
    "format": "csv",
    "column_separator": r"\x01",
    "row_delimiter": r"\x02",
    "line_delimiter": r"\x02",
}
_log = log_of(__name__)
_IN_MEMORY = 16 << 20


def check_types(schema: pa.Schema) -> None:
    """
    Raises:
        SchemaError: a type that has no text there.
    """
    types = pa.types
    for field in schema:
        kind = field.type
        if (
            types.is_binary(kind)
            or types.is_large_binary(kind)
            or types.is_duration(kind)
            or types.is_map(kind)
        ):
            raise SchemaError(
                f"column {field.name!r} of type {kind} has no text in a Stream Load; cast it to a string, such as hex()"
            )


def encoded(batch: pa.RecordBatch, zone: str) -> tuple[bytes, list[tuple[int, str]]]:
    """The text of the rows, and those that have none: (number, why)."""
    texts = [_text(array, zone) for array in batch.columns]
    refused: dict[int, str] = {}
    for field, column, text in zip(batch.schema, batch.columns, texts, strict=True):
        if (
            pa.types.is_string(column.type)
            or pa.types.is_large_string(column.type)
            or pa.types.is_nested(column.type)
        ):
            bad = pc.or_(pc.match_substring_regex(text, "[\x01\x02]"), pc.equal(text, _NULL))
            for number in pc.indices_nonzero(pc.fill_null(bad, False)).to_pylist():
                refused.setdefault(
                    number,
                    f"column {field.name!r}: a text with \\x01 or \\x02 in it, or \\N, which means NULL there",
                )
    whole = [pc.fill_null(text, _NULL) for text in texts]
    lines = pc.binary_join_element_wise(*whole, _COLUMN) if len(whole) > 1 else whole[0]
    if len(whole) == 1:
        for number in pc.indices_nonzero(pc.equal(lines, "")).to_pylist():
            refused.setdefault(
                number,
                f"column {batch.schema.names[0]!r}, the only one: an empty text is an empty line, which the server "
                "leaves out; load another column with it",
            )
    if refused:
        good = [number for number in range(batch.num_rows) if number not in refused]
        lines = lines.take(pa.array(good, pa.int64()))
    data = "".join(f"{line}{_ROW}" for line in lines.to_pylist()).encode()
    return data, sorted(refused.items())


def digest(data: bytes) -> int:
    """A number of the rows of `data`, whatever their order; add those of its parts, modulo 2 ** 128."""
    rows = data.split(_ROW.encode())[:-1]
    return sum(int.from_bytes(hashlib.blake2b(row, digest_size=16).digest(), "big") for row in rows)


def _text(array: pa.Array, zone: str) -> pa.Array:
    kind, types = array.type, pa.types
    if types.is_dictionary(kind):
        return _text(array.dictionary_decode(), zone)
    if types.is_boolean(kind):
        return pc.if_else(array, "1", "0")
    if types.is_timestamp(kind):
        moment = array.cast(pa.timestamp("us", kind.tz))
        if kind.tz:
            moment = pc.local_timestamp(moment.cast(pa.timestamp("us", zone)))
        return moment.cast(pa.string())
    if types.is_nested(kind):
        return pa.array(
            [None if value is None else json_text(value) for value in array.to_pylist()],
            pa.string(),
        )
    return array.cast(pa.string())


@dataclass(frozen=True)
class LoadPlan(WritePlan):
    """`label`: the beginning of the labels of all tasks.

    `by_rows`: labels include a hash of the task's rows. When a stream's batch runs again, it may be cut into other
    tasks, and a task must not use the label of other rows.
    """

    label: str = ""
    by_rows: bool = False


class StreamLoadWriter(DirectWriter):
    """See `StreamLoadOptions`."""

    Options: ClassVar[type[WriteOptions]] = StreamLoadOptions
    options: StreamLoadOptions

    def exists(self) -> bool | None:
        return True  # a load cannot make a table

    def resource_mark(self) -> str | None:
        return urlsplit(self.options.frontends[0]).netloc.rpartition("@")[2]

    def begin(self) -> None:
        if self.options.start_sql:
            run(self.options, self.options.start_sql)

    def check(self, schema: pa.Schema) -> None:
        check_types(schema)
        strange = next(
            (name for name in schema.names if "`" in name or "," in name or not name.isprintable()),
            None,
        )
        if strange is not None or not schema.names:
            raise SchemaError(f"column {strange!r} cannot be named in a load; rename it")

    def probe(self, *, empty: bool) -> None:
        if empty and self.options.query_server is None:
            raise OptionError(
                "an overwrite empties the table by SQL: name where it is asked in 'queryServer', "
                "such as fe:9030, or append",
                option="queryServer",
            )
        self._columns()
        if empty:
            run(
                self.options, [f"TRUNCATE TABLE `{self.options.database}`.`{self.options.dbtable}`"]
            )

    def _columns(self) -> list[str] | None:
        try:
            return Retry(self.options.retry_timeout, what=f"asking {self.options.address}").call(
                lambda: table_columns(Load(self.options)), lambda error: isinstance(error, Busy)
            )
        except Busy as error:
            raise TargetError(f"{self.options.address}: {error}; check 'url'") from error

    def prepare(self, context: WriteContext, schema: pa.Schema) -> WritePlan:
        plan = super().prepare(context, schema)
        columns = self._columns()
        lowered = None if columns is None else {name.lower() for name in columns}
        missing = [
            name for name in schema.names if lowered is not None and name.lower() not in lowered
        ]
        if missing:
            raise SchemaError(
                f"{self.options.address} has no column {missing[0]!r}; it has {', '.join(columns or ())}: "
                "rename the column, or select those of the table"
            )
        # Each batch of a stream has its own labels, also when the query is started again.
        name = json.dumps([plan.job, context.stream, self.options.address])
        label = f"spark_channel_{hashlib.sha256(name.encode()).hexdigest()[:24]}"
        by_rows = context.stream is not None
        return LoadPlan(plan.job, schema, "task", context.overwrite, label=label, by_rows=by_rows)

    def connect(self, schema: pa.Schema) -> Sink:
        raise NotImplementedError("rows are sent when a task ends")

    def open(self, plan: WritePlan, task: int, attempt: int) -> TaskWriter:
        assert isinstance(plan, LoadPlan)
        return _LoadTask(self.options, plan, RowTally(task, attempt))

    def commit(self, plan: WritePlan, receipts: Sequence[Receipt]) -> None:
        if self.options.end_sql:
            run(self.options, self.options.end_sql)


class _LoadTask(RecordTask):
    """Keeps the rows of an attempt in a file until it ends, so that they can be sent again."""

    def __init__(self, options: StreamLoadOptions, plan: LoadPlan, tally: RowTally) -> None:
        super().__init__(tally, options.batch_size)
        self._options, self._schema = options, plan.schema
        self._label, self._by_rows, self._rows = f"{plan.label}_{tally.task}", plan.by_rows, 0
        self._unique = new_attempt()
        self._loads, self._size = 0, 0
        self._file: IO[bytes] = self._empty()

    def _empty(self) -> Any:
        return tempfile.SpooledTemporaryFile(_IN_MEMORY, prefix="spark-channel-")

    def _send(self, batch: pa.RecordBatch) -> None:
        data, refused = encoded(batch, self._options.time_zone)
        self._check_allowed(batch, refused, "{} cannot be loaded")
        if self._size and self._size + len(data) > self._options.max_bytes_per_load:
            self._load(f"{self._label}_{self._tally.attempt}_{self._unique}_{self._loads}")
            if self._loads == 1:
                _log.warning(
                    "task %d has more than %d bytes ('maxBytesPerLoad'): "
                    "it is written in several loads, which an attempt that Spark starts again writes again",
                    self._tally.task,
                    self._options.max_bytes_per_load,
                )
        self._file.write(data)
        self._size += len(data)
        if self._by_rows:
            self._rows = (self._rows + digest(data)) % (1 << 128)
        self._accept(batch, refused)

    def _load(self, label: str) -> None:
        options = self._options
        names = ",".join(f"`{name}`" for name in self._schema.names)
        headers = {**options.headers, **HEADERS, "columns": names}
        retry = Retry(options.retry_timeout, what=f"loading into {options.address}")
        load = Load(options)
        try:
            retry.call(
                lambda: load.send(label, headers, self._file, self._size),
                lambda error: isinstance(error, Busy),
            )
        except Busy as error:
            raise TargetError(
                f"{options.address}: the load {label} was attempted for {options.retry_timeout:g} s ('retryTimeout'): "
                f"{error}. Whether its rows are loaded is not known: another attempt of the task uses the same label, "
                "and loads them once"
            ) from error
        self._loads += 1
        self._file.close()
        self._file, self._size = self._empty(), 0

    def close(self) -> Receipt:
        self._tally.check_open()
        if self._size:
            whole = f"{self._label}_{self._rows:032x}" if self._by_rows else self._label
            part = f"{self._label}_{self._tally.attempt}_{self._unique}_{self._loads}"
            self._load(part if self._loads else whole)
        receipt = self._tally.receipt(loads=self._loads)
        self._file.close()
        return receipt

    def rollback(self) -> None:
        self._tally.ended = True
        self._file.close()
