import pickle
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_channel.errors import OptionError, SchemaError
from spark_channel.replication.drift import FitTypes, LeaveOut, LoadColumns
from spark_channel.replication.masks import MaskColumns
from spark_channel.transform import (
    Calculate,
    CsvTexts,
    Digest,
    DropRows,
    JavaTexts,
    Pad,
    RefuseMalformed,
    Rename,
    Replace,
    Substr,
    TimesAsText,
    prepare,
)
from spark_channel.transform.convert import Convert
from spark_channel.transform.transformer import Flow, Labelled

ROWS = pa.record_batch({"id": [1, 2, 3, 4], "name": ["anna", "bo", None, "dora"]})


def upper(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(1, "name", pc.utf8_upper(batch.column(1)))


def test_steps_run_in_order_and_refused_rows_do_not_reach_the_next() -> None:
    pipeline = prepare(
        [upper, Substr("name", 3, 1), DropRows("id", "=", "4"), Rename(("key", "letter"))],
        ROWS.schema,
    )
    outcome = pipeline.run(ROWS)
    assert outcome.batch.to_pylist() == [{"key": 1, "letter": "A"}, {"key": 3, "letter": None}]
    assert [refused.rows.to_pylist() for refused in outcome.refused] == [[{"id": 2, "name": "BO"}]]
    assert pipeline.output_schema.names == ["key", "letter"]


def test_no_steps_change_nothing() -> None:
    pipeline = prepare([], ROWS.schema)
    assert pipeline.run(ROWS).batch is ROWS
    assert pipeline.output_schema is ROWS.schema


def test_a_pipeline_travels_to_executors() -> None:
    steps = [Pad("name", "l", 5, "-"), Replace(1, 0, 1, "+"), Digest("name", "md5"), upper]
    pipeline = prepare(steps, ROWS.schema)
    assert pickle.loads(pickle.dumps(pipeline)).run(ROWS).batch.equals(pipeline.run(ROWS).batch)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            [Substr("nmae", 0, 1)],
            r"transformers\[0\]: substr: no column 'nmae'; did you mean 'name'",
        ),
        (
            [upper, Substr(2, 0, 1)],
            r"transformers\[1\]: substr: no column 2; numbers go from 0 to 1",
        ),
        ([Rename(("a", "b")), Substr("name", 0, 1)], r"transformers\[1\]: .* 0 'a', 1 'b'"),
        ([lambda batch: batch.column("zz")], r"transformers\[0\]: transformer .*lambda.* failed"),
    ],
)
def test_a_missing_column_is_an_error_before_a_row_moves(steps: list[Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        prepare(steps, ROWS.schema)


def test_a_name_that_stands_twice_is_ambiguous() -> None:
    schema = pa.schema([("a", pa.string()), ("a", pa.string())])
    with pytest.raises(SchemaError, match="2 columns are named 'a'; give its number"):
        prepare([Substr("a", 0, 1)], schema)
    prepare([Substr(1, 0, 1)], schema)


@pytest.mark.parametrize("step", ["upper", 3, Substr, lambda batch: batch.num_rows])
def test_what_is_no_transformer_is_refused(step: Any) -> None:
    with pytest.raises(OptionError):
        prepare([step], ROWS.schema)


def test_a_function_whose_columns_depend_on_its_rows_is_found_out() -> None:
    def fickle(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select(["id"]) if batch.num_rows else batch

    with pytest.raises(SchemaError, match="must not depend on its rows"):
        prepare([fickle], ROWS.schema).run(ROWS)


def test_an_empty_batch_passes_every_step() -> None:
    steps = [
        Substr("name", 3, 1),
        Pad("name", "r", 4, "ab"),
        Digest("name", "sha1"),
        DropRows(0, ">", "1"),
    ]
    pipeline = prepare(steps, ROWS.schema)
    outcome = pipeline.run(ROWS.slice(0, 0))
    assert outcome.batch.num_rows == 0
    assert outcome.refused == ()


@pytest.mark.parametrize(
    ("steps", "flows"),
    [
        ([Rename(("key", "letter")), DropRows(0, "=", "4")], [Flow((0,)), Flow((1,))]),
        ([Substr("name", 0, 1)], [Flow((0,)), Flow((1,), "substr")]),
        (
            [Digest("name", "md5"), Pad("name", "l", 9, "x")],
            [Flow((0,)), Flow((1,), "digest, pad", masked=True)],
        ),
        ([Labelled(Calculate("id", "+", "1"), "first")], [Flow((0,), "calculate"), Flow((1,))]),
        (
            [Convert((("id", pa.int32()),)), JavaTexts(), TimesAsText(), RefuseMalformed()],
            [Flow((0,), "convert"), Flow((1,))],
        ),
        ([CsvTexts()], [Flow((0,)), Flow((1,), "texts of CSV")]),
        ([FitTypes((("id", pa.string()),))], [Flow((0,), "contract.data_type"), Flow((1,))]),
        ([LeaveOut(("id",)), Substr("name", 0, 1)], [Flow((1,), "substr")]),
        (
            [MaskColumns.for_stream("s.t", {"id": "drop", "name": "sha256"}), Rename(("hash",))],
            [Flow((1,), "sha256", masked=True)],
        ),
        (
            [LoadColumns("run", datetime(2026, 1, 1, tzinfo=UTC))],
            [Flow((0,)), Flow((1,)), Flow((), "load_columns"), Flow((), "load_columns")],
        ),
    ],
)
def test_steps_say_which_columns_are_made_of_which(steps: list[Any], flows: list[Flow]) -> None:
    pipeline = prepare(steps, ROWS.schema)
    assert pipeline.flows() == tuple(flows)
    assert len(flows) == len(pipeline.output_schema)


def test_what_a_function_makes_of_columns_is_not_known() -> None:
    assert prepare([upper], ROWS.schema).flows() is None
