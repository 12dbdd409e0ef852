"""One module per file format, behind `base.Format`."""

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from spark_channel.connectors.files.formats.base import Format

__all__ = ["format_of"]

_CLASSES = {
    "arrow": "ArrowFormat",
    "csv": "CsvFormat",
    "json": "JsonFormat",
    "orc": "OrcFormat",
    "parquet": "ParquetFormat",
}


@cache
def format_of(name: str) -> "Format":
    """The format of that name; a process imports those that it reads or writes."""
    return cast("Format", getattr(import_module(f"{__name__}.{name}"), _CLASSES[name])())
