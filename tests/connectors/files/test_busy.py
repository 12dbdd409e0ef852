"""Eight processes append to, overwrite and read one directory, and are killed or stopped meanwhile: see `history`."""

import json
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from spark_channel.connectors.files.filesystem import LOG, locate
from tests.connectors import history
from tests.connectors.files.busy import ROWS, Busy, rows_of
from tests.connectors.files.helpers import leftovers, read, write
from tests.servers.stores import STORES, object_server


def published(path: str) -> dict[str, list[int]]:
    """The numbers of the log entries that published each operation."""
    place = locate(path)
    found: dict[str, list[int]] = {}
    for info in place.fs.get_file_info(pafs.FileSelector(f"{place.path}/{LOG}")):
        if info.base_name.endswith(".json"):
            with place.fs.open_input_file(info.path) as file:
                entry = json.loads(file.read())
            if entry["what"].startswith("publish w"):
                op = entry["what"].removeprefix("publish ").rsplit("-", 1)[0]
                found.setdefault(op, []).append(entry["number"])
    return found


def _seen(path: str) -> history.Rows:
    table = read("parquet", path)
    return sorted(zip(table.column("op").to_pylist(), table.column("n").to_pylist(), strict=True))


def work(
    path: str, folder: Path, seconds: float, every: float, environment: dict[str, str] | None = None
) -> None:
    write("parquet", path, rows_of("none.0").slice(0, 0))
    history.work(
        Busy,
        path,
        folder,
        seconds,
        every,
        published=lambda: published(path),
        rows=lambda: _seen(path),
        environment=environment,
    )


def test_processes_on_a_disk(tmp_path: Path) -> None:
    target = tmp_path / "out"
    work(str(target), tmp_path, seconds=8, every=1.5)
    before = _seen(str(target))
    # The next job removes what killed ones left.
    write("parquet", target, rows_of("last.0"), job="last", retention="0")
    assert leftovers(target) == []
    assert len(_seen(str(target))) == len(before) + ROWS


@pytest.mark.timeout(300)
def test_processes_on_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _work_on("s3", tmp_path, monkeypatch, seconds=8, every=1.5)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_processes_on_a_disk_for_a_minute(tmp_path: Path) -> None:
    work(str(tmp_path / "out"), tmp_path, seconds=60, every=5)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", STORES)
def test_processes_on_a_store_for_a_minute(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _work_on(kind, tmp_path, monkeypatch, seconds=60, every=5)


def _work_on(
    kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, every: float
) -> None:
    with object_server(kind) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        work(
            server.uri("busy/out"),
            folder,
            seconds=seconds,
            every=every,
            environment=dict(server.environment),
        )
