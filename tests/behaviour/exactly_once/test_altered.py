"""A table that is altered while tasks of `commit=task` run: it gets no value that the server changed."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import WriteContext
from spark_channel.errors import TargetError
from tests.behaviour.exactly_once.targets import Target, open_target

_ROWS = pa.record_batch(
    {"id": pa.array([1], pa.int64()), "v": pa.array([Decimal("1.25")], pa.decimal128(10, 2))}
)
_CREATE = "CREATE TABLE t (id BIGINT NOT NULL PRIMARY KEY, v DECIMAL(10,2))"
_CHANGES = {
    "rounds": ("DECIMAL(10,0)", r"column 'v' was '\w+\(10,2\)' .* is '\w+\(10,0\)' now"),
    "text": ("VARCHAR(20)", r"column 'v' was '\w+\(10,2\)' .* is '[\w ]+\(20\)' now"),
}
_UPSERT = {"writeMode": "upsert", "keyColumns": "id"}
_LIMIT = {"rowsPerSecond": "1M"}
_WAYS: dict[str, dict[str, str]] = {
    "append": {},
    "upsert": _UPSERT,
    "held": _LIMIT,
    "staged": {**_LIMIT, "capacityBytes": "1"},
    "staged upsert": {**_LIMIT, **_UPSERT, "capacityBytes": "1"},
}


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    yield from open_target(request.param, request, tmp_path)


def _altered(target: Target, change: str) -> list[str]:
    if target.kind == "postgresql":
        return [f"ALTER TABLE t ALTER COLUMN v TYPE {change}"]
    if target.kind == "mysql":
        return [f"ALTER TABLE t MODIFY COLUMN v {change}"]
    return ["DROP TABLE t", _CREATE.replace("DECIMAL(10,2)", change)]


def _task(target: Target, changes: list[str], **options: Any) -> None:
    target.reset(False)
    if target.kind == "sqlite":
        Path(target.options["path"]).touch()
    target.sql(_CREATE)
    writer = target.writer(**options)
    plan = writer.prepare(WriteContext("altered", commit="task"), _ROWS.schema)
    for statement in changes:
        target.sql(statement)
    task = writer.open(plan, 0, 0)
    try:
        task.write(_ROWS)
        receipt = task.close()
    except TargetError:
        task.rollback()
        writer.abort(plan, None)
        raise
    writer.commit(plan, [receipt])


@pytest.mark.parametrize("way", list(_WAYS))
@pytest.mark.parametrize("change", list(_CHANGES))
def test_a_column_of_another_type_is_refused(target: Target, change: str, way: str) -> None:
    kind, message = _CHANGES[change]
    with pytest.raises(TargetError, match=f"'(protocol\\.)?t' was altered.*{message}"):
        _task(target, _altered(target, kind), **_WAYS[way])
    assert target.sql("SELECT * FROM t") == []
    assert target.staged() == []


@pytest.mark.parametrize("way", list(_WAYS))
def test_a_column_that_is_not_written_may_come(target: Target, way: str) -> None:
    _task(target, ["ALTER TABLE t ADD COLUMN late INT"], **_WAYS[way])
    assert target.sql("SELECT id, v FROM t") == [("1", "1.25")]
