"""Options that the writers of lakehouse tables share."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from spark_channel.errors import OptionError
from spark_channel.options import Amount, ByteAmount, ColumnList, WriteOptions

__all__ = ["LakeWriteOptions"]

_TOGETHER = "all files are committed together, and a row that does not fit fails its task"

_MODES = ("insert", "upsert")


class LakeWriteOptions(WriteOptions):
    """Options of every writer of a lakehouse table."""

    aliases: ClassVar[Mapping[str, str]] = {
        **WriteOptions.aliases,
        "codec": "compression",
        "upsertKeyColumns": "keyColumns",
    }
    refused: ClassVar[Mapping[str, str]] = {
        **WriteOptions.refused,
        "maxDirtyRows": _TOGETHER,
        "maxDirtyFraction": _TOGETHER,
        "dirtyRowsPath": _TOGETHER,
        "mergeSchema": "it is 'onSchemaChange=evolve' here",
        "overwriteSchema": "an overwrite keeps the table's columns; 'onSchemaChange=evolve' adds new ones",
        "partitionOverwriteMode": "name the rows to replace with 'replaceWhere'",
    }

    partition_by: ColumnList | None = Field(
        None, description="partition columns of a new table; default: not partitioned"
    )
    write_mode: Literal["insert", "upsert"] = Field(
        "insert",
        description="`upsert`: a row replaces the row with the same `keyColumns`, or is added",
    )
    key_columns: ColumnList | None = Field(None, description="key columns of upsert; default: none")
    replace_where: str | None = Field(
        None,
        description="with overwrite: replace only the rows that match this SQL condition; default: the whole table",
    )
    on_schema_change: Literal["fail", "ignore", "evolve"] = Field(
        "fail",
        description="columns that the table lacks: `fail` is an error, `ignore` leaves them out, `evolve` adds them as "
        "nullable, and in Iceberg widens columns whose type does not hold the rows' numbers",
    )
    create_table: Literal["columns", "keys", "full"] = Field(
        "columns",
        description="what a new table gets of the definition of its source, which is one table of a database: `keys`: "
        "NOT NULL and, as a note that nothing enforces, the primary key; `full`: also comments",
    )
    compression: Literal["none", "snappy", "gzip", "zstd", "lz4"] = Field(
        "zstd", description="codec of the data files"
    )
    max_bytes_per_file: ByteAmount = Field(
        256 << 20, description="approximate most bytes of one data file"
    )
    row_group_rows: Amount = Field(1 << 20, description="most rows of a row group")
    row_group_bytes: ByteAmount = Field(
        64 << 20, description="approximate Arrow bytes of a row group"
    )
    commit_timeout: Annotated[float, Field(ge=0, le=86_400)] = Field(
        600.0, description="how long a commit is retried while other jobs commit first, in seconds"
    )

    @field_validator("write_mode", mode="before")
    @classmethod
    def _mode(cls, value: object) -> object:
        if value in ("skipExisting", "apply"):
            raise ValueError(f"one of {', '.join(_MODES)}; {value} is for databases")
        return value

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        if self.commit == "task":
            raise OptionError(
                "option 'commit' got 'task'; a table's log takes one commit for all tasks, so that readers see all "
                "rows or none. It takes 'job', which is the default",
                option="commit",
                got="task",
                takes="job",
            )
        if (self.write_mode == "upsert") != (self.key_columns is not None):
            raise OptionError(
                "options 'writeMode=upsert' and 'keyColumns' go together: the key says which rows are replaced",
                option="keyColumns" if self.key_columns is None else "writeMode",
            )
        if self.write_mode == "upsert" and self.replace_where is not None:
            raise OptionError(
                "options 'writeMode=upsert' and 'replaceWhere' both say which rows are replaced; give one",
                option="replaceWhere",
                got=self.replace_where,
            )
