"""One attempt of one task: rows go to a staged Arrow file."""

import pyarrow as pa
import pyarrow.compute as pc

from spark_channel.connectors.contracts import Receipt, Tally, TaskWriter
from spark_channel.connectors.sql.change_feed import OPERATION
from spark_channel.connectors.sql.duckdb.column_types import OutOfRangeError, check_range, first_rounded
from spark_channel.connectors.sql.duckdb.target import staged_schema
from spark_channel.connectors.sql.file_writer import FilePlan
from spark_channel.connectors.sql.staged_file import StagedFile
from spark_channel.connectors.sql.target import WriteColumn
from spark_channel.errors import TargetError

__all__ = ["DuckdbTaskWriter"]


class DuckdbTaskWriter(TaskWriter):
    """Stages under a name of its own; an attempt without rows stages nothing."""

    def __init__(self, plan: FilePlan, task: int, attempt: int) -> None:
        self._plan = plan
        self._schema = staged_schema(plan.target)
        self._file = StagedFile(plan.staging, plan.token, task, attempt)
        self._tally = Tally(task, attempt)

    def write(self, batch: pa.RecordBatch) -> None:
        self._tally.hold_open()
        arrays = [self._encode(batch.column(column.name), column) for column in self._plan.target.columns]
        if self._plan.target.operation is not None:
            arrays.append(pc.cast(batch.column(OPERATION), pa.string()))
        self._file.write(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._tally.add(batch)

    def flush(self) -> None:
        self._tally.hold_open()
        self._file.flush()

    def close(self) -> Receipt:
        self._tally.hold_open()
        staged = self._file.close()
        return self._tally.receipt(file=self._file.path.name if staged else None)

    def rollback(self) -> None:
        self._tally.ended = True
        self._file.drop()

    def _encode(self, array: pa.Array, column: WriteColumn) -> pa.Array:
        try:
            if isinstance(array, pa.ExtensionArray):
                array = array.storage
            if not array.type.equals(column.kind):
                array = pc.cast(array, column.kind)
            check_range(array)
            if (index := first_rounded(array, column.declared)) >= 0:
                raise TargetError(
                    f"column {column.name!r}, row {self._tally.rows + index + 1} of task {self._tally.task}: "
                    f"{array[index].as_py()!r} has more digits than {column.declared} of table "
                    f"{self._plan.target.label!r} keeps"
                )
        except OutOfRangeError as error:
            raise TargetError(
                f"column {column.name!r}, row {self._tally.rows + error.index + 1} of task {self._tally.task} "
                f"cannot be stored in table {self._plan.target.label!r}: dates go from year 1 to 9999, and a "
                "day ends before 24:00:00"
            ) from None
        except pa.ArrowInvalid as error:
            raise TargetError(
                f"column {column.name!r} of task {self._tally.task}, rows from {self._tally.rows + 1} on, cannot be "
                f"stored in table {self._plan.target.label!r} exactly: {error}"
            ) from None
        return array
