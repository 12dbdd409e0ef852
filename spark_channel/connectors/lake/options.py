"""The options that the writers of lakehouse tables share."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from spark_channel.errors import OptionError
from spark_channel.options import Amount, ByteAmount, ColumnList, WriteOptions

__all__ = ["LakeWriteOptions"]

_TOGETHER = "all files are committed together, and a row that does not fit fails its task"
_MODES = ("insert", "upsert")


class LakeWriteOptions(WriteOptions):
    """What every writer of a lakehouse table takes."""

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
        None, description="partition columns of a table that the write creates"
    )
    write_mode: Literal["insert", "upsert"] = Field(
        "insert", description="`upsert`: a row replaces the one with the same keyColumns, else it is added"
    )
    key_columns: ColumnList | None = Field(None, description="the key of upsert")
    replace_where: str | None = Field(
        None,
        description="with overwrite: replace the rows that match this SQL condition, not the whole table",
    )
    on_schema_change: Literal["fail", "evolve"] = Field(
        "fail", description="columns that the table lacks: an error, or added to the table as nullable"
    )
    compression: Literal["none", "snappy", "gzip", "zstd", "lz4"] = Field(
        "zstd", description="codec of the data files"
    )
    max_bytes_per_file: ByteAmount = Field(
        256 << 20, description="begin a new data file at about so many bytes"
    )
    row_group_rows: Amount = Field(1 << 20, description="most rows of a row group")
    row_group_bytes: ByteAmount = Field(64 << 20, description="about the Arrow bytes of a row group")
    commit_timeout: Annotated[float, Field(ge=0, le=86_400)] = Field(
        600.0, description="seconds to go on trying while other jobs commit to the table first"
    )

    @field_validator("write_mode", mode="before")
    @classmethod
    def _mode(cls, value: object) -> object:
        if value in ("skipExisting", "apply"):
            raise ValueError(f"one of {', '.join(_MODES)}; {value} is for databases")
        return value

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        if self.commit == "task":
            raise OptionError(
                "option 'commit' got 'task'; a table's log takes one commit for all tasks, so that readers see all "
                "rows or none. It takes 'job', which is the default",
                option="commit", got="task", takes="job",
            )  # fmt: skip
        if (self.write_mode == "upsert") != (self.key_columns is not None):
            raise OptionError(
                "options 'writeMode=upsert' and 'keyColumns' go together: the key says which rows are replaced",
                option="keyColumns" if self.key_columns is None else "writeMode",
            )
        if self.write_mode == "upsert" and self.replace_where is not None:
            raise OptionError(
                "options 'writeMode=upsert' and 'replaceWhere' both say which rows are replaced; give one",
                option="replaceWhere", got=self.replace_where,
            )  # fmt: skip
