"""How a task stages rows for a database that is one file: in an Arrow file beside it, which needs no session."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import pyarrow as pa

from spark_channel.connectors.sql.write.file_staging import StagedFile
from spark_channel.connectors.sql.write.loading import Rows

__all__ = ["FileStaging"]


@final
class FileStaging:
    """Stages the rows of one attempt in its own file, each batch as `encode` makes it; so many rows came before it."""

    has_session = opens_first = fences_last = False

    def __init__(
        self, file: StagedFile, encode: Callable[[pa.RecordBatch, int], pa.RecordBatch]
    ) -> None:
        self._file, self._encode = file, encode
        self._has_file = False

    @property
    def paths(self) -> list[Path]:
        """After `finish`: the file, if the attempt has rows."""
        return [self._file.path] if self._has_file else []

    def ready(self, session: object) -> None:
        pass

    def add(self, session: object, rows: Rows, before: int, spread: float) -> bool:
        assert isinstance(rows, pa.RecordBatch)
        self._file.write(self._encode(rows, before))
        return True

    def finish(self) -> dict[str, Any]:
        self._has_file = self._file.close()
        return {"file": self._file.path.name if self._has_file else None}

    def flush(self) -> None:
        self._file.flush()

    def forget(self, session: object) -> None:
        self._file.drop()
