"""What a table of Spark and its reads, appends, upserts and overwrites by the connector come to, judged by Spark."""

from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import WriteContext, load_reader, load_writer
from spark_channel.errors import SchemaError, UnsupportedError
from tests.connectors.lake.deltas import Made
from tests.servers.lake_spark import LakeSpark

__all__ = ["check"]

Rows = list[dict[str, Any]]


def _same(found: Rows, expected: Rows) -> None:
    """Compare values, NaN and -0.0 among them, in any order."""
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


def _planned(options: dict[str, str]) -> Any:
    source = load_reader(options)[0]
    schema = source.schema()
    splits = source.split(2)
    return source, schema, splits


def check(spark: LakeSpark, made: Made, query: str, options: dict[str, str]) -> None:
    """Spark finds the rows of a table with `query`, and the connector with `options`."""
    expected = spark.rows(query)
    rows = expected
    if made.read:
        with pytest.raises((UnsupportedError, SchemaError), match=made.read):
            _planned({"reader": made.system, **options})
    else:
        source, schema, splits = _planned({"reader": made.system, **options})
        rows = pa.Table.from_batches([b for split in splits for b in source.read(split)], schema)
        assert rows.column_names == expected.column_names
        _same(rows.to_pylist(), expected.to_pylist())
    now = expected.to_pylist()
    one = rows.slice(0, 1)
    keys = [row[made.key] for row in one.to_pylist()]
    upsert = {"writeMode": "upsert", "keyColumns": made.key}
    others = [row for row in now if row[made.key] not in keys]
    for what, refusal, more, new, left in (
        ("append", made.write, {}, one, now),
        ("upsert", made.write or made.replace, upsert, one, others),
        ("overwrite", made.write or made.replace, {}, rows, []),
    ):
        out = load_writer({"writer": made.system, **options, **more})[0]
        context = WriteContext(f"{made.name}-{what}", overwrite=what == "overwrite")
        if refusal:
            with pytest.raises((UnsupportedError, SchemaError), match=refusal):
                out.prepare(context, new.schema)
            continue
        plan = out.prepare(context, new.schema)
        attempt = out.open(plan, 0, 1)
        try:
            for batch in new.to_batches():
                attempt.write(batch)
            receipt = attempt.close()
        finally:
            attempt.rollback()
        out.commit(plan, [receipt])
        _same(spark.rows(query).to_pylist(), [*left, *new.to_pylist()])
