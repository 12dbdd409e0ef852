"""Rows that a write replaces: a file of which all rows are replaced is removed, another one is rewritten.

The driver does this before the commit, file by file. The result for each file is kept: when another job commits first,
only files that it added are looked at.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any

import pyarrow as pa

from spark_channel.connectors.files.conditions import Condition, ValueRange
from spark_channel.connectors.files.literals import exact
from spark_channel.connectors.lake.table import NewFile, TableFile
from spark_channel.connectors.lake.task_writer import FileSet
from spark_channel.errors import TargetError
from spark_channel.lazy import compute as pc

__all__ = ["KeyMatch", "Replaced", "RowMatcher", "WhereMatch"]


Read = Callable[[TableFile], Iterable[pa.RecordBatch]]
"""The rows of a file, in the table's columns."""

_ROW = "spark_channel_row"


class RowMatcher(ABC):
    """The rows of the table that a write replaces."""

    @abstractmethod
    def goes(self, batch: pa.RecordBatch) -> pa.Array:
        """true where a row goes; never NULL."""

    @property
    @abstractmethod
    def columns(self) -> Collection[str]:
        """The columns that decide which rows go."""

    @abstractmethod
    def may_go(self, ranges: Mapping[str, ValueRange]) -> bool:
        """False only when no row of a file with these values of `columns` goes."""


@dataclass(frozen=True)
class WhereMatch(RowMatcher):
    """The rows that match a condition."""

    condition: Condition

    def goes(self, batch: pa.RecordBatch) -> pa.Array:
        return pc.fill_null(self.condition.mask(batch), False)

    @property
    def columns(self) -> Collection[str]:
        return self.condition.columns

    def may_go(self, ranges: Mapping[str, ValueRange]) -> bool:
        return self.condition.may_match(ranges)


class KeyMatch(RowMatcher):
    """The rows whose key is among `keys`, a table with a column for each of `names`.

    Raises:
        TargetError: two rows have one key.
    """

    def __init__(self, keys: pa.Table, names: Sequence[str]) -> None:
        self._names = list(names)
        # By numbers: Arrow takes some names for paths.
        self._columns = [str(number) for number in range(len(names))]
        keys = pa.table([_comparable(keys[name]) for name in names], names=self._columns)
        counted = keys.group_by(self._columns).aggregate([([], "count_all")])
        twice = counted.filter(pc.greater(counted["count_all"], 1))
        if twice.num_rows:
            key_text = {
                name: twice[column][0].as_py()
                for name, column in zip(names, self._columns, strict=True)
            }
            raise TargetError(
                f"writeMode=upsert: {twice['count_all'][0].as_py()} rows have the key {key_text}: "
                "keep one row of each key, or name more 'keyColumns'"
            )
        self._keys = keys.combine_chunks()
        self._bounds = {
            name: _bounds(self._keys[column])
            for name, column in zip(names, self._columns, strict=True)
        }

    @property
    def columns(self) -> Collection[str]:
        return self._names

    def may_go(self, ranges: Mapping[str, ValueRange]) -> bool:
        return self._keys.num_rows > 0 and all(
            self._may_hold(name, value_range) for name, value_range in ranges.items()
        )

    def _may_hold(self, name: str, value_range: ValueRange) -> bool:
        bounds = self._bounds[name]
        if value_range.only_nulls():
            return False  # a key holds no NULL
        if bounds is None or value_range.low is None or value_range.high is None:
            return True
        return bool(value_range.low <= bounds[1] and bounds[0] <= value_range.high)

    def goes(self, batch: pa.RecordBatch) -> pa.Array:
        if len(self._names) == 1:
            return pc.is_in(
                _comparable(batch.column(self._names[0])),
                value_set=self._keys[self._columns[0]].combine_chunks(),
            )
        rows = pa.table(
            [_comparable(batch.column(name)) for name in self._names], names=self._columns
        )
        rows = rows.append_column(_ROW, pa.array(range(batch.num_rows), pa.int64()))
        matching = rows.join(
            self._keys, keys=self._columns, join_type="left semi", use_threads=False
        )
        return pc.is_in(
            pa.array(range(batch.num_rows), pa.int64()), value_set=matching[_ROW].combine_chunks()
        )


def _comparable(values: Any) -> Any:
    """With one zero: Arrow distinguishes -0.0 and 0.0, and SQL does not."""
    return (
        pc.add(values, pa.scalar(0, values.type)) if pa.types.is_floating(values.type) else values
    )


def _bounds(values: Any) -> tuple[Any, Any] | None:
    """The smallest and the largest key, in the values of `literals.exact`; None = not known."""
    try:
        extremes = pc.min_max(values).as_py()
        return exact(extremes["min"], values.type), exact(extremes["max"], values.type)
    except (pa.ArrowException, ValueError, TypeError):
        return None


@dataclass
class Replaced:
    """`of` says what became of the files of one version of the table."""

    rows: RowMatcher
    ranges: Callable[[TableFile], Mapping[str, ValueRange]]
    read: Read
    write: Callable[[], FileSet]
    _known: dict[str, tuple[bool, tuple[NewFile, ...]]] = dataclass_field(default_factory=dict)

    def changes(self, files: Sequence[TableFile]) -> tuple[list[TableFile], list[NewFile]]:
        """(the files to remove, the files to add with the rows that stay)."""
        removed: list[TableFile] = []
        added: list[NewFile] = []
        for file in files:
            goes, stay = self._known.get(file.path) or self._look(file)
            self._known[file.path] = goes, stay
            if goes:
                removed.append(file)
                added.extend(stay)
        return removed, added

    def _look(self, file: TableFile) -> tuple[bool, tuple[NewFile, ...]]:
        if not self.rows.may_go(self.ranges(file)):
            return False, ()
        if not any(pc.any(self.rows.goes(batch)).as_py() for batch in self.read(file)):
            return False, ()
        files = self.write()
        try:
            for batch in self._staying(file):
                files.write(batch)
            files.finish()
        except BaseException:
            files.drop()
            raise
        return True, tuple(files.files)

    def _staying(self, file: TableFile) -> Iterator[pa.RecordBatch]:
        for batch in self.read(file):
            yield batch.filter(pc.invert(self.rows.goes(batch)))
