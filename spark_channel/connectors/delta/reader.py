"""The reader of Delta tables: the files of one version, split, pruned and read as other Parquet files are."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_channel.connectors.delta.features import check_deletion_vectors, check_readable
from spark_channel.connectors.delta.log import table_files
from spark_channel.connectors.delta.open import columns_of, explained, open_table, place_of
from spark_channel.connectors.delta.options import DeltaReadOptions
from spark_channel.connectors.feed import ChangeFeed, FeedOptions
from spark_channel.connectors.files.columns import check_columns
from spark_channel.connectors.files.formats.base import Format
from spark_channel.connectors.files.formats.parquet import ParquetFormat
from spark_channel.connectors.files.listing import UNCHANGING, SourceFile
from spark_channel.connectors.files.reader import FilesReader
from spark_channel.connectors.files.source import SourcePlan, plan_columns
from spark_channel.connectors.lake.table import TableFile
from spark_channel.errors import SourceError
from spark_channel.planning import Split

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = ["DeltaReader"]


class _DeltaParquet(ParquetFormat):
    """Spark writes times of 96 bits by default, in microseconds, of any year."""

    int96_unit = "us"


_PARQUET = _DeltaParquet()


class DeltaReader(FilesReader):
    """The version that `schema` found is the one that is split and read."""

    Options = DeltaReadOptions
    options: DeltaReadOptions
    format = "parquet"

    @property
    def form(self) -> Format:
        return _PARQUET

    def __init__(self, options: DeltaReadOptions) -> None:
        super().__init__(options)
        self._version: int | None = None

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
        place = place_of(self.options)
        with explained(place.show(), SourceError):
            as_of = self.options.as_of if version is None else version
            found = open_table(self.options, place, as_of)
            check_readable(found, place.show())
            return found

    def _planned(self) -> SourcePlan:
        if self._plan is None:
            table = self.table(self._version)
            columns = columns_of(table)
            check_columns(columns)
            folders = list(table.metadata().partition_columns)
            in_files = pa.schema([field for field in columns if field.name not in folders])
            in_folders = pa.schema([columns.field(name) for name in folders])
            # Given as the table's own, so that partition columns keep their places.
            self._plan = plan_columns(self.form, self.options, in_files, in_folders, self._given or columns)
            self._version = table.version()
        return self._plan

    def table_columns(self) -> pa.Schema:
        """Every column of the version that the read began with."""
        return columns_of(self.table(self.version))

    def partition_columns(self) -> pa.Schema:
        return self._planned().partitions

    def split(self, advice: int) -> list[Split]:
        self._planned()
        return self.split_files(self.files_at(self.version), advice)

    def files_at(self, version: int) -> list[SourceFile]:
        """The data files of a version."""
        place, table = place_of(self.options), self.table(version)
        with explained(place.show(), SourceError):
            check_deletion_vectors(table, place.show())
            found = table_files(table, place.path, place.show())
        return self.sources(found)

    def sources(self, files: Sequence[TableFile]) -> list[SourceFile]:
        root = place_of(self.options).root
        return [SourceFile(root, file.path, file.size, UNCHANGING, file.partition) for file in files]

    def feed(self, options: FeedOptions) -> ChangeFeed:
        from spark_channel.connectors.delta.feed import DeltaFeed

        return DeltaFeed(self, options)
