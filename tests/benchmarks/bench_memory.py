"""The memory of a process that reads a result of 10 GB: it should not grow.

`SPARK_CHANNEL_BENCH_GB` sets the size.
"""

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from spark_channel.connectors import load_reader
from tests.benchmarks.harness import Row, print_table
from tests.servers.postgres import PostgresServer

__all__ = ["main"]

BYTES = int(float(os.environ.get("SPARK_CHANNEL_BENCH_GB", "10")) * 1e9)
LOOKS = 20
ROW_BYTES = 2_060
"""A number, a text of 2 048 bytes, and its offset."""
QUERY = "SELECT g AS id, repeat(md5(g::text), 64) AS body FROM generate_series(1, {rows}) g"


def resident() -> int:
    """Bytes of this process that lie in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def read(login: dict[str, str], nbytes: int) -> list[int]:
    """Memory in use after each part of a result of `nbytes`."""
    query = QUERY.format(rows=nbytes // ROW_BYTES)
    reader, _ = load_reader({"reader": "postgresql", "query": query, **login})
    reader.schema()
    looks: list[int] = []
    passed = 0
    with reader.reading() as splits:
        for split in reader.split(1):
            for batch in splits(split):
                passed += batch.nbytes
                if passed >= (len(looks) + 1) * nbytes / LOOKS:
                    looks.append(resident())
    return looks


def main() -> list[Row]:
    server = PostgresServer.create(shared_buffers="128MB")
    try:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            looks = pool.submit(read, server.login, BYTES).result()
    finally:
        server.close()
    note = f"{len(looks)} looks, {BYTES / 1e9:g} GB, the most {max(looks) / 1e6:.0f} MB"
    return [
        Row(
            "memory of a long read: the most against the first look",
            max(looks) / looks[0],
            "<= 1.1",
            "x",
            note,
        )
    ]


if __name__ == "__main__":
    print_table(main())
