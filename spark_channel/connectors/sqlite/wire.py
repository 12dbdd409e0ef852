"""Messages between a process and its child: batches as Arrow IPC, errors by name."""

import builtins
from typing import Any, cast

import adbc_driver_manager
import pyarrow as pa

__all__ = ["batches_of", "error_from", "error_to", "ipc"]

_PLACES = {"adbc": adbc_driver_manager, "arrow": pa, "builtins": builtins}


def ipc(rows: pa.Table | pa.RecordBatch) -> bytes:
    """Only `rows`, and not the whole buffers of which they are a slice."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write(rows)
    return cast(bytes, sink.getvalue().to_pybytes())


def batches_of(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(data) as stream:
        return stream.read_all()


def error_to(error: Exception) -> tuple[str, str, Any, Any]:
    """ADBC's errors cannot be pickled."""
    name = type(error).__name__
    if isinstance(error, adbc_driver_manager.Error):
        return "adbc", name, str(error), int(error.status_code)
    if isinstance(error, OSError):
        return "builtins", "OSError", str(error), None
    return ("arrow" if isinstance(error, pa.ArrowException) else "builtins"), name, str(error), None


def error_from(place: str, name: str, text: str, status: int | None) -> Exception:
    kind: Any = getattr(_PLACES[place], name, RuntimeError)
    if status is not None:
        return cast(Exception, kind(text, status_code=adbc_driver_manager.AdbcStatusCode(status)))
    return cast(Exception, kind(text))
