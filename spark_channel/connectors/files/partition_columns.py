"""Partition columns: the values in folder names such as `year=2024`, typed as Spark types them where no value changes.

So `01` and `2020-W01` stay text, which Spark reads as a number and a time.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from spark_channel.connectors.base.types import is_plain
from spark_channel.connectors.files.listing import SourceFile
from spark_channel.errors import SourceError

__all__ = ["partition_fields", "partition_value"]


def _int(text: str, kind: pa.DataType) -> int:
    value = int(text)
    if not -(2 ** (kind.bit_width - 1)) <= value < 2 ** (kind.bit_width - 1):
        raise ValueError
    return value


def _float(text: str, kind: pa.DataType) -> float:
    return float(text)


def _decimal(text: str, kind: pa.DataType) -> Decimal:
    value = Decimal(int(text))
    if len(value.as_tuple().digits) > kind.precision:
        raise ValueError
    return value


def _date(text: str, kind: pa.DataType) -> date:
    return date.fromisoformat(text)


def _time(text: str, kind: pa.DataType) -> datetime:
    value = datetime.fromisoformat(text)
    if value.tzinfo is not None:
        raise ValueError
    return value


def _text(text: str, kind: pa.DataType) -> str:
    return text


_LADDER: tuple[tuple[pa.DataType, Callable[[str, pa.DataType], Any]], ...] = (
    (pa.int32(), _int),
    (pa.int64(), _int),
    (pa.decimal128(38, 0), _decimal),
    (pa.float64(), _float),
    (pa.date32(), _date),
    (pa.timestamp("us"), _time),
    (pa.string(), _text),
)


def _fits(texts: Iterable[str], kind: pa.DataType, read: Callable[[str, pa.DataType], Any]) -> bool:
    """Whether each text is a value of `kind` that gives it back."""
    try:
        for text in texts:
            if not is_plain(text, kind):
                return False
            read(text, kind)
    except ValueError:
        return False
    return True


def partition_fields(files: Sequence[SourceFile]) -> list[pa.Field]:
    """The partition columns that all files share, with the narrowest type that holds every value.

    Raises:
        SourceError: some files lie in other partition folders than the rest.
    """
    names: tuple[str, ...] | None = None
    values: dict[str, set[str]] = {}
    for file in files:
        names_here = tuple(name for name, _ in file.partition)
        if names is not None and names_here != names:
            raise SourceError(
                f"{file.path} lies under partition columns {list(names_here)}, "
                f"and {files[0].path} under {list(names)}; "
                "read each tree separately, or set recursiveFileLookup=true to read without partition columns"
            )
        names = names_here
        for name, value in file.partition:
            texts_of_column = values.setdefault(name, set())
            if value is not None:
                texts_of_column.add(value)
    fields = []
    for name, texts in values.items():
        kind = (
            next(kind for kind, read in _LADDER if _fits(texts, kind, read))
            if texts
            else pa.string()
        )
        fields.append(pa.field(name, kind))
    return fields


def partition_value(name: str, text: str | None, kind: pa.DataType) -> pa.Scalar:
    """The value of a folder's name in its column's type.

    Raises:
        SourceError: it does not fit.
    """
    if text is None:
        return pa.scalar(None, kind)
    for rung, read in _LADDER:
        if rung == kind:
            try:
                return pa.scalar(read(text, rung), rung)
            except ValueError:
                break
    else:
        try:
            return pa.scalar(text, pa.string()).cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            pass
    raise SourceError(
        f"folder {name}={text}: the value is not of the partition column's type {kind}. "
        f"Rename the folder, or give {name!r} another type in the schema"
    )
