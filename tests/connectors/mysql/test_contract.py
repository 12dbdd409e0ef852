"""Both halves keep the contract of every connector, on a real server."""

import pyarrow as pa
import pytest

from spark_channel.errors import SourceError
from spark_channel.testing import reader_conformance, writer_conformance
from tests.connectors.mysql.shop import Shop
from tests.connectors.sql.micro_batches import hold_to_once

pytestmark = pytest.mark.real_server("MariaDB", "mysql")


def test_the_reader_keeps_its_contract(shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE t (a INT, b VARCHAR(20), v DOUBLE, n TEXT, PRIMARY KEY (a, b)); "
        "INSERT INTO t SELECT seq DIV 40, CONCAT('k', seq), seq / 3e0, IF(seq % 5, CONCAT('n,\"', seq), NULL) "
        "FROM seq_1_to_100"
    )
    rows = range(1, 101)
    expected = pa.table(
        {
            "a": pa.array([n // 40 for n in rows], pa.int32()),
            "b": [f"k{n}" for n in rows],
            "v": [n / 3 for n in rows],
            "n": [f'n,"{n}' if n % 5 else None for n in rows],
        }
    )
    reader_conformance(shop.reader, expected=expected)
    reader_conformance(
        lambda: shop.reader(None, query="SELECT n, v FROM t", partitionColumn="n"),
        expected=expected.select(["n", "v"]),
    )
    assert shop.server.connections() == 0


@pytest.mark.parametrize(
    ("there", "local"),
    [(False, None), pytest.param(True, None, marks=pytest.mark.soak), (True, "false")],
)
def test_the_writer_keeps_its_contract(shop: Shop, there: bool, local: str | None) -> None:
    if there:
        shop.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(100))")

    def read_back() -> pa.Table | None:
        try:
            return shop.read()
        except SourceError as error:
            if "does not exist" in str(error):
                return None
            raise

    writer_conformance(
        lambda: shop.writer(localInfile=local), read_back=read_back, leftovers=shop.staged
    )
    assert shop.server.connections() == 0


def test_a_batch_of_a_stream_is_published_once(shop: Shop) -> None:
    hold_to_once(
        shop.writer, lambda: [int(each) for (each,) in shop.rows("SELECT id FROM t ORDER BY id")]
    )
    assert shop.staged() == []
