"""Options of the Delta connector, and the table that they name."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field

from spark_channel.connectors.files.credentials import (
    StorageCredentials,
    StorageSettings,
    read_settings,
)
from spark_channel.connectors.lake.options import LakeWriteOptions
from spark_channel.errors import OptionError, UnsupportedError
from spark_channel.option_types import Instant
from spark_channel.options import ByteAmount, FilePath, Options, ReadOptions, Trait

__all__ = ["DeltaReadOptions", "DeltaWriteOptions", "Table"]


def _instant(value: object) -> object:
    return str(value).strip().replace(" ", "T", 1)


class Table(Options):
    """The location of the table."""

    path: FilePath = Field(description="the table's directory: a path, or an s3, gs or abfs URI")
    storage_options: Annotated[StorageSettings | None, Trait.SAME_ROWS] = Field(
        None,
        description="a JSON object of settings for deltalake's store; default: those of the URI and the environment",
    )

    def more_storage(self) -> dict[str, str]:
        return read_settings(self.storage_options)

    @property
    def login(self) -> StorageCredentials | None:
        """What of the settings the table's data files need, which pyarrow reads and writes."""
        return StorageCredentials.from_settings(self.more_storage())

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        if self.path.lower().startswith("uc:"):
            raise UnsupportedError(
                f"option 'path' got {self.path!r}: names and temporary credentials of Unity Catalog are not supported. "
                "Set 'path' to the table's storage location (s3, gs or abfs), with your own credentials for it, or use "
                "Databricks' own Delta format in Spark"
            )
        settings = {name.lower(): value.lower() for name, value in self.more_storage().items()}
        for name in ("aws_s3_allow_unsafe_rename", "allow_unsafe_rename"):
            if settings.get(name) in ("true", "1"):
                raise OptionError(
                    f"option 'storageOptions' sets {name}: two jobs could then commit one version, "
                    "and lose each other's rows. Remove it: S3 supports conditional puts",
                    option="storageOptions",
                )


class DeltaReadOptions(Table, ReadOptions):
    """Options of the Delta reader."""

    aliases: ClassVar[Mapping[str, str]] = {
        **ReadOptions.aliases,
        "versionAsOf": "version",
        "timestampAsOf": "timestamp",
    }
    refused: ClassVar[Mapping[str, str]] = {
        "readChangeFeed": "versions are read as the rows that they add",
        "ignoreDeletes": "a stream ends with an error where rows were removed: begin a new one",
        "ignoreChanges": "a stream ends with an error where rows were removed: begin a new one",
        "skipChangeCommits": "a stream ends with an error where rows were removed: begin a new one",
    }

    version: Annotated[int, Field(ge=0)] | None = Field(
        None, description="read the table as of this version; default: the newest"
    )
    timestamp: Annotated[Instant, BeforeValidator(_instant)] | None = Field(
        None, description="read the table as of this time, UTC unless it has a zone; default: now"
    )
    external_access: bool = Field(
        False,
        description="whether the table's log may name files outside its directory, as that of a shallow clone does; "
        "set it for tables that you trust",
    )
    split_bytes: ByteAmount | None = Field(
        None,
        description="approximate bytes of one split; default: all bytes over the splits for `channels`",
    )

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        if self.version is not None and self.timestamp is not None:
            raise OptionError(
                "options 'version' and 'timestamp' both say which state to read; give one",
                option="timestamp",
            )

    @property
    def as_of(self) -> int | datetime | None:
        return self.timestamp if self.version is None else self.version


class DeltaWriteOptions(Table, LakeWriteOptions):
    """Options of the Delta writer."""
