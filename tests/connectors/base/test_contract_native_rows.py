"""Batches of native rows: counted, sliced and put together as any batch, and their bytes come out as they went in."""

import numpy as np
import pyarrow as pa
import pytest

from spark_channel.channel.batches import arrow_bytes
from spark_channel.connectors.base.contract import NATIVE, native_batch, native_data

ROWS = [b"first", b"", b"the third row"]


def _batch() -> pa.RecordBatch:
    return native_batch(b"".join(ROWS), np.array([0, 5, 5, 18], np.int64))


def test_a_row_is_a_value() -> None:
    batch = _batch()
    batch.validate(full=True)
    assert batch.schema.equals(NATIVE)
    assert batch.column(0).to_pylist() == ROWS
    assert bytes(native_data(batch)) == b"".join(ROWS)
    assert arrow_bytes(batch) == 18 + 3 * 8, "the rows, and where each of them lies"


@pytest.mark.parametrize("start", range(4))
@pytest.mark.parametrize("rows", range(4))
def test_a_slice_holds_its_own_rows(start: int, rows: int) -> None:
    assert bytes(native_data(_batch().slice(start, rows))) == b"".join(ROWS[start : start + rows])


def test_no_rows() -> None:
    assert native_batch(b"", np.zeros(1, np.int64)).num_rows == 0
    assert bytes(native_data(_batch().slice(3))) == b""
    assert bytes(native_data(pa.RecordBatch.from_pylist([], NATIVE))) == b""
