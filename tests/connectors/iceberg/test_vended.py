"""Credentials that a REST catalog vends with a table are those of its data files: nothing else opens the bucket."""

import logging
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")

from spark_channel.connectors import WriteContext, load_reader, load_writer
from spark_channel.errors import ChannelError
from tests.connectors.iceberg.helpers import numbers, rows_by_pyiceberg, stage
from tests.servers.iceberg_rest import TOKEN
from tests.servers.vending_rest import VendingCatalog, vending_catalog


@pytest.fixture(params=["config", "storage-credentials"])
def vending(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[VendingCatalog]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    with vending_catalog(tmp_path) as found:
        found.prefixed = request.param == "storage-credentials"
        yield found


def _write(
    vending: VendingCatalog, table: pa.Table, job: str, *, overwrite: bool = False, **more: Any
) -> None:
    txn = more.pop("txn", None)
    out = load_writer({"writer": "iceberg", **vending.options("shop.t"), **more})[0]
    plan, receipts = stage(out, [table], WriteContext(job, overwrite=overwrite, txn=txn))
    out.commit(plan, receipts)


def _reader(vending: VendingCatalog) -> Any:
    return load_reader({"reader": "iceberg", **vending.options("shop.t")})[0]


def _ids(vending: VendingCatalog) -> list[int]:
    source = _reader(vending)
    splits = source.split(2)
    task = pickle.loads(pickle.dumps(source))
    return sorted(
        i for split in splits for batch in task.read(split) for i in batch.column("id").to_pylist()
    )


def test_a_table_is_created_written_and_read(vending: VendingCatalog) -> None:
    _write(vending, numbers(1, 2), "a")
    for job in ("b", "c"):
        _write(vending, numbers(3), job, txn=("nightly", 1))
    assert _ids(vending) == [1, 2, 3]
    _write(vending, numbers(3, 4), "d", writeMode="upsert", keyColumns="id")
    assert _ids(vending) == [1, 2, 3, 4]
    _write(vending, numbers(9), "e", overwrite=True)
    assert _ids(vending) == [9]
    assert rows_by_pyiceberg(vending.catalog, "shop.t")["id"].to_pylist() == [9]
    seen = vending.keys.seen()
    assert seen["refused"] == []
    assert [name for name in seen["used"] if name.startswith("ASIAV")]


def test_without_them_nothing_is_read(vending: VendingCatalog) -> None:
    _write(vending, numbers(1), "a")
    vending.server.vend = lambda: {
        "config": {"s3.endpoint": f"http://127.0.0.1:{vending.keys.port}", "s3.region": "x"}
    }
    with pytest.raises(ChannelError):
        _ids(vending)


def test_a_driver_that_commits_after_they_expired_gets_new_ones(vending: VendingCatalog) -> None:
    _write(vending, numbers(1), "a")
    out = load_writer({"writer": "iceberg", **vending.options("shop.t")})[0]
    vending.life = 3.0
    plan, receipts = stage(out, [numbers(2)], WriteContext("b"))
    vending.life = 3600.0
    time.sleep(3.2)
    out.commit(plan, receipts)
    assert _ids(vending) == [1, 2]


def test_they_are_in_no_repr_and_no_log(
    vending: VendingCatalog, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "spark_channel"):
        out: Any = load_writer({"writer": "iceberg", **vending.options("shop.t")})[0]
        plan, receipts = stage(out, [numbers(1)], WriteContext("job"))
        out.commit(plan, receipts)
        source = _reader(vending)
        splits = source.split(1)
    shown = repr([plan, receipts, out, out.options, source, source.options, splits]) + caplog.text
    assert not [secret for secret in (TOKEN, *vending.secrets) if secret in shown]
