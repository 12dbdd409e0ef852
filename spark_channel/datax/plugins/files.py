"""txtfilereader and txtfilewriter, hdfsreader and hdfswriter, onto the file connectors."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from spark_channel.datax.columns import (
    NamedColumns,
    max_index,
    picked_columns,
    text_positions,
    written_columns,
)
from spark_channel.datax.plugin_context import ParsedPlugin, PluginContext, at
from spark_channel.datax.sections import JobSection, refusal, refused
from spark_channel.datax.value_types import Delimiter, Encoding, Flag, Text, Texts
from spark_channel.planning import Endpoint
from spark_channel.planning.transfer import SaveMode
from spark_channel.transform import (
    CsvTexts,
    JavaTexts,
    Labelled,
    RefuseMalformed,
    Rename,
    TimesAsText,
    Transformer,
    strptime_pattern,
)
from spark_channel.transform.convert import BytesAsText, FloatsAsText, ShortDecimals

__all__ = [
    "FileMode",
    "TextReader",
    "TextWriter",
    "file_connector",
    "hdfs_reader",
    "hdfs_writer",
    "text_end",
    "text_writer_end",
    "times_as_text",
    "txtfile_reader",
    "txtfile_writer",
    "typed_end",
    "typed_writer_end",
]


_KERBEROS = "log in with kinit before the job starts; its ticket is used"
_HADOOP: dict[str, str] = {
    "hadoopConfig": "it is read from HADOOP_CONF_DIR",
    "haveKerberos": _KERBEROS,
    "kerberosKeytabFilePath": _KERBEROS,
    "kerberosPrincipal": _KERBEROS,
}
_BUFFER = {
    "bufferSize": "blocks follow the speed limit",
    "maxTraversalLevel": "folders are read to their ends",
}
_FOLDERS = {"recursiveFileLookup": "true"}
_HIVE_NULL = "\\N"
"""What Hive writes for NULL into its text files."""
_WRITTEN_NULL = "null"
"""What txtfilewriter writes for NULL where a job says nothing."""
_CODECS = {
    "gzip": "gzip",
    "gz": "gzip",
    "bzip2": "bz2",
    "bz2": "bz2",
    "zstd": "zstd",
    "snappy": "snappy",
    "none": "none",
    "": "none",
}
_READ_CODECS = {**_CODECS, "zip": "zip"}
_FORMATS = {"text": "csv", "csv": "csv", "orc": "orc", "parquet": "parquet", "par": "parquet"}
_FORMAT_NAMES = "text, csv, orc or parquet"
_NO_FORMAT = {
    "rc": "RC files have no reader for Arrow; turn them into ORC or Parquet with Hive or Spark",
    "seq": "sequence files have no reader for Arrow; turn them into ORC or Parquet with Hive or Spark",
}
_SAVE_MODES: dict[object, SaveMode] = {
    "append": "append",
    "nonconflict": "errorIfExists",
    "truncate": "overwrite",
}


def _word(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


def _save_mode(value: object) -> SaveMode:
    mode = _SAVE_MODES.get(_word(value)) if isinstance(value, str) else None
    if mode is None:
        raise ValueError("append, nonConflict or truncate")
    return mode


def _hdfs_mode(value: object) -> str:
    """`overwrite` is Addax's: the folder is emptied. DataX's `truncate` removes files by their names."""
    if _word(value) == "overwrite":
        return "overwrite"
    try:
        return "truncate" if _save_mode(value) == "overwrite" else _save_mode(value)
    except ValueError:
        raise ValueError("append, nonConflict, truncate or overwrite") from None


FileMode = Annotated[SaveMode, BeforeValidator(_save_mode)]


def _escape_mode(value: object) -> int:
    if str(value).strip() not in ("1", "2"):
        raise ValueError("1 (a quote inside quotes is doubled) or 2 (it follows a backslash)")
    return int(str(value))


def _one_byte(value: object) -> object:
    if not (isinstance(value, str) and len(value) == 1 and value.isascii()):
        raise ValueError("one ASCII character")
    return value


class CsvReaderConfig(JobSection):
    """The settings of DataX's CSV parser that change what is read."""

    ignored: ClassVar[dict[str, str]] = {
        "safetySwitch": "a value may be of any length",
        "skipEmptyRecords": "empty lines are skipped",
        "captureRawRecord": "a row that does not fit is named with its place",
        "caseSensitive": "columns go by number",
        "delimiter": "fieldDelimiter is read",
    }
    refused: ClassVar[dict[str, str]] = {
        "recordDelimiter": "rows end with a line end; replace the other character in the files",
    }

    use_text_qualifier: Flag = True
    text_qualifier: Annotated[Text, BeforeValidator(_one_byte)] = '"'
    comment: Annotated[Text, BeforeValidator(_one_byte)] = "#"
    trim_whitespace: Flag = True
    use_comments: Flag = False
    escape_mode: Annotated[Literal[1, 2], BeforeValidator(_escape_mode)] = 1


class TextReader(JobSection):
    """Settings of every file reader."""

    column: Any = None
    field_delimiter: Delimiter = ","
    encoding: Encoding = "utf-8"
    null_format: Text | None = None
    compress: Text = ""
    skip_header: Flag = False
    csv_reader_config: CsvReaderConfig = CsvReaderConfig()


class TxtFileReader(TextReader):
    ignored: ClassVar[dict[str, str]] = _BUFFER

    path: Texts


class HdfsReader(TextReader):
    ignored: ClassVar[dict[str, str]] = {**_HADOOP, **_BUFFER}

    path: Texts
    default_fs: Text = Field("", alias="defaultFS")
    file_type: Text
    null_format: Text | None = _HIVE_NULL


def txtfile_reader(parameter: dict[str, Any], context: PluginContext) -> ParsedPlugin:
    plugin = context.read(TxtFileReader, parameter)
    return text_end(plugin, _located(plugin.path, "", context), context)


def hdfs_reader(parameter: dict[str, Any], context: PluginContext) -> ParsedPlugin:
    plugin = context.read(HdfsReader, parameter)
    connector = file_connector(plugin.file_type, context)
    paths = _located(plugin.path, plugin.default_fs, context)
    if connector == "csv":
        return text_end(plugin, paths, context)
    return typed_end(plugin, connector, paths, context)


def typed_end(
    plugin: TextReader, connector: str, paths: dict[str, str], context: PluginContext
) -> ParsedPlugin:
    """Files with types; as in DataX, a folder named `dt=2024-01-31` adds no column."""
    columns = picked_columns(plugin.column, context)
    return ParsedPlugin(
        Endpoint(connector, {**paths, **_FOLDERS, "hiddenFiles": "true"}),
        (ShortDecimals(), columns) if columns else (ShortDecimals(),),
    )


def file_connector(file_type: str, context: PluginContext, key: str = "fileType") -> str:
    name = file_type.strip().lower()
    if name in _NO_FORMAT:
        raise refusal(context.key(key), file_type, f"{_FORMAT_NAMES}; {_NO_FORMAT[name]}")
    if name not in _FORMATS:
        raise refusal(context.key(key), file_type, _FORMAT_NAMES)
    return _FORMATS[name]


def _located(paths: tuple[str, ...], default_fs: str, context: PluginContext) -> dict[str, str]:
    if not paths:
        raise context.missing("path", "a path or a list of paths")
    whole = [_join(default_fs, path) for path in paths]
    return {"path": whole[0]} if len(whole) == 1 else {"paths": json.dumps(whole)}


def _join(default_fs: str, path: str) -> str:
    if not default_fs or re.match(r"[a-z][a-z0-9+.-]*://", path, re.IGNORECASE):
        return path
    return f"{default_fs.rstrip('/')}/{path.lstrip('/')}"


def text_end(plugin: TextReader, paths: dict[str, str], context: PluginContext) -> ParsedPlugin:
    config = plugin.csv_reader_config
    quote = config.text_qualifier if config.use_text_qualifier else ""
    options = {
        **paths,
        **_FOLDERS,
        "hiddenFiles": "true",
        "header": "false",
        "skipHeader": str(plugin.skip_header).lower(),
        "inferSchema": "false",
        "sep": plugin.field_delimiter,
        "encoding": plugin.encoding,
        "nullValue": plugin.null_format or "",
        "emptyIsNull": str(plugin.null_format == "").lower(),
        "quotedIsNull": "true",
        "quote": quote,
        "escape": "\\" if quote and config.escape_mode == 2 else quote,
        "multiLine": str(config.use_text_qualifier).lower(),
        "mode": "MARK",
    }
    if config.trim_whitespace:
        options |= {"ignoreLeadingWhiteSpace": "true", "ignoreTrailingWhiteSpace": "true"}
    if config.use_comments:
        options["comment"] = config.comment
    codec = _codec(plugin.compress, context, _READ_CODECS)
    if codec != "none":
        options["compression"] = codec
    columns = picked_columns(plugin.column, context)
    lines = Labelled(RefuseMalformed(), context.key("path"))
    if columns:
        options["leastColumns"] = str(1 + max_index(plugin.column))
    return ParsedPlugin(
        Endpoint("csv", options),
        (lines, columns) if columns else (lines,),
        every_column=columns is None,
    )


def _codec(compress: str, context: PluginContext, codecs: Mapping[str, str] = _CODECS) -> str:
    name = compress.strip().lower()
    if name not in codecs:
        texts = "gzip, bzip2, zip, zstd" if "zip" in codecs else "gzip, bzip2, zstd"
        takes = f"{texts}, snappy (ORC and Parquet) or none"
        raise refusal(context.key("compress"), compress, takes)
    return codecs[name]


class TextWriter(JobSection):
    """Settings of every writer of text files."""

    field_delimiter: Delimiter = ","
    encoding: Encoding = "utf-8"
    null_format: Text = _WRITTEN_NULL
    compress: Text = ""
    file_format: Annotated[Text, BeforeValidator(_word)] = "text"
    date_format: Text | None = None
    format: Text | None = None
    header: Texts = ()
    quote_char: Text = '"'


class TxtFileWriter(TextWriter):
    ignored: ClassVar[dict[str, str]] = {
        "maxFileSize": "a file is as large as its task; see the option maxBytesPerFile",
        "suffix": "file names end with the format's own suffix",
        "markDoneFileName": "files appear when the job is done, which its exit code says",
        "markDoingFileName": "files are visible when the job is done",
        "maxRetryTime": "Spark retries tasks",
        "lineDelimiter": r"lines end with \n",
    }

    path: Text
    file_name: Text
    write_mode: FileMode
    file_format: Annotated[Literal["text", "csv"], BeforeValidator(_word)] = "text"


class HdfsWriter(JobSection):
    ignored: ClassVar[dict[str, str]] = {
        **_HADOOP,
        "nullFormat": "a NULL is an empty text, as DataX's hdfswriter writes it",
        "skipTrash": "files that are replaced are removed, not moved to the trash",
    }

    default_fs: Text = Field("", alias="defaultFS")
    file_type: Text
    path: Text
    file_name: Text = ""
    column: NamedColumns
    write_mode: Annotated[SaveMode | Literal["truncate"], BeforeValidator(_hdfs_mode)]
    field_delimiter: Delimiter = ","
    encoding: Encoding = "utf-8"
    compress: Text = ""
    overwrite_directory: Flag = False


def txtfile_writer(parameter: dict[str, Any], context: PluginContext) -> ParsedPlugin:
    """Files `fileName__...` in the folder `path` itself, beside those of others."""
    plugin = context.read(TxtFileWriter, parameter)
    name = plugin.file_name.strip()
    if not name or "/" in name or name[0] in "._":
        raise refusal(
            context.key("fileName"), plugin.file_name, "a name without /, and not . or _ first"
        )
    if re.match(r"(?!file:)[a-z][a-z0-9+.-]+://", plugin.path, re.IGNORECASE):
        target = f"{plugin.path.rstrip('/')}/{name}"
        context.warnings.append(
            f"{context.path}: the files go into the folder {target}, since an object store hides no file until the job "
            "has ended"
        )
        return text_writer_end(plugin, target, plugin.write_mode, context)
    end = text_writer_end(plugin, plugin.path, plugin.write_mode, context)
    return replace(
        end, endpoint=replace(end.endpoint, options={**end.endpoint.options, "filePrefix": name})
    )


def text_writer_end(
    plugin: TextWriter, target: str, mode: SaveMode, context: PluginContext
) -> ParsedPlugin:
    """Texts into the folder `target`."""
    options = _text_options(plugin, target, context)
    options["header"] = str(bool(plugin.header)).lower()
    steps: list[Transformer] = []
    quotes = None
    if plugin.file_format == "csv":
        if len(plugin.quote_char) != 1:
            raise refusal(context.key("quoteChar"), plugin.quote_char, "one character")
        if len(plugin.field_delimiter) != 1:
            takes = "one character, since fileFormat is csv"
            raise refusal(context.key("fieldDelimiter"), plugin.field_delimiter, takes)
        quotes = CsvTexts(plugin.field_delimiter, plugin.quote_char, options["nullValue"])
        options["nullValue"] = quotes.texts(("", options["nullValue"]))[1]
    if plugin.header:
        names = plugin.header if quotes is None else quotes.texts(plugin.header)
        steps.append(Labelled(Rename(names), context.key("header")))
    steps.append(times_as_text(plugin.date_format or plugin.format, context))
    steps.extend((FloatsAsText(), BytesAsText()))
    if quotes is not None:
        steps.append(quotes)
    return ParsedPlugin(
        Endpoint("csv", options),
        tuple(steps),
        mode,
        local_times=True,
        columns=len(plugin.header) or None,
        exact_numbers=True,
    )


def _text_options(
    plugin: TextWriter | HdfsWriter, target: str, context: PluginContext
) -> dict[str, str]:
    codec = _codec(plugin.compress, context)
    return {
        "path": target,
        "header": "false",
        "sep": plugin.field_delimiter,
        "encoding": plugin.encoding,
        "nullValue": plugin.null_format if isinstance(plugin, TextWriter) else "",
        "raw": "true",
        **({} if codec == "none" else {"compression": codec}),
    }


def times_as_text(
    date_format: str | None, context: PluginContext, only: frozenset[int] | None = None
) -> Transformer:
    """DataX writes times to the second, days and times of day by `common.column`, or all by `dateFormat`."""
    formats = context.formats
    patterns_by_kind = {
        "timestamps": (date_format or formats.datetime_format, "dateFormat"),
        "dates": (date_format or formats.date_format, "dateFormat"),
        "times": (formats.time_format, "timeFormat"),
    }
    patterns = {}
    for kind, (text, key) in patterns_by_kind.items():
        if text is not None:
            with at(context.key(key) if date_format else f"common.column ({kind})"):
                patterns[kind] = strptime_pattern(text)
    return TimesAsText(**patterns, only=only)


def hdfs_writer(parameter: dict[str, Any], context: PluginContext) -> ParsedPlugin:
    plugin = context.read(HdfsWriter, parameter)
    connector = file_connector(plugin.file_type, context)
    target = _join(plugin.default_fs, plugin.path)
    if target.lower().startswith("webhdfs://"):
        raise refused(
            context.key("defaultFS"),
            f"a write to {target}",
            "the same folder by Hadoop's own protocol (hdfs://...), a mounted disk (file:///mnt/...) or a bucket (s3://...)",
        )
    mode = plugin.write_mode
    if mode == "truncate":
        if not plugin.overwrite_directory:
            raise refusal(
                context.key("writeMode"),
                "truncate",
                f'append, nonConflict or overwrite, or truncate with "overwriteDirectory": true. DataX removes the '
                f"files whose names begin with {plugin.file_name!r}; here the whole folder {target} is replaced",
            )
        mode = "overwrite"
    context.ineffective.append(f"{context.key('fileName')} (files get unique names)")
    if connector != "csv":
        return typed_writer_end(connector, target, plugin.column, plugin.compress, mode, context)
    steps = [*_named_columns(plugin.column, context), JavaTexts(whole_seconds=True)]
    options = _text_options(plugin, target, context)
    return ParsedPlugin(
        Endpoint(connector, options), tuple(steps), mode, local_times=True, exact_numbers=True
    )


def _named_columns(columns: NamedColumns, context: PluginContext) -> list[Transformer]:
    # A time that becomes text is shown as `common.column` says, whatever the files' format is.
    return [
        times_as_text(None, context, text_positions(columns)),
        written_columns(columns, context),
    ]


def typed_writer_end(
    connector: str,
    target: str,
    columns: NamedColumns,
    compress: str,
    mode: SaveMode,
    context: PluginContext,
) -> ParsedPlugin:
    """Files with types into the folder `target`; without `columns` they have the reader's names and types."""
    steps = _named_columns(columns, context) if columns else []
    codec = _codec(compress, context)
    options = {
        "path": target,
        **({} if codec == "none" and not compress else {"compression": codec}),
    }
    return ParsedPlugin(
        Endpoint(connector, options),
        tuple(steps),
        mode,
        local_times=bool(columns),
        exact_numbers=bool(columns),
    )
