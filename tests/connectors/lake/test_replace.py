"""Which files a write looks into for rows to replace, and which keys are equal."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import WriteContext
from spark_channel.connectors.lake.writer import LakeWriter
from spark_channel.errors import OptionError, TargetError
from tests.behaviour.exactly_once.targets import LAKES, Target, open_target

_numbers = itertools.count(1)


@pytest.fixture(params=LAKES)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    for target in open_target(request.param, request, tmp_path):
        target.reset(False)
        yield target


def _write(target: Target, *tables: pa.Table, overwrite: bool = False, **options: Any) -> list[str]:
    """One file of each table; gives the files that were looked into."""
    writer = target.writer(**options)
    assert isinstance(writer, LakeWriter)
    plan = writer.prepare(
        WriteContext(f"job-{next(_numbers)}", overwrite=overwrite), tables[0].schema
    )
    receipts = []
    for task, table in enumerate(tables):
        attempt = writer.open(plan, task, next(_numbers))
        for batch in table.to_batches():
            attempt.write(batch)
        receipts.append(attempt.close())
    seen: list[str] = []
    read = writer.read_file

    def noted(lake: Any, state: Any, file: Any) -> Any:
        seen.append(file.path)
        return read(lake, state, file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "read_file", noted)
        writer.commit(plan, receipts)
    return sorted(set(seen))


def _read(target: Target) -> pa.Table:
    from spark_channel.connectors import load_reader

    options = {name: value for name, value in target.options.items() if name != "writer"}
    reader = load_reader({"reader": target.options["writer"], **options})[0]
    schema = reader.schema()
    return pa.Table.from_batches(
        [b for split in reader.split(1) for b in reader.read(split)], schema
    )


def _day(number: int | None) -> pa.Table:
    day = None if number is None else f"d{number}"
    ids = [(number or 9) * 10 + n for n in range(2)]
    return pa.table({"id": ids, "day": pa.array([day] * 2, pa.string()), "v": [0, 0]})


@pytest.mark.parametrize(
    ("options", "files"),
    [
        ({"replaceWhere": "day = 'd2'"}, 1),
        ({"replaceWhere": "day >= 'd3'"}, 1),
        ({"replaceWhere": "day = 'none'"}, 0),
        ({"replaceWhere": "day IS NULL"}, 1),
        ({"writeMode": "upsert", "keyColumns": "id,day"}, 1),
        ({"writeMode": "upsert", "keyColumns": "day"}, 1),
    ],
    ids=str,
)
def test_files_of_other_partitions_are_not_read(
    target: Target, options: dict[str, str], files: int, request: pytest.FixtureRequest
) -> None:
    _write(target, *map(_day, [1, 2, 3, None]), partitionBy="day")
    where = options.get("replaceWhere")
    rows = _day(2).slice(0, 1)
    if where is not None and "'d2'" not in where:
        rows = rows.slice(0, 0)
    seen = _write(target, rows, overwrite=where is not None, **options)
    if target.options["writer"] == "delta":
        assert len(seen) == files
    days = _read(target)["day"].to_pylist()
    removed = {"day >= 'd3'": "d3", "day IS NULL": None}
    if where in removed:
        assert removed[where] not in days
        assert len(days) == 6
    else:
        kept = {
            "day = 'd2'": 1,
            "day = 'none'": 2,
            None: 2 if "id" in options.get("keyColumns", "") else 1,
        }
        assert days.count("d2") == kept[where]
        assert len(days) == 6 + kept[where]


def test_files_beyond_the_keys_are_not_read_where_the_log_has_bounds(target: Target) -> None:
    _write(target, *(pa.table({"id": [n * 10, n * 10 + 5], "v": [0, 0]}) for n in range(4)))
    seen = _write(target, pa.table({"id": [21], "v": [1]}), writeMode="upsert", keyColumns="id")
    assert len(seen) == (1 if target.options["writer"] == "iceberg" else 4)
    assert _read(target).num_rows == 9


@pytest.mark.parametrize("keys", ["id", "id,m"])
def test_zero_is_one_key(target: Target, keys: str) -> None:
    def rows(*ids: float) -> pa.Table:
        return pa.table({"id": pa.array(ids, pa.float64()), "m": [7] * len(ids)})

    _write(target, rows(0.0, float("nan"), 1.5))
    _write(target, rows(-0.0, float("nan")), writeMode="upsert", keyColumns=keys)
    assert sorted(map(repr, _read(target)["id"].to_pylist())) == ["-0.0", "1.5", "nan"]
    with pytest.raises(TargetError, match="2 rows have the key"):
        _write(target, rows(-0.0, 0.0), writeMode="upsert", keyColumns=keys)


def test_a_nested_key_is_refused_before_any_row_is_written(target: Target) -> None:
    rows = pa.table({"id": [[1]], "v": [1]})
    with pytest.raises(OptionError, match="'keyColumns' names 'id', which is list"):
        target.writer(writeMode="upsert", keyColumns="id").prepare(WriteContext("job"), rows.schema)
