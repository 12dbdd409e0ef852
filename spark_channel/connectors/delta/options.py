"""The options of the Delta connector."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, PrivateAttr

from spark_channel.connectors.files.login import Login, StorageSettings, read_settings
from spark_channel.connectors.files.options import Instant
from spark_channel.connectors.lake.options import LakeWriteOptions
from spark_channel.connectors.unity import UnityTable, is_unity, resolve
from spark_channel.errors import OptionError
from spark_channel.options import ByteAmount, FilePath, Options, ReadOptions, Trait

__all__ = ["DeltaReadOptions", "DeltaWriteOptions", "Table"]


def _instant(value: object) -> object:
    return str(value).strip().replace(" ", "T", 1)


class Table(Options):
    """The location of the table."""

    writes: ClassVar[bool]

    path: FilePath = Field(
        description="the table's directory: a path, or an s3, gs or abfs URI; or `uc://catalog.schema.table`"
    )
    storage_options: Annotated[StorageSettings | None, Trait.SAME_ROWS] = Field(
        None,
        description="a JSON object of settings for deltalake's store, and of Unity Catalog for `uc://`; default: those "
        "of the URI and the environment",
    )
    _unity: UnityTable | None = PrivateAttr(None)
    """What the driver found; it travels to tasks with the options."""

    def more_storage(self) -> dict[str, str]:
        return read_settings(self.storage_options)

    @property
    def login(self) -> Login | None:
        """What of the settings the table's data files need, which pyarrow reads and writes."""
        unity = self.unity()
        return Login.of(self.more_storage()) if unity is None else Login((), unity)

    def unity(self) -> UnityTable | None:
        """The table of a `uc://` address, which the catalog is asked for once; None = another address."""
        if self._unity is None and is_unity(self.path):
            self._unity = resolve(self.path, self.more_storage(), writes=self.writes)
        return self._unity

    def with_unity(self, found: UnityTable) -> Self:
        """The same options, of a table that the driver has found."""
        made = self.model_copy()
        made._unity = found  # noqa: SLF001 - another one of this class
        return made

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
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

    writes: ClassVar[bool] = False

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
    split_bytes: ByteAmount | None = Field(
        None, description="approximate bytes of one split; default: all bytes over the splits for `channels`"
    )

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        if self.version is not None and self.timestamp is not None:
            raise OptionError(
                "options 'version' and 'timestamp' both say which state to read; give one", option="timestamp"
            )

    @property
    def as_of(self) -> int | datetime | None:
        return self.timestamp if self.version is None else self.version


class DeltaWriteOptions(Table, LakeWriteOptions):
    """Options of the Delta writer."""

    writes: ClassVar[bool] = True
