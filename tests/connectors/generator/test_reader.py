"""Made-up rows: the same for the same seed, whatever the splits and batches."""

from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import FetchSize, load_reader
from spark_channel.connectors.generator.reader import GeneratorReader
from spark_channel.errors import OptionError, SourceError
from spark_channel.testing import reader_conformance

pytestmark = pytest.mark.real_server("this process", "generator")

ALL_TYPES = (
    "id INT, a TINYINT, b SMALLINT, c INT, d BIGINT, e FLOAT, f DOUBLE, g DECIMAL(38, 18), h DECIMAL(5, 2), "
    "i STRING, j BINARY, k DATE, l TIMESTAMP, m TIMESTAMP_NTZ, n BOOLEAN, o VARCHAR(9)"
)


def reader(**options: Any) -> GeneratorReader:
    made, _ = load_reader(
        {"reader": "generator", **{name.lower(): value for name, value in options.items()}}
    )
    assert isinstance(made, GeneratorReader)
    return made


def rows(advice: int = 1, **options: Any) -> pa.Table:
    made = reader(**options)
    return pa.Table.from_batches(
        [batch for split in made.split(advice) for batch in made.read(split)], made.schema()
    )


def test_it_keeps_the_contract() -> None:
    reader_conformance(
        lambda: reader(rows="1k", rowsPerBatch="64", schema=ALL_TYPES, nullEvery="7")
    )
    reader_conformance(lambda: reader(rows="100", skew="0.9", rowBytes="300"))
    reader_conformance(lambda: reader(rows="0"))


def test_rows_do_not_depend_on_splits_and_batches() -> None:
    whole = rows(rows="1000", schema=ALL_TYPES, nullEvery="10")
    for advice, batch in ((7, "13"), (3, "1000"), (1000, "1")):
        assert (
            rows(advice, rows="1000", schema=ALL_TYPES, nullEvery="10", rowsPerBatch=batch) == whole
        )


def test_ids_count_and_values_spread() -> None:
    table = rows(rows="10000")
    assert table.column("id").to_pylist() == list(range(10000))
    values = table.column("value").to_pylist()
    assert all(0 <= value < 1 for value in values)
    assert sum(values) / len(values) == pytest.approx(0.5, abs=0.02)
    assert len(set(values)) == len(values)


def test_every_type_is_valid_and_varies() -> None:
    table = rows(rows="500", schema=ALL_TYPES)
    table.validate(full=True)
    for name in table.schema.names:
        assert len(set(table.column(name).to_pylist())) > 1, name
        assert table.column(name).null_count == 0


def test_another_seed_gives_other_values() -> None:
    assert rows(rows="10", seed="1") == rows(rows="10", seed="1")
    assert rows(rows="10", seed="1").column("value") != rows(rows="10", seed="2").column("value")


def test_row_bytes() -> None:
    table = rows(rows="5000", rowBytes="500")
    assert table.schema.names == ["id", "value", "name", "padding"]
    assert table.nbytes / table.num_rows == pytest.approx(500, rel=0.02)
    with pytest.raises(
        OptionError, match=r"'rowBytes' got 3; the columns id, value, name take it from \d+ to"
    ):
        reader(rowBytes="3")
    with pytest.raises(OptionError, match="both make a column 'padding'"):
        reader(rowBytes="300", schema="padding STRING")


def test_columns_are_picked_without_changing_the_rows() -> None:
    assert rows(rows="50", columns="name,id") == rows(rows="50").select(["name", "id"])
    with pytest.raises(
        OptionError, match="'columns' names 'nmae', which is not there; columns: id, value, name"
    ):
        reader(columns="nmae")


def test_skew_puts_its_share_into_the_first_split() -> None:
    made = reader(rows="1000", skew="0.9")
    assert [split.rows for split in made.split(5)] == [900, 25, 25, 25, 25]
    assert [split.rows for split in made.split(1)] == [1000]


def test_nulls_come_every_so_many_rows() -> None:
    table = rows(rows="20", nullEvery="5", rowsPerBatch="3")
    nulls = [
        number for number, value in enumerate(table.column("value").to_pylist()) if value is None
    ]
    assert nulls == [4, 9, 14, 19]
    assert table.column("id").null_count == 0


def test_it_fails_at_the_row_asked_for() -> None:
    made = reader(rows="100", failAtRow="55", rowsPerBatch="10")
    first, second = made.split(2)
    assert sum(batch.num_rows for batch in made.read(first)) == 50
    before = 0
    batches = made.read(second)
    before += next(batches).num_rows
    with pytest.raises(SourceError, match="row 55 cannot be read"):
        next(batches)
    assert before == 5


def test_fetch_size_bounds_a_batch() -> None:
    made = reader(rows="1000")
    (split,) = made.split(1)
    made.fetch_size = FetchSize(rows=9)
    assert max(batch.num_rows for batch in made.read(split)) == 9
    made.fetch_size = FetchSize(nbytes=1000)
    assert max(batch.nbytes for batch in made.read(split)) <= 1100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": "-1"}, "'rows' got '-1'; it takes a whole number"),
        ({"rows": "many"}, "'rows' got 'many'"),
        ({"skew": "1.5"}, "'skew'"),
        ({"schema": "id BIGINT; DROP TABLE x"}, "'schema' got"),
        ({"schema": "tags ARRAY<INT>"}, "column 'tags' has type ARRAY<INT>"),
        ({"schema": "a INT, A STRING"}, "names column 'A' twice"),
        ({"schema": ""}, "'schema' got"),
        ({"where": "id > 5"}, "'where' is not supported"),
        ({"url": "generator:x"}, "'url' got 'generator:x'; it takes generator:"),
        ({"sed": "1"}, "did you mean 'seed'"),
    ],
)
def test_bad_options(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        reader(**options)


def test_it_is_found_by_url() -> None:
    made, _ = load_reader({"url": "generator:"})
    assert isinstance(made, GeneratorReader)
