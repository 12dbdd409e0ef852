"""The driver and the Parquet writer of a load, with nothing between them: what no load can be faster than.

No plan, no splits, no channel, no Spark, no commit: each process reads its half of the keys and writes one file.
"""

from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

__all__ = ["Alone"]

_GROUP_BYTES = 64 << 20


class Alone:
    """`processes` that are kept, as Spark keeps its own."""

    def __init__(self, uri: str, last: int, processes: int) -> None:
        self._uri, self._step, self._count = uri, -(-last // processes), processes
        self._pool: Pool = get_context("spawn").Pool(processes)

    def load(self, folder: Path) -> None:
        folder.mkdir()
        parts = []
        for n in range(self._count):
            keys = f"o_orderkey > {n * self._step} AND o_orderkey <= {(n + 1) * self._step}"
            parts.append((self._uri, keys, folder / f"{n}.parquet"))
        self._pool.starmap(_load, parts, chunksize=1)

    def close(self) -> None:
        self._pool.terminate()
        self._pool.join()


def _load(uri: str, condition: str, path: Path) -> None:
    columns = (
        "o_orderkey, o_custkey, o_orderstatus, o_totalprice::text AS o_totalprice, o_orderdate, o_orderpriority, "
        "o_clerk, o_shippriority, o_comment"
    )
    with adbc.connect(uri) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT {columns} FROM orders WHERE {condition}")
        batches = cursor.fetch_record_batch()
        price = batches.schema.get_field_index("o_totalprice")
        schema = batches.schema.set(price, pa.field("o_totalprice", pa.decimal128(15, 2)))
        with pq.ParquetWriter(path, schema, compression="zstd", version="2.6") as writer:
            held: list[pa.RecordBatch] = []
            for batch in batches:
                arrays = batch.columns
                arrays[price] = pc.cast(arrays[price], schema.field(price).type)
                held.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
                if sum(each.nbytes for each in held) >= _GROUP_BYTES:
                    _write_group(writer, held, schema)
            _write_group(writer, held, schema)


def _write_group(writer: pq.ParquetWriter, held: list[pa.RecordBatch], schema: pa.Schema) -> None:
    table = pa.Table.from_batches(held, schema)
    held.clear()
    if table.num_rows:
        writer.write_table(table, row_group_size=table.num_rows)
