"""The staging of one attempt beside a database file: an Arrow file that exists completely or not at all."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_channel.connectors.sql.life import SignOfLife
from spark_channel.connectors.sql.staging_files import Staging, target_errors

__all__ = ["StagedFile"]


class StagedFile:
    """The file of one attempt of one task; an attempt without rows has none.

    Used by one thread. `token` proves that this process sees the directory which the driver made. `when_gone` is
    called when the directory was removed meanwhile, to raise what explains it.

    Raises:
        TargetError: it does not see it, the job has ended, or the disk fails; from every method but `drop`.
    """

    def __init__(
        self,
        directory: str,
        token: str,
        task: int,
        attempt: int,
        *,
        when_gone: Callable[[], None] = lambda: None,
    ) -> None:
        self._staging = Staging(Path(directory))
        self._when_gone = when_gone
        self._token = token
        self._check()
        self._life = SignOfLife(self._staging.show_life)
        self.path = self._staging.new_file(task, attempt)
        self._file: Any = None
        self._ipc: Any = None

    def write(self, batch: pa.RecordBatch) -> None:
        with target_errors(self.path):
            if self._ipc is None:
                # Not "xb": the name is random, and a removed directory says that the job was aborted.
                self._file = self._open()
                self._ipc = pa.ipc.new_file(self._file, batch.schema)
            self._ipc.write_batch(batch)

    def _open(self) -> Any:
        try:
            return self.path.open("wb")
        except FileNotFoundError:
            self._check()
            raise

    def _check(self) -> None:
        if not self._staging.is_there():
            self._when_gone()
        self._staging.check(self._token)

    def flush(self) -> None:
        if self._file is not None:
            with target_errors(self.path):
                self._file.flush()

    def close(self) -> bool:
        """Make it whole and durable; whether there is one."""
        ipc, self._ipc = self._ipc, None
        if ipc is not None:
            with target_errors(self.path):
                ipc.close()
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
        self._check()
        self._life.end()
        return ipc is not None

    def drop(self) -> None:
        """Remove it. Safe at any time, and twice."""
        self._life.end()
        ipc, file = self._ipc, self._file
        self._ipc = self._file = None
        for each in (ipc, file):
            if each is not None:
                try:
                    each.close()
                except (OSError, ValueError):
                    pass  # a full disk, or closed already: what was written is removed next
        self.path.unlink(missing_ok=True)
