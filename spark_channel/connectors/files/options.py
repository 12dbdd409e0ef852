"""The options of the file connectors, under the names and meanings of Spark's file sources.

What is taken, ignored with a warning, or refused with a reason is laid out in `docs/files.md`; defaults
differ from Spark's in two: `header` and `inferSchema` are true, since a copy wants names and types.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import pyarrow as pa
from pydantic import BeforeValidator, Field, field_validator, model_validator

from spark_channel.connectors.files.credentials import (
    StorageCredentials,
    StorageSettings,
    read_settings,
)
from spark_channel.connectors.remote import is_remote
from spark_channel.errors import OptionError
from spark_channel.option_types import (
    Character,
    Encoding,
    Instant,
    OptionalCharacter,
    Zone,
    known_encoding,
    path_list,
    separator,
)
from spark_channel.options import (
    Amount,
    ByteAmount,
    FilePath,
    Options,
    ReadOptions,
    Trait,
    WriteOptions,
)
from spark_channel.transform.time_patterns import TimePattern

__all__ = [
    "ArrowReadOptions",
    "ArrowWriteOptions",
    "CsvReadOptions",
    "CsvWriteOptions",
    "FileReadOptions",
    "FileWriteOptions",
    "JsonReadOptions",
    "JsonWriteOptions",
    "OrcReadOptions",
    "OrcWriteOptions",
    "ParquetReadOptions",
    "ParquetWriteOptions",
    "TextReadOptions",
]

_LOSES_ROWS = (
    "a copy must not lose rows silently; name the files to read with 'path', a glob or 'paths'"
)
_SPARK_SPLITS = "splits follow 'channels' and 'splitBytes'"
_COMMON_TEXT_IGNORED = {
    "samplingRatio": "types come from a sample of 'sampleBytes'",
    "locale": "numbers and dates are read in the C locale",
    "enableDateTimeParsingFallback": "only the patterns given are read",
    "legacyTimeParserPolicy": "only the patterns given are read",
}
_PERMISSIVE = (
    "it exists for mode=PERMISSIVE, which turns values that do not fit into NULL; a copy must not"
)
_CODEC_NAMES = {"gz": "gzip", "bzip2": "bz2", "zst": "zstd", "uncompressed": "none", "br": "brotli"}
_LEVELS: Mapping[str, tuple[int, int]] = {
    "gzip": (1, 9),
    "bz2": (1, 9),
    "zstd": (1, 22),
    "brotli": (0, 11),
}


def _pattern(value: object) -> str:
    return TimePattern.from_text(str(value)).text


_Pattern = Annotated[str, BeforeValidator(_pattern)]


class _Stored(Options):
    """The credentials of the files' store."""

    storage_options: Annotated[StorageSettings | None, Trait.SAME_ROWS] = Field(
        None,
        description="a JSON object of an object store's credentials: `aws_access_key_id`, `aws_secret_access_key`, "
        "`aws_session_token`, `azure_storage_account_key`; or of a server's, with FTP and SFTP: `user`, `password`, "
        "`private_key_file`, `private_key_password`, `host_key`, `timeout`, `active`, `sslmode`, `sslrootcert`; "
        "default: the environment's",
    )

    @property
    def login(self) -> StorageCredentials | None:
        return StorageCredentials.from_settings(read_settings(self.storage_options), strict=True)

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        _ = self.login


class FileReadOptions(_Stored, ReadOptions):
    """Options of every file reader."""

    ignored: ClassVar[Mapping[str, str]] = {
        "maxPartitionBytes": _SPARK_SPLITS,
        "openCostInBytes": _SPARK_SPLITS,
    }
    refused: ClassVar[Mapping[str, str]] = {
        "ignoreCorruptFiles": _LOSES_ROWS,
        "ignoreMissingFiles": _LOSES_ROWS,
        "maxFilesPerTrigger": "this is a batch read",
        "partitionColumn": "files are split by size; row groups are pruned by 'where'",
    }

    path: FilePath | None = Field(
        None,
        description="a file, directory or glob, as a path or URI; default: none; give it or `paths`",
    )
    paths: Annotated[tuple[str, ...] | None, BeforeValidator(path_list), Trait.HOLDS_LOGIN] = Field(
        None, description="a JSON list of files, directories and globs; default: none"
    )
    base_path: FilePath | None = Field(
        None, description="directory under which `key=value` folders are columns; default: `path`"
    )
    recursive_file_lookup: bool = Field(
        False, description="true: folders named `key=value` are ordinary folders, as in Spark"
    )
    path_glob_filter: str | None = Field(
        None, description="read only files whose name matches this glob; default: all files"
    )
    modified_before: Instant | None = Field(
        None, description="read only files modified before this time; default: all files"
    )
    modified_after: Instant | None = Field(
        None, description="read only files modified after this time; default: all files"
    )
    hidden_files: bool = Field(
        False,
        description="true: read files whose name begins with `_` or `.`, too; spark-channel's own are never read",
    )
    use_manifest: bool = Field(
        True,
        description="read only the files that the log lists, in a directory that spark-channel wrote",
    )
    split_bytes: ByteAmount | None = Field(
        None,
        description="approximate bytes of one split; default: all bytes over the splits for `channels`",
    )

    @model_validator(mode="after")
    def _one_source(self) -> "FileReadOptions":
        if self.path is None and self.paths is None:
            raise OptionError(
                "option 'path' is missing: a file, a directory, a glob or a uri", option="path"
            )
        if self.path is not None and self.paths is not None:
            raise OptionError(
                "options 'path' and 'paths' both say what to read; give one", option="paths"
            )
        return self

    def all_paths(self) -> tuple[str, ...]:
        return self.paths or (self.path or "",)


class _Mergeable(FileReadOptions):
    merge_schema: bool = Field(
        False,
        description="a column whose type differs between files gets a type that holds both; false: that of the file "
        "that came first. Columns are those of all files",
    )


class ParquetReadOptions(_Mergeable):
    """Parquet."""

    ignored: ClassVar[Mapping[str, str]] = {
        **FileReadOptions.ignored,
        "datetimeRebaseMode": "the file's footer says in which calendar its dates are",
        "int96RebaseMode": "the file's footer says in which calendar its times are",
    }


class ArrowReadOptions(_Mergeable):
    """Arrow IPC, file and stream format."""


class OrcReadOptions(_Mergeable):
    """ORC."""


class TextReadOptions(FileReadOptions):
    """Options that CSV and JSON lines share."""

    encoding: Encoding = Field("utf-8", description="character encoding")
    compression: str | None = Field(
        None,
        description="none, gzip, bz2, zstd, lz4, brotli, or zip, whose files are read one after the other; default: "
        "from each file's suffix",
    )
    mode: Literal["FAILFAST", "DROPMALFORMED", "MARK"] = Field(
        "FAILFAST",
        description="a row that does not fit: `FAILFAST` fails, `DROPMALFORMED` drops it and logs the count; `MARK` is "
        "set by DataX jobs, where it becomes a refused row",
    )
    date_format: _Pattern | None = Field(None, description="pattern of dates; default: ISO 8601")
    timestamp_format: _Pattern | None = Field(
        None, description="pattern of timestamps; default: ISO 8601"
    )
    time_zone: Zone = Field(
        "UTC", description="time zone of values without one, in columns with a time zone"
    )
    sample_bytes: ByteAmount = Field(4 << 20, description="bytes that are read to infer the types")
    max_line_bytes: Annotated[ByteAmount, Trait.SAME_ROWS] = Field(
        16 << 20,
        description="size of one line, unpacked, at most; it is held in memory several times",
    )

    @field_validator("mode", mode="before")
    @classmethod
    def _mode(cls, value: object) -> object:
        if str(value).upper() == "PERMISSIVE":
            raise ValueError(
                "FAILFAST or DROPMALFORMED; PERMISSIVE turns values that do not fit into NULL, "
                "which a copy must not"
            )
        return str(value).upper()

    @field_validator("compression")
    @classmethod
    def _codec(cls, value: str | None) -> str | None:
        if value is not None and value.lower() == "zip":
            return "zip"
        return None if value is None else _text_codec(value)


def _text_codec(value: str) -> str:
    name = _CODEC_NAMES.get(value.lower(), value.lower())
    if name == "none":
        return name
    if name not in ("gzip", "bz2", "zstd", "lz4", "brotli") or not pa.Codec.is_available(name):
        raise ValueError("none, gzip, bz2, zstd, lz4 or brotli")
    return name


class CsvReadOptions(TextReadOptions):
    """CSV."""

    aliases: ClassVar[Mapping[str, str]] = {
        **FileReadOptions.aliases,
        "delimiter": "sep",
        "charset": "encoding",
        "timestampNTZFormat": "timestampFormat",
        "codec": "compression",
    }
    ignored: ClassVar[Mapping[str, str]] = {
        **FileReadOptions.ignored,
        **_COMMON_TEXT_IGNORED,
        "maxColumns": "the reader has no such bound",
        "maxCharsPerColumn": "'maxLineBytes' bounds a line",
        "inputBufferSize": "blocks follow the speed limit",
        "preferDate": "a column of dates is read as dates",
        "prefersDecimal": "numbers with a point are doubles, unless the schema says otherwise",
    }
    refused: ClassVar[Mapping[str, str]] = {
        **FileReadOptions.refused,
        "columnNameOfCorruptRecord": _PERMISSIVE,
        "charToEscapeQuoteEscaping": "the escape character escapes itself",
        "unescapedQuoteHandling": "a stray quote is part of its value, or an error inside quotes",
        "singleVariantColumn": "Arrow has no variant type",
        "escapeQuotes": "it is an option for writing",
        "quoteAll": "it is an option for writing",
        "nanValue": "NaN is read, in any case",
        "positiveInf": "inf and infinity are read, in any case",
        "negativeInf": "-inf and -infinity are read, in any case",
        "emptyValue": "a quoted empty text is the empty text",
    }

    header: bool = Field(
        True, description="the first line of each file contains the names (Spark: false)"
    )
    infer_schema: bool = Field(
        True, description="infer types from a sample; false: all strings (Spark: false)"
    )
    enforce_schema: bool = Field(
        True, description="false: a header that differs from the given schema is an error"
    )
    sep: Character = Field(",", description="separator")
    quote: OptionalCharacter = Field('"', description="quote character; empty: none")
    escape: OptionalCharacter = Field(
        "\\", description="escape character inside quotes; a doubled quote works too"
    )
    comment: OptionalCharacter = Field("", description="character of lines to skip; default: none")
    null_value: str = Field(
        "", description="unquoted text that means NULL, besides the empty one; default: empty"
    )
    empty_is_null: bool = Field(
        True,
        description="an unquoted empty value is NULL; false: it is the empty text, as a quoted one",
    )
    multi_line: bool | None = Field(
        None,
        description="true: quoted values may hold line ends, and a file is one split; false: a row is a line; default: "
        "true if the sample holds such a value",
    )
    line_sep: str | None = Field(None, description=r"\n, \r\n or \r; default: any of them")
    ignore_leading_white_space: bool = Field(
        False, description="trim blanks and tabs at the start of values, outside of quotes"
    )
    ignore_trailing_white_space: bool = Field(
        False, description="trim blanks and tabs at the end of values, outside of quotes"
    )
    skip_header: bool = Field(
        False,
        description="true: the first line of each file is skipped, whatever it contains, and columns are found by "
        "their order; `header` has no effect",
    )
    quoted_is_null: bool = Field(
        False, description="true: a text in quotes that is `nullValue`, or empty, is NULL, too"
    )
    columns_if_empty: Annotated[int, Field(ge=0, le=100_000)] = Field(
        0, description="number of text columns if no file has a line; default: 0, which is an error"
    )
    least_columns: Annotated[int, Field(ge=0, le=100_000)] = Field(
        0,
        description="number of columns that the first line stands for if it has fewer. With `mode` MARK a row of at "
        "least so many values fits: it is filled up with NULL, or what is too much is left out; default: 0, all rows "
        "have as many values",
    )

    @field_validator("line_sep")
    @classmethod
    def _line_sep(cls, value: str | None) -> str | None:
        plain = None if value is None else value.replace("\\r", "\r").replace("\\n", "\n")
        if plain not in (None, "\n", "\r\n", "\r"):
            raise ValueError(r"\n, \r\n or \r")
        return plain

    @model_validator(mode="after")
    def _distinct(self) -> "CsvReadOptions":
        _distinct_characters(self.sep, self.quote, self.escape)
        return self


def _distinct_characters(sep: str, quote: str, escape: str) -> None:
    if sep in (quote, escape):
        raise OptionError(
            f"option 'sep' got {sep!r}, which is also the quote or the escape",
            option="sep",
            got=sep,
        )


class JsonReadOptions(TextReadOptions):
    """JSON lines: one object per line."""

    aliases: ClassVar[Mapping[str, str]] = {
        **FileReadOptions.aliases,
        "charset": "encoding",
        "timestampNTZFormat": "timestampFormat",
        "codec": "compression",
    }
    ignored: ClassVar[Mapping[str, str]] = {
        **FileReadOptions.ignored,
        **_COMMON_TEXT_IGNORED,
        "lineSep": "any of the usual line ends is read",
        "prefersDecimal": "numbers with a point are doubles, unless the schema says otherwise",
        "dropFieldIfAllNull": "a field that is only null is text",
    }
    refused: ClassVar[Mapping[str, str]] = {
        **FileReadOptions.refused,
        "multiLine": "one document over several lines would be held in memory whole; write one object "
        "per line",
        "columnNameOfCorruptRecord": _PERMISSIVE,
        "primitivesAsString": "give a schema with string columns",
        "allowComments": "comments are not JSON",
        "allowUnquotedFieldNames": "it is not JSON",
        "allowSingleQuotes": "it is not JSON",
        "allowNumericLeadingZeros": "it is not JSON",
        "allowBackslashEscapingAnyCharacter": "it is not JSON",
        "allowUnquotedControlChars": "it is not JSON",
        "allowNonNumericNumbers": 'NaN is read from "NaN"',
        "singleVariantColumn": "Arrow has no variant type",
    }

    infer_timestamp: bool = Field(
        False, description="infer timestamps from strings that are all ISO 8601"
    )


def _is_local(path: str) -> bool:
    scheme, mark, _ = path.partition("://")
    return not mark or scheme.lower() == "file"


class FileWriteOptions(_Stored, WriteOptions):
    """Options of every file writer."""

    refused: ClassVar[Mapping[str, str]] = {
        "partitionBy": "files are written into one directory; write each partition with its own save()",
        "partitionOverwriteMode": "overwrite replaces the whole directory",
    }
    ignored: ClassVar[Mapping[str, str]] = {
        **WriteOptions.ignored,
        "lockTimeout": "a write takes no lock; 'commitTimeout' limits the retries of a commit",
        "orphanAge": "staging is removed when its job is known to have ended, not by its age",
    }
    aliases: ClassVar[Mapping[str, str]] = {**WriteOptions.aliases, "codec": "compression"}

    path: FilePath = Field(description="a directory, as a path or URI")
    compression: str | None = Field(
        None, description="codec of the files; default: snappy for Parquet, zstd for ORC, else none"
    )
    max_rows_per_file: Amount | None = Field(
        None, alias="maxRecordsPerFile", description="most rows of one file; default: unlimited"
    )
    max_bytes_per_file: ByteAmount | None = Field(
        None, description="approximate most bytes of one file; default: unlimited"
    )
    commit_timeout: Annotated[float, Field(ge=0, le=86_400)] = Field(
        600.0, description="how long a commit is retried while other jobs commit first, in seconds"
    )
    retention: Annotated[float, Field(ge=0)] = Field(
        3600.0,
        description="how long replaced files stay readable, and can be put back, in seconds; then the next write "
        "removes them",
    )

    file_prefix: str | None = Field(
        None,
        description="on a local disk, FTP and SFTP: files are named `<filePrefix>__...`, and an overwrite removes only "
        "files whose names begin with it; default: `part`, and an overwrite removes all files of the directory",
    )

    replace_foreign_files: bool = Field(
        False,
        description="whether an overwrite may replace files of other programs that are not of the format, or are in "
        "folders that are not partitions",
    )

    codecs: ClassVar[tuple[str, ...]] = ("none",)

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        if is_remote(self.path):
            self._check_remote()
        elif self.file_prefix is not None and not _is_local(self.path):
            raise OptionError(
                "option 'filePrefix' is for local disks, FTP and SFTP: on an object store nothing hides a file before "
                "it is published; write into a separate directory",
                option="filePrefix",
                got=self.file_prefix,
            )
        self._check_prefix()

    def _check_remote(self) -> None:
        if self.commit == "task":
            raise OptionError(
                "option 'commit' got 'task'; with FTP and SFTP it takes job: files are renamed when the job ends",
                option="commit",
                got="task",
                takes="job",
            )
        if self.txn_app_id is not None:
            raise OptionError(
                "option 'txn' is not supported with FTP and SFTP: a server of files "
                "has no operation that would record a published write together with its files",
                option="txn",
                got=self.txn_app_id,
            )

    def _check_prefix(self) -> None:
        prefix = self.file_prefix
        if prefix is not None and (
            len(prefix) > 100
            or not prefix
            or "/" in prefix
            or prefix[0] in "._"
            or not prefix.isprintable()
        ):
            raise OptionError(
                f"option 'filePrefix' got {prefix!r}; it takes the beginning of a name, without / and not . or _ first",
                option="filePrefix",
                got=prefix,
            )

    @field_validator("compression")
    @classmethod
    def _codec(cls, value: str | None) -> str | None:
        if value is None:
            return None
        name = _CODEC_NAMES.get(value.lower(), value.lower())
        if name not in cls.codecs:
            raise ValueError(f"one of {', '.join(cls.codecs)}")
        return name


class _Levelled(FileWriteOptions):
    default_codec: ClassVar[str] = "none"

    compression_level: int | None = Field(
        None, description="level of the codec; default: the codec's own"
    )

    @model_validator(mode="after")
    def _level(self) -> "_Levelled":
        codec = self.compression or self.default_codec
        if self.compression_level is not None:
            low, high = _LEVELS.get(codec, (0, -1))
            if not low <= self.compression_level <= high:
                takes = f"{low} to {high} for {codec}" if high >= low else f"nothing for {codec}"
                raise OptionError(
                    f"option 'compressionLevel' got {self.compression_level}; it takes {takes}",
                    option="compressionLevel",
                    got=str(self.compression_level),
                    takes=takes,
                )
        return self


class ParquetWriteOptions(_Levelled):
    """Parquet."""

    codecs: ClassVar[tuple[str, ...]] = ("none", "snappy", "gzip", "zstd", "lz4", "brotli")
    default_codec: ClassVar[str] = "snappy"

    row_group_rows: Amount = Field(1 << 20, description="most rows of a row group")
    row_group_bytes: ByteAmount = Field(
        64 << 20, description="approximate Arrow bytes of a row group"
    )
    create_table: Literal["columns", "keys", "full"] = Field(
        "columns",
        description="what the files note, in their fields' metadata, of the definition of their source, which is one "
        "table of a database: `keys`: the primary key; `full`: also comments",
    )


class ArrowWriteOptions(_Levelled):
    """Arrow IPC, file format."""

    codecs: ClassVar[tuple[str, ...]] = ("none", "lz4", "zstd")


class OrcWriteOptions(FileWriteOptions):
    """ORC."""

    codecs: ClassVar[tuple[str, ...]] = ("none", "snappy", "zlib", "zstd", "lz4")
    refused: ClassVar[Mapping[str, str]] = {
        **FileWriteOptions.refused,
        "compressionLevel": "the ORC writer of Arrow has a strategy, no level",
    }

    stripe_bytes: ByteAmount = Field(64 << 20, description="approximate bytes of a stripe")


class _TextWriteOptions(_Levelled):
    codecs: ClassVar[tuple[str, ...]] = ("none", "gzip", "bz2", "zstd", "lz4")

    date_format: _Pattern | None = Field(None, description="pattern of dates; default: ISO 8601")
    timestamp_format: _Pattern | None = Field(
        None, description="pattern of timestamps; default: ISO 8601"
    )


class CsvWriteOptions(_TextWriteOptions):
    """CSV."""

    aliases: ClassVar[Mapping[str, str]] = {
        **FileWriteOptions.aliases,
        "delimiter": "sep",
        "charset": "encoding",
        "timestampNTZFormat": "timestampFormat",
    }
    refused: ClassVar[Mapping[str, str]] = {
        **FileWriteOptions.refused,
        "charToEscapeQuoteEscaping": "the escape character escapes itself",
        "escapeQuotes": "a value that holds a quote is always quoted",
        "emptyValue": "the empty text is written in quotes",
        "ignoreLeadingWhiteSpace": "a copy keeps values as they are",
        "ignoreTrailingWhiteSpace": "a copy keeps values as they are",
        "lineSep": r"lines end with \n",
    }

    encoding: Encoding = Field("utf-8", description="character encoding")
    header: bool = Field(
        True, description="write the names as the first line of each file (Spark: false)"
    )
    sep: Annotated[str, BeforeValidator(separator)] = Field(
        ",", description="separator; with `raw` it may have several characters"
    )
    quote: Character = Field('"', description="quote character, around values that need it")
    quote_all: bool = Field(False, description="quote every value that is not NULL")
    escape: OptionalCharacter = Field(
        "\\", description='escape character inside quotes; `"`: quotes are doubled'
    )
    null_value: str = Field("", description="unquoted text for NULL; default: empty")
    raw: bool = Field(
        False,
        description="write values unquoted: a reader cannot parse a value that contains the separator or a line end",
    )

    @model_validator(mode="after")
    def _distinct(self) -> "CsvWriteOptions":
        if self.raw:
            return self
        if len(self.sep) != 1 or not self.sep.isascii():
            raise OptionError(
                f"option 'sep' got {self.sep!r}; it takes one ASCII character, or with raw=true any text",
                option="sep",
                got=self.sep,
            )
        _distinct_characters(self.sep, self.quote, self.escape)
        if any(character in self.null_value for character in (self.sep, self.quote, "\n", "\r")):
            raise OptionError(
                f"option 'nullValue' got {self.null_value!r}; it takes a text without "
                "the separator, the quote and line ends",
                option="nullValue",
                got=self.null_value,
            )
        return self


class JsonWriteOptions(_TextWriteOptions):
    """JSON lines."""

    aliases: ClassVar[Mapping[str, str]] = {
        **FileWriteOptions.aliases,
        "charset": "encoding",
        "timestampNTZFormat": "timestampFormat",
    }
    refused: ClassVar[Mapping[str, str]] = {
        **FileWriteOptions.refused,
        "lineSep": r"lines end with \n",
    }

    encoding: Literal["utf-8"] = Field("utf-8", description="character encoding: only UTF-8")
    ignore_null_fields: bool = Field(True, description="omit fields that are NULL")

    @field_validator("encoding", mode="before")
    @classmethod
    def _utf8(cls, value: object) -> str:
        return known_encoding(value)
