"""Eight processes append to, overwrite and read one lakehouse table, and are killed or stopped meanwhile.

The history is checked against the order of the table's own log: see `tests.connectors.history`.
"""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")

from pyiceberg.catalog import load_catalog

from spark_channel.connectors import WriteContext, load_writer
from spark_channel.connectors.delta import claims
from spark_channel.connectors.delta.lake_table import DeltaState
from spark_channel.connectors.iceberg.lake_table import IcebergState
from spark_channel.connectors.lake.table import TableState
from spark_channel.connectors.lake.writer import LakeWriter
from tests.connectors import history
from tests.connectors.files.busy import rows_of, staged
from tests.connectors.lake.busy import BusyTable, rows_in
from tests.servers.stores import ObjectServer, object_server

FORMATS = ("delta", "iceberg")


def _options(form: str, folder: Path, server: ObjectServer | None = None) -> dict[str, Any]:
    if form == "delta":
        return {"format": form, "path": server.uri("busy/t") if server else str(folder / "t")}
    # A process that is stopped while it holds SQLite's lock holds up the others for as long as it sleeps.
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db?timeout=120",
        "warehouse": f"file://{folder}/w",
    }
    if server:
        catalog |= {
            "warehouse": "s3://box/busy",
            "s3.endpoint": f"http://127.0.0.1:{server.port}",
            "s3.region": "us-east-1",
            "s3.access-key-id": server.environment["AWS_ACCESS_KEY_ID"],
            "s3.secret-access-key": server.environment["AWS_SECRET_ACCESS_KEY"],
        }
    (folder / "w").mkdir(exist_ok=True)
    made = load_catalog("tests", **catalog)
    made.create_namespace("shop")
    made.close()
    return {
        "format": form,
        "dbtable": "shop.t",
        "catalog": "tests",
        "catalogProperties": json.dumps(catalog),
    }


def _writer(options: dict[str, Any]) -> LakeWriter:
    place = {name: value for name, value in options.items() if name != "format"}
    writer, _ = load_writer({"writer": options["format"], **place})
    assert isinstance(writer, LakeWriter)
    return writer


def _published(options: dict[str, Any]) -> dict[str, list[int]]:
    """The versions, or the sequence numbers of snapshots, in which each operation was published."""
    state = _writer(options).lake().open()
    assert state is not None
    found: dict[str, list[int]] = {}
    for number, job in _commits(state):
        if job.startswith("w"):
            found.setdefault(job.rsplit("-", 1)[0], []).append(number)
    return found


def _commits(state: TableState) -> list[tuple[int, str]]:
    if isinstance(state, DeltaState):
        commits = [(each["version"], each.get(claims.OURS)) for each in state._table.history()]
        return [(number, said["job"]) for number, said in commits if said and "publishedAt" in said]
    assert isinstance(state, IcebergState)
    made = []
    for snapshot in state._table.snapshots():
        said = snapshot.summary.additional_properties if snapshot.summary else {}
        if said.get("spark-channel.operation") in ("append", "overwrite"):
            made.append((snapshot.sequence_number or 0, said["spark-channel.job"]))
    return made


def _rows(options: dict[str, Any]) -> history.Rows:
    table = rows_in(options)
    return sorted(zip(table["op"].to_pylist(), table["n"].to_pylist(), strict=True))


def work(options: dict[str, Any], folder: Path, seconds: float, every: float, **more: Any) -> None:
    out = _writer(options)
    plan = out.prepare(WriteContext("first"), rows_of("none.0").schema)
    out.commit(plan, staged(out, plan, [rows_of("none.0").slice(0, 0)]))
    history.work(
        BusyTable,
        json.dumps(options),
        folder,
        seconds,
        every,
        published=lambda: _published(options),
        rows=lambda: _rows(options),
        **more,
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("form", FORMATS)
def test_processes_on_a_disk(tmp_path: Path, form: str) -> None:
    work(_options(form, tmp_path), tmp_path, seconds=8, every=1.3)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("form", FORMATS)
def test_processes_on_s3(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _work_on_s3(form, tmp_path, monkeypatch, seconds=10, every=2)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("form", FORMATS)
def test_processes_on_a_disk_for_a_minute(tmp_path: Path, form: str) -> None:
    work(_options(form, tmp_path), tmp_path, seconds=60, every=5)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("form", FORMATS)
def test_processes_on_s3_for_a_minute(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _work_on_s3(form, tmp_path, monkeypatch, seconds=60, every=5)


def _work_on_s3(
    form: str, folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, every: float
) -> None:
    with object_server("s3") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        work(
            _options(form, folder, server),
            folder,
            seconds=seconds,
            every=every,
            environment=dict(server.environment),
        )
