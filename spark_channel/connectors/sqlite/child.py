"""The program of a child process that works on SQLite files for its parent, one connection at a time.

The parent's end of the pipe is its life: when that is closed, an open transaction is rolled back and the child ends.
"""

import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection as Pipe
from typing import Any

import pyarrow as pa

from spark_channel.connectors.sqlite.connection import LocalConnection
from spark_channel.connectors.sqlite.wire import batches_of, error_to, ipc

__all__ = ["IDLE_SECONDS", "main"]

IDLE_SECONDS = 30.0
"""How long a child without a connection waits for the next one."""


class _Server:
    """The calls that a parent may make."""

    def __init__(self) -> None:
        self.connection: LocalConnection | None = None
        self._streams: dict[int, Iterator[pa.RecordBatch]] = {}

    def open(self, uri: str) -> None:
        self.connection = LocalConnection(uri)

    def rows(self, sql: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        assert self.connection is not None
        return self.connection.rows(sql, parameters)

    def insert(self, sql: str, data: bytes) -> None:
        assert self.connection is not None
        self.connection.insert(sql, batches_of(data))

    def stream(self, number: int, sql: str, batch_rows: int) -> None:
        assert self.connection is not None
        self._streams[number] = self.connection.stream(sql, batch_rows)

    def next(self, number: int) -> bytes | None:
        for batch in self._streams[number]:
            return ipc(batch)
        return None

    def end(self, number: int) -> None:
        stream: Any = self._streams.pop(number, None)
        if stream is not None:
            stream.close()

    def close(self) -> None:
        for number in list(self._streams):
            self.end(number)
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()


def main(descriptor: int) -> None:
    server = _Server()
    with Pipe(descriptor) as pipe:
        try:
            while server.connection is not None or pipe.poll(IDLE_SECONDS):
                name, arguments = pipe.recv()
                try:
                    answer = True, getattr(server, name)(*arguments)
                except Exception as error:
                    answer = False, error_to(error)
                pipe.send(answer)
        except (EOFError, OSError):
            pass  # the parent has ended, or has no more use for this process
        finally:
            server.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
