"""The readers that are compared: spark-channel's, and others that share no code with it.

Each returns what it found as `Found`, or raises `Unable` where the other reader refuses the input itself.
"""

import bz2
import datetime as dt
import decimal
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import duckdb
import pyarrow as pa

from spark_channel.connectors import FetchSize, Reader, load_reader
from tests.behaviour.differential.tables import Column, Found, from_arrow, kind_of, number, of_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "Unable",
    "arrow_file",
    "changed_texts",
    "channel",
    "channel_table",
    "csv_file",
    "delta_log",
    "duckdb_query",
    "duckdb_reads",
    "json_file",
    "json_lines",
    "pyorc_reads",
    "spark_reads",
    "text_rows",
]

_EPOCH = dt.date(1970, 1, 1)


class Unable(Exception):  # noqa: N818 - the other reader's refusal says nothing about ours
    """The other reader cannot judge this input."""


# spark-channel


def channel_table(
    options: Mapping[str, Any],
    *,
    splits: int = 1,
    fetch: FetchSize | None = None,
    schema: pa.Schema | None = None,
) -> pa.Table:
    """All rows in the order of the splits, as a job reads them.

    Raises:
        ChannelError: the reader refuses the source.
    """
    reader, _ = load_reader(options)
    schema = schema or reader.schema()
    reader = reader.with_schema(schema)
    if fetch is not None:
        reader.fetch_size = fetch
    with reader.hold():
        return pa.Table.from_batches(list(_batches(reader, splits)), schema)


def _batches(reader: Reader, splits: int) -> Iterator[pa.RecordBatch]:
    for split in reader.split(splits):
        yield from reader.read(split)


def channel(
    options: Mapping[str, Any],
    *,
    splits: int = 1,
    fetch: FetchSize | None = None,
    schema: pa.Schema | None = None,
) -> Found:
    return from_arrow(channel_table(options, splits=splits, fetch=fetch, schema=schema))


# DuckDB


def duckdb_query(query: str, database: str = ":memory:") -> Found:
    with duckdb.connect(database, config={"threads": 1}) as connection:
        try:
            connection.execute("SET TimeZone = 'UTC'")
            relation = connection.sql(query)
            own = [str(kind) for kind in relation.types]
            found = from_arrow(relation.to_arrow_table())
        except (duckdb.Error, pa.ArrowException) as error:
            raise Unable(f"DuckDB: {error}") from error
    return Found(
        tuple(
            Column(column.name, _DUCKDB_KINDS.get(kind, column.kind), column.values)
            for column, kind in zip(found.columns, own, strict=True)
        )
    )


_DUCKDB_KINDS = {
    name: name.lower()
    for name in (
        "HUGEINT",
        "UHUGEINT",
        "INTERVAL",
        "BIT",
        "VARIANT",
        "GEOMETRY",
        "TIME WITH TIME ZONE",
    )
}


def duckdb_reads(form: str, path: Path | str, **options: Any) -> Found:
    """A Parquet, CSV or JSON file; `options` are those of DuckDB's function."""
    name = {"parquet": "read_parquet", "csv": "read_csv", "json": "read_ndjson"}[form]
    given = "".join(f", {key}={_literal(value)}" for key, value in options.items())
    return duckdb_query(f"SELECT * FROM {name}({_literal(str(path))}{given})")


def _literal(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(k)}: {_literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, bool | int):
        return str(value).lower()
    return "'" + str(value).replace("'", "''") + "'"


# ORC


def pyorc_reads(path: Path | str) -> Found:
    import pyorc

    converters: dict[Any, Any] = {
        pyorc.TypeKind.DATE: _OrcDays,
        pyorc.TypeKind.TIMESTAMP: _OrcTimes,
        pyorc.TypeKind.TIMESTAMP_INSTANT: _OrcTimes,
    }
    with Path(path).open("rb") as file:
        try:
            reader = pyorc.Reader(file, struct_repr=pyorc.StructRepr.TUPLE, converters=converters)
            schema: Any = reader.schema  # its stubs know no `fields`
            fields = schema.fields
            rows = [
                [_orc_value(kind, value) for kind, value in zip(fields.values(), row, strict=True)]
                for row in reader
            ]
        except (pyorc.ParseError, AttributeError, NotImplementedError, ValueError) as error:
            raise Unable(f"pyorc: {error}") from error
    return of_rows(fields, map(_orc_kind, fields.values()), rows)


class _OrcDays:
    @staticmethod
    def from_orc(days: int) -> int:
        return days

    @staticmethod
    def to_orc(value: int) -> int:
        return value


class _OrcTimes:
    @staticmethod
    def from_orc(seconds: int, nanoseconds: int, _zone: object) -> int:
        return seconds * 10**9 + nanoseconds

    @staticmethod
    def to_orc(value: int, _zone: object) -> tuple[int, int]:
        return divmod(value, 10**9)


_ORC_KINDS = {
    "BOOLEAN": "bool",
    "BYTE": "int8",
    "SHORT": "int16",
    "INT": "int32",
    "LONG": "int64",
    "FLOAT": "float32",
    "DOUBLE": "float64",
    "STRING": "text",
    "CHAR": "text",
    "VARCHAR": "text",
    "BINARY": "binary",
    "DATE": "date",
    "TIMESTAMP": "timestamp",
    "TIMESTAMP_INSTANT": "instant",
}


def _orc_kind(kind: Any) -> str:
    name = str(kind.kind.name)
    if name == "DECIMAL":
        return f"decimal({kind.precision},{kind.scale})" if kind.precision else "decimal(38,6)"
    if name == "LIST":
        return f"list<{_orc_kind(kind.type)}>"
    if name == "MAP":
        return f"map<{_orc_kind(kind.key)},{_orc_kind(kind.value)}>"
    if name == "STRUCT":
        return (
            f"struct<{','.join(f'{key}:{_orc_kind(each)}' for key, each in kind.fields.items())}>"
        )
    return _ORC_KINDS.get(name, name.lower())


def _orc_value(kind: Any, value: Any) -> Any:
    if value is None:
        return None
    name = kind.kind.name
    if name in ("FLOAT", "DOUBLE"):
        return number(value)
    if name == "LIST":
        return [_orc_value(kind.type, each) for each in value]
    if name == "MAP":
        return [
            (_orc_value(kind.key, key), _orc_value(kind.value, each)) for key, each in value.items()
        ]
    if name == "STRUCT":
        return tuple(
            _orc_value(each, part) for each, part in zip(kind.fields.values(), value, strict=True)
        )
    return value


# Text


def text_rows(
    text: str,
    *,
    sep: str = ",",
    quote: str = '"',
    escape: str = "\\",
    header: bool = True,
    null: str = "",
) -> Found:
    """A CSV file by a parser of single characters: each value is text, an empty one without quotes is NULL.

    Raises:
        Unable: a quote that does not close, or a row that is longer or shorter than the first.
    """
    rows: list[list[str | None]] = []
    row: list[str | None] = []
    value, quoted, inside, at, blank = "", False, False, 0, True

    def end_value() -> None:
        nonlocal value, quoted
        row.append(value if quoted or value not in ("", null) else None)
        value, quoted = "", False

    def end_row() -> None:
        nonlocal row, blank
        end_value()
        if not blank:
            rows.append(row)
        row, blank = [], True

    while at < len(text):
        c, after = text[at], text[at + 1 : at + 2]
        at += 1
        if inside:
            if c == escape and escape != quote and after in (quote, escape) and after:
                value, at = value + after, at + 1
            elif c == quote and after == quote:
                value, at = value + quote, at + 1
            elif c == quote:
                inside = False
            else:
                value += c
        elif c == quote and not value and not quoted:
            inside, quoted, blank = True, True, False
        elif c == sep:
            blank = False
            end_value()
        elif c in "\r\n":
            at += c == "\r" and after == "\n"
            end_row()
        else:
            value, blank = value + c, False
    if inside:
        raise Unable("a quote is not closed")
    if value or quoted or row:
        end_row()
    if not rows:
        return Found(())
    width = len(rows[0])
    if any(len(each) != width for each in rows):
        raise Unable("rows have different numbers of values")
    first = rows.pop(0) if header else [None] * width
    names = [name or f"_c{number}" for number, name in enumerate(first)]
    return of_rows(names, ["text"] * width, rows)


def csv_file(path: Path, *, sep: str = ",") -> Found:
    """A whole CSV file by `text_rows`."""
    try:
        text = _whole(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unable(str(error)) from error
    return text_rows(text, sep=sep)


def _whole(path: Path) -> bytes:
    data = path.read_bytes()
    try:
        if path.suffix == ".gz":
            return gzip.decompress(data)
        if path.suffix == ".bz2":
            return bz2.decompress(data)
    except (OSError, EOFError) as error:
        raise Unable(str(error)) from error
    if path.suffix == ".zst":
        raise Unable("zstd")
    return data


def changed_texts(typed: pa.Table, texts: pa.Table) -> str | None:
    """The first value of an inferred type that is not written as the file has it."""
    if typed.num_rows != texts.num_rows:
        return f"{typed.num_rows} rows, as texts {texts.num_rows}"
    for name, column, text in zip(typed.column_names, typed.columns, texts.columns, strict=True):
        for row, (value, written) in enumerate(
            zip(column.to_pylist(), text.to_pylist(), strict=True)
        ):
            if (value is None) != (written is None) or not _says(value, written):
                return f"row {row}, column {name!r}: {value!r} of {written!r}"
    return None


def _says(value: Any, text: str) -> bool:
    if value is None or isinstance(value, str):
        return value == text
    if isinstance(value, bool):
        return text.lower() == str(value).lower()
    if isinstance(value, int):
        return text == str(value)
    if isinstance(value, float):
        return float(text) == value or (value != value and text.lower() == "nan")
    if isinstance(value, decimal.Decimal):
        return decimal.Decimal(text) == value
    if isinstance(value, dt.datetime):
        return dt.datetime.fromisoformat(text.strip()) == value
    return text == str(value)


def json_file(path: Path, schema: pa.Schema) -> Found:
    """A whole file of JSON lines by Python's json; columns of other kinds than plain ones are left out."""
    kinds = {field.name: kind_of(field.type) for field in schema}
    if any(kind not in ("int64", "float64", "text", "bool") for kind in kinds.values()):
        raise Unable(f"kinds {sorted(set(kinds.values()))}")
    return json_lines(_whole(path), kinds)


def arrow_file(path: Path) -> Found:
    """An Arrow file by pyarrow alone: it shares the decoder with spark-channel, and nothing above it."""
    with pa.OSFile(str(path)) as file:
        try:
            try:
                return from_arrow(pa.ipc.open_file(file).read_all())
            except pa.ArrowInvalid:
                file.seek(0)
                return from_arrow(pa.ipc.open_stream(file).read_all())
        except (pa.ArrowException, OSError) as error:
            raise Unable(f"pyarrow: {error}") from error


def json_lines(data: bytes, kinds: Mapping[str, str]) -> Found:
    """JSON lines by Python's json, with columns of the kinds int64, float64, text and bool."""
    rows = []
    for line in data.decode("utf-8-sig").split("\n"):
        if not line.strip():
            continue
        try:
            found = json.loads(line, parse_float=decimal.Decimal)
        except ValueError as error:
            raise Unable(f"json: {error}") from error
        if not isinstance(found, dict):
            raise Unable("a line is not an object")
        rows.append([_json_value(found.get(name), kind) for name, kind in kinds.items()])
    return of_rows(kinds, kinds.values(), rows)


def _json_value(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind == "float64":
        return number(float(value))
    if kind.startswith("list<"):
        return [_json_value(each, kind[5:-1]) for each in value]
    if {"int64": int, "text": str, "bool": bool}[kind] is not type(value):
        raise Unable(f"{value!r} is not {kind}")
    return value


# Spark


def spark_reads(spark: "SparkSession", form: str, path: Path | str, **options: Any) -> Found:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    schema = options.pop("schema", None)
    reader = spark.read.format(form).options(**options)
    try:
        found = (reader.schema(schema) if schema else reader).load(str(path)).toArrow()
    except (PySparkException, Py4JJavaError, pa.ArrowException) as error:
        raise Unable(f"Spark: {str(error)[:300]}") from error
    return from_arrow(found)


# Delta tables


def delta_log(path: Path) -> Found:
    """A Delta table: its log replayed here, its files read by DuckDB."""
    files, schema, partitions = _delta_files(path)
    if not files:
        return of_rows(
            schema, (_DELTA_KINDS.get(str(kind), str(kind)) for kind in schema.values()), []
        )
    parts = []
    for name, values in files.items():
        chosen = [
            _constant(values.get(column), _SQL_TYPES[kind]) + f' AS "{column}"'
            if column in partitions
            else f'"{column}"'
            for column, kind in schema.items()
        ]
        file = f"read_parquet({_literal(str(path / name))}, hive_partitioning = false)"
        parts.append(f"SELECT {', '.join(chosen)} FROM {file}")
    return duckdb_query(" UNION ALL BY NAME ".join(parts))


def _constant(value: str | None, kind: str) -> str:
    return f"CAST({_literal(value) if value else 'NULL'} AS {kind})"


_DELTA_KINDS = {
    "string": "text",
    "long": "int64",
    "integer": "int32",
    "short": "int16",
    "byte": "int8",
    "boolean": "bool",
    "double": "float64",
    "float": "float32",
    "timestamp": "instant",
    "timestamp_ntz": "timestamp",
}
_SQL_TYPES = {
    "string": "VARCHAR",
    "long": "BIGINT",
    "integer": "INTEGER",
    "short": "SMALLINT",
    "byte": "TINYINT",
    "boolean": "BOOLEAN",
    "double": "DOUBLE",
    "float": "FLOAT",
    "date": "DATE",
    "binary": "BLOB",
    "timestamp": "TIMESTAMPTZ",
    "timestamp_ntz": "TIMESTAMP",
}


def _delta_files(path: Path) -> tuple[dict[str, dict[str, str]], dict[str, Any], Sequence[str]]:
    log = path / "_delta_log"
    files: dict[str, dict[str, str]] = {}
    schema: dict[str, Any] = {}
    partitions: Sequence[str] = ()
    for entry in _delta_entries(log):
        if (meta := entry.get("metaData")) and "schemaString" in meta:
            if "delta.columnMapping.mode" in (meta.get("configuration") or {}):
                raise Unable("column mapping")
            fields = json.loads(meta["schemaString"])["fields"]
            schema = {field["name"]: field["type"] for field in fields}
            partitions = meta["partitionColumns"]
            if any(
                not isinstance(schema[name], str) or schema[name] not in _SQL_TYPES
                for name in partitions
            ):
                raise Unable("a partition of another type")
        if added := entry.get("add"):
            if added.get("deletionVector"):
                raise Unable("deletion vectors")
            files[unquote(added["path"])] = dict(added.get("partitionValues") or {})
        if removed := entry.get("remove"):
            files.pop(unquote(removed["path"]), None)
    if not schema:
        raise Unable("no metadata")
    return files, schema, partitions


def _delta_entries(log: Path) -> Iterator[dict[str, Any]]:
    last = log / "_last_checkpoint"
    start = 0
    if last.exists():
        start = json.loads(last.read_text())["version"]
        parts = sorted(log.glob(f"{start:020}.checkpoint.parquet"))
        if not parts:
            raise Unable("a checkpoint in parts")
        for part in parts:
            with duckdb.connect() as connection:
                rows = connection.execute(
                    "SELECT to_json(r) FROM read_parquet(?) AS r", [str(part)]
                ).fetchall()
            for (text,) in rows:
                if (entry := json.loads(text)).get("sidecar"):
                    raise Unable("a checkpoint in parts")
                yield entry
        start += 1
    for file in sorted(log.glob("*.json")):
        if file.stem.isdigit() and int(file.stem) >= start:
            for line in file.read_text().splitlines():
                if line.strip():
                    yield json.loads(line)
