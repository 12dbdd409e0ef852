"""One attempt of one task: rows go to a staged Arrow file."""

import pyarrow as pa
import pyarrow.compute as pc

from spark_channel.connectors.sql.change_feed import OPERATION
from spark_channel.connectors.sql.duckdb.column_types import OutOfRangeError, check_range, first_rounded
from spark_channel.connectors.sql.duckdb.target import staged_schema
from spark_channel.connectors.sql.file_task import FileTask
from spark_channel.connectors.sql.target import WriteColumn
from spark_channel.errors import TargetError

__all__ = ["DuckdbTaskWriter"]


class DuckdbTaskWriter(FileTask):
    """Checks values as the table's columns take them."""

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        target = self._plan.target
        arrays = [self._checked(batch.column(column.name), column) for column in target.columns]
        if target.operation is not None:
            arrays.append(pc.cast(batch.column(OPERATION), pa.string()))
        return pa.RecordBatch.from_arrays(arrays, schema=staged_schema(target))

    def _checked(self, array: pa.Array, column: WriteColumn) -> pa.Array:
        try:
            if isinstance(array, pa.ExtensionArray):
                array = array.storage
            if not array.type.equals(column.kind):
                array = pc.cast(array, column.kind)
            check_range(array)
            if (index := first_rounded(array, column.declared)) >= 0:
                raise TargetError(
                    f"column {column.name!r}, row {self._tally.rows + index + 1} of task {self._task}: "
                    f"{array[index].as_py()!r} has more digits than {column.declared} of table "
                    f"{self._plan.target.label!r} keeps"
                )
        except OutOfRangeError as error:
            raise TargetError(
                f"column {column.name!r}, row {self._tally.rows + error.index + 1} "
                f"of task {self._task} cannot be stored in table {self._plan.target.label!r}: "
                "dates go from year 1 to 9999, and a day ends before 24:00:00"
            ) from None
        except pa.ArrowInvalid as error:
            raise TargetError(
                f"column {column.name!r} of task {self._task}, rows from {self._tally.rows + 1} on, "
                f"cannot be stored in table {self._plan.target.label!r} exactly: {error}"
            ) from None
        return array
