"""Lake tables that take NOT NULL, the key and comments of their source. Other libraries are the judges."""

import logging
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from spark_channel.connectors import find_connector
from spark_channel.errors import ChannelError, OptionError
from spark_channel.local import LocalEngine
from spark_channel.planning import Endpoint
from spark_channel.spark.schema import as_spark
from tests.behaviour.exactly_once.test_own_source import copy
from tests.connectors.iceberg.helpers import options_of, rows_by_pyiceberg, shop

ROWS = [(1, "a", 1.5), (2, "b", None)]


@pytest.fixture
def engine() -> Iterator[LocalEngine]:
    with LocalEngine() as made:
        yield made


@pytest.fixture
def source(tmp_path: Path) -> Endpoint:
    path = tmp_path / "shop.duckdb"
    with duckdb.connect(str(path)) as database:
        database.execute(
            "CREATE TABLE orders (id BIGINT PRIMARY KEY, code VARCHAR NOT NULL, price DOUBLE DEFAULT 1, UNIQUE (code));"
            "COMMENT ON TABLE orders IS 'it''s'; COMMENT ON COLUMN orders.price IS 'in euros';"
            "INSERT INTO orders VALUES (1, 'a', 1.5), (2, 'b', NULL)"
        )
    return Endpoint("duckdb", {"path": str(path), "dbtable": "orders"})


_LEFT = "default of price; unique constraint orders_code_key: the format has none"


def test_a_delta_table_has_not_null_comments_and_a_note_of_the_key(
    engine: LocalEngine, source: Endpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "delta"
    target = Endpoint("delta", {"path": str(path), "createTable": "full"})
    with caplog.at_level(logging.WARNING):
        copy(engine, source, target)
    assert _LEFT in caplog.text
    table = DeltaTable(str(path))
    columns = {field.name: field for field in table.schema().fields}
    assert [column.nullable for column in columns.values()] == [False, False, True]
    assert columns["price"].metadata == {"comment": "in euros"}
    assert columns["id"].metadata == {"spark_channel.primary_key": "1"}
    assert table.metadata().description == "it's"
    found = table.to_pyarrow_table().to_pylist()
    assert sorted(tuple(row.values()) for row in found) == ROWS
    copy(engine, source, target, save_mode="overwrite")
    assert DeltaTable(str(path)).schema().to_json() == table.schema().to_json()


def test_an_iceberg_table_has_identifier_fields_docs_and_required_fields(
    engine: LocalEngine, source: Endpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = Endpoint("iceberg", {**options_of(tmp_path, "shop.orders"), "createTable": "full"})
    with shop(tmp_path) as catalog:
        with caplog.at_level(logging.WARNING):
            copy(engine, source, target)
        assert _LEFT in caplog.text
        table = catalog.load_table("shop.orders")
        schema = table.schema()
        assert [field.required for field in schema.fields] == [True, True, False]
        assert [field.doc for field in schema.fields] == [None, None, "in euros"]
        assert schema.identifier_field_names() == {"id"}
        assert table.properties["comment"] == "it's"
        assert table.properties["spark-channel.primary-key"] == "id"
        found = rows_by_pyiceberg(catalog, "shop.orders").to_pylist()
        assert sorted(tuple(row.values()) for row in found) == ROWS
        copy(engine, source, target, save_mode="overwrite")
        copy(engine, source, target, save_mode="append")
        assert len(rows_by_pyiceberg(catalog, "shop.orders")) == 4
        assert catalog.load_table("shop.orders").schema() == schema


@pytest.mark.parametrize("name", ["delta", "iceberg"])
def test_rows_without_a_value_are_refused_by_the_columns_name(
    engine: LocalEngine, source: Endpoint, tmp_path: Path, name: str
) -> None:
    options = {"path": str(tmp_path / "d")} if name == "delta" else options_of(tmp_path, "shop.t")
    target = Endpoint(name, {**options, "createTable": "keys"})
    with shop(tmp_path):
        copy(engine, source, target)
        path = str(source.options["path"])
        with duckdb.connect(path) as database:
            database.execute(
                "CREATE TABLE loose AS SELECT id, NULL::VARCHAR AS code, price FROM orders"
            )
        loose = Endpoint("duckdb", {"path": path, "dbtable": "loose"})
        with pytest.raises(ChannelError, match="code"):
            copy(engine, loose, target)


def test_rows_of_no_table_have_no_definition(engine: LocalEngine, tmp_path: Path) -> None:
    source = Endpoint("generator", {"rows": "3"})
    target = Endpoint("delta", {"path": str(tmp_path / "d"), "createTable": "keys"})
    with pytest.raises(OptionError, match="'createTable' got 'keys'"):
        copy(engine, source, target)


def test_parquet_files_note_the_key_and_comments_in_their_fields(
    engine: LocalEngine, source: Endpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "files"
    target = Endpoint("parquet", {"path": str(folder), "createTable": "full"})
    with caplog.at_level(logging.WARNING):
        copy(engine, source, target)
        copy(engine, source, target)
    assert (
        "default of price; unique constraint orders_code_key; NOT NULL of id, code" in caplog.text
    )
    (file, _) = sorted(folder.glob("*.parquet"))
    schema = pq.read_schema(file)
    assert schema.field("price").metadata[b"comment"] == b"in euros"
    assert schema.field("id").metadata[b"spark_channel.primary_key"] == b"1"
    assert schema.metadata[b"comment"] == b"it's"
    given = {"reader": "parquet", "path": str(folder)}
    reader = find_connector(given, "reader").reader_with(given)[0]
    assert reader.schema().field("price").metadata == {b"comment": b"in euros"}
    assert as_spark(reader.schema())["price"].metadata == {"comment": "in euros"}
    found = pq.read_table(folder).to_pylist()
    assert sorted({tuple(row.values()) for row in found}) == ROWS
    rows = Endpoint("generator", {"rows": "3"})
    with pytest.raises(OptionError, match="'createTable' got 'keys'"):
        copy(engine, rows, Endpoint("parquet", {"path": str(folder), "createTable": "keys"}))
