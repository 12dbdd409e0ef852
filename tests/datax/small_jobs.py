"""Small jobs to change one thing in."""

from typing import Any

import pytest

Job = dict[str, Any]


def make_job(
    reader: str = "streamreader",
    reads: dict[str, Any] | None = None,
    writer: str = "streamwriter",
    writes: dict[str, Any] | None = None,
    *,
    setting: dict[str, Any] | None = None,
    transformer: list[Any] | None = None,
    **rest: Any,
) -> Job:
    """A job of one content; by default a stream of ten rows into nothing."""
    stream = {
        "column": [{"value": "x", "type": "string"}, {"value": 1, "type": "long"}],
        "sliceRecordCount": 10,
    }
    content: dict[str, Any] = {
        "reader": {"name": reader, "parameter": stream if reads is None else reads},
        "writer": {"name": writer, "parameter": writes or {}},
    }
    if transformer is not None:
        content["transformer"] = transformer
    return {"job": {"setting": setting or {}, "content": [content]}, **rest}


@pytest.fixture(name="make_job")
def _make_job() -> Any:
    return make_job
