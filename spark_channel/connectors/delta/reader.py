"""One version read; feed of new versions."""

import json
import posixpath
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_channel.arrow_schema import check_columns
from spark_channel.connectors.base.contract import Token
from spark_channel.connectors.base.feed import ChangeFeed, FeedLag, FeedLimit, FeedOptions
from spark_channel.connectors.delta.features import check_deletion_vectors, check_readable
from spark_channel.connectors.delta.lake_table import file_path, logged_partition, table_files
from spark_channel.connectors.delta.options import DeltaReadOptions
from spark_channel.connectors.delta.table import (
    columns_of,
    explained,
    open_table,
    place_of,
    written_columns,
)
from spark_channel.connectors.files.file_errors import reading
from spark_channel.connectors.files.filesystem import Location
from spark_channel.connectors.files.listing import UNCHANGING, SourceFile
from spark_channel.connectors.files.reader import FilesReader
from spark_channel.connectors.files.source import SourcePlan, plan_columns
from spark_channel.connectors.lake.columns import char_length, check_no_char, with_blanks
from spark_channel.connectors.lake.table import TableFile
from spark_channel.errors import OptionError, SchemaError, SourceError
from spark_channel.planning import Split

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = [
    "DeltaFeed",
    "DeltaReader",
]

_NOTHING = -1
"""The token before the first range."""
_AGAIN = "Begin a new stream, or reset the tunnel, to read the table from its newest version"


class DeltaReader(FilesReader):
    """The files of one version, the one that `schema` found, are split, pruned and read as other Parquet files are."""

    Options = DeltaReadOptions
    options: DeltaReadOptions
    format = "parquet"

    def __init__(self, options: DeltaReadOptions) -> None:
        super().__init__(options)
        self._version: int | None = None
        self._chars: dict[str, pa.Field] = {}

    @property
    def version(self) -> int:
        self._planned()
        assert self._version is not None
        return self._version

    def table(self, version: int | None = None) -> "DeltaTable":
        """The table as of `version`, or as the options say.

        Raises:
            SourceError: there is none. UnsupportedError: a feature that this reader lacks.
        """
        location = place_of(self.options)
        with explained(location.show(), SourceError):
            as_of = self.options.as_of if version is None else version
            delta_table = open_table(self.options, location, as_of)
            check_readable(delta_table, location.show())
            return delta_table

    def _planned(self) -> SourcePlan:
        if self._plan is None:
            table = self.table(self._version)
            columns = columns_of(table)
            check_columns(columns)
            folders = list(table.metadata().partition_columns)
            in_files = pa.schema([field for field in columns if field.name not in folders])
            in_folders = pa.schema([columns.field(name) for name in folders])
            # Given as the table's own, so that partition columns keep their places.
            self._plan = plan_columns(
                self.form, self.options, in_files, in_folders, self._given or columns
            )
            self._version = table.version()
            noted = written_columns(table)
            chars = (field for field in noted if char_length(field) is not None)
            self._chars = {field.name.lower(): field for field in chars}
            if self._plan.condition is not None:
                check_no_char(self._plan.condition.columns, noted, "where")
        return self._plan

    def table_columns(self) -> pa.Schema:
        """Every column of the version that the read began with."""
        return columns_of(self.table(self.version))

    def partition_columns(self) -> pa.Schema:
        return self._planned().partitions

    def split(self, advice: int) -> list[Split]:
        self._planned()
        return self.split_files(self.files_at(self.version), advice)

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        batches = super().read(split)
        yield from map(self._with_blanks, batches) if self._chars else batches

    def _with_blanks(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            with_blanks(values, self._chars.get(field.name.lower(), field))
            for field, values in zip(batch.schema, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    def files_at(self, version: int) -> list[SourceFile]:
        """The data files of a version."""
        location, table = place_of(self.options), self.table(version)
        with explained(location.show(), SourceError):
            check_deletion_vectors(table, location.show())
            files = table_files(table, location.path, location.show(), self.outside(location))
        return self.sources(files)

    def outside(self, location: Location) -> Location | None:
        """The table's place, if its files may be elsewhere."""
        return location if self.options.external_access else None

    def sources(self, files: Sequence[TableFile]) -> list[SourceFile]:
        root = place_of(self.options).root
        return [
            SourceFile(root, file.path, file.size, UNCHANGING, file.partition) for file in files
        ]

    def feed(self, options: FeedOptions) -> ChangeFeed:
        return DeltaFeed(self, options)


class DeltaFeed(ChangeFeed):
    """The rows that new versions of a table add, in one partition.

    A token is a version. The first range of a stream is the table as it was at its end; then each version's commit in
    the log says which files it added. A version that removed rows ends the stream: rows that were delivered cannot be
    taken back.
    """

    def __init__(self, reader: "DeltaReader", options: FeedOptions) -> None:
        if options.cursor_column is not None:
            raise OptionError(
                "option 'cursorColumn' is for databases; a Delta table is streamed by its versions",
                option="cursorColumn",
            )
        if reader.options.as_of is not None:
            raise OptionError(
                "options 'version' and 'timestamp' read one state; a stream reads the versions after its start: omit "
                "them",
                option="version",
            )
        self._reader = reader
        self._advice = reader.options.channels or 2

    def schema(self) -> pa.Schema:
        return self._reader.schema()

    def earliest(self) -> list[Token]:
        return [{"version": _NOTHING}]

    def now(self) -> list[Token]:
        return [{"version": self._newest()}]

    def _newest(self) -> int:
        location = place_of(self._reader.options)
        with explained(location.show(), SourceError):
            return int(self._reader.table().version())

    def latest(self, after: Token, limit: FeedLimit, upto: Token | None = None) -> Token:
        start = _version(after)
        end = self._newest() if upto is None else _version(upto)
        if start > end:
            raise SourceError(
                f"the checkpoint is at version {start}, and {self._shown} has {end}: "
                f"the table was created again, or restored from a copy. {_AGAIN}"
            )
        if start in (end, _NOTHING):
            return {"version": end}
        rows = nbytes = 0
        for version in range(start + 1, end + 1):
            added = self._added(version)
            rows += sum(file["rows"] for file in added)
            nbytes += sum(file["file"].size for file in added)
            over = (limit.rows is not None and rows > limit.rows) or (
                limit.nbytes is not None and nbytes > limit.nbytes
            )
            if over and version > start + 1:
                return {"version": version - 1}
            if over:
                return {"version": version}
        return {"version": end}

    def changes(self, after: Token, upto: Token) -> list[Split]:
        start, end = _version(after), _version(upto)
        if start == _NOTHING and end != _NOTHING:
            return self.base([upto], self._advice)
        files = [
            file["file"] for version in range(start + 1, end + 1) for file in self._added(version)
        ]
        return self._reader.split_files(self._reader.sources(files), self._advice) if files else []

    def base(self, upto: Sequence[Token], advice: int) -> list[Split]:
        files = [file for token in upto for file in self._reader.files_at(_version(token))]
        return self._reader.split_files(files, advice) if files else []

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        return self._reader.read(split)

    def lag(self, token: Token) -> FeedLag:
        start, end = _version(token), self._newest()
        if start == _NOTHING:
            return FeedLag(None, sum(file.size for file in self._reader.files_at(end)), None)
        added = [file for version in range(start + 1, end + 1) for file in self._added(version)]
        return FeedLag(
            sum(file["rows"] for file in added), sum(file["file"].size for file in added), None
        )

    @property
    def _shown(self) -> str:
        return place_of(self._reader.options).show()

    def _added(self, version: int) -> list[dict[str, Any]]:
        """The files that a version added, with rows.

        Raises:
            SourceError: it is no longer in the log, or it removed rows. SchemaError: it changed columns.
        """
        location = place_of(self._reader.options)
        path = posixpath.join(location.path, "_delta_log", f"{version:020d}.json")
        with reading(location.show(path)):
            try:
                with location.fs.open_input_file(path) as stream:
                    lines = bytes(stream.read()).splitlines()
            except FileNotFoundError as error:
                raise SourceError(
                    f"version {version} was removed from the log of {location.show()} "
                    f"(delta.logRetentionDuration). {_AGAIN}"
                ) from error
        files, folders = [], self._reader.partition_columns()
        for line in lines:
            action = json.loads(line)
            if "remove" in action and action["remove"].get("dataChange", True):
                raise SourceError(
                    f"version {version} of {location.show()} removed rows, "
                    f"which the stream has delivered and cannot take back. {_AGAIN}"
                )
            if "metaData" in action:
                self._check_columns(version)
            add = action.get("add")
            if add is not None and add.get("dataChange", True):
                if add.get("deletionVector"):
                    raise SourceError(
                        f"version {version} of {location.show()} has deletion vectors. {_AGAIN}"
                    )
                rows = json.loads(add.get("stats") or "{}").get("numRecords", 0)
                partition = logged_partition(add.get("partitionValues") or {}, folders)
                # The log's paths are uris; get_add_actions gives them as they are:
                # findings/delta-add-actions-are-encoded.sh
                outside = self._reader.outside(location)
                path = file_path(location.path, add["path"], location.show(), outside)
                file = TableFile(path, int(add["size"]), partition)
                files.append({"file": file, "rows": int(rows)})
        return files

    def _check_columns(self, version: int) -> None:
        from spark_channel.connectors.delta.table import columns_of

        expected = self._reader.table_columns()
        columns = columns_of(self._reader.table(version))
        if not expected.equals(columns):
            before, after = {f.name: f for f in expected}, {f.name: f for f in columns}
            same = {
                name for name in before.keys() & after.keys() if before[name].equals(after[name])
            }
            changed = next(name for name in [*before, *after] if name not in same)
            raise SchemaError(
                f"version {version} of {self._shown} changed column {changed!r}, with which the stream began. {_AGAIN}"
            )


def _version(token: Token) -> int:
    version = token.get("version")
    if set(token) != {"version"} or not isinstance(version, int) or version < _NOTHING:
        raise SourceError(
            f"the checkpoint {str(dict(token))[:200]} is not a version of a Delta table: it is damaged, or of another "
            f"source. {_AGAIN}"
        )
    return version
