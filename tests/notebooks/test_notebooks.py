"""Every notebook runs from top to bottom in a kernel of its own, against what it starts itself."""

import os
import sys
from pathlib import Path

import pytest

from tests.servers.postgres import PostgresServer

nbformat = pytest.importorskip("nbformat", reason="notebooks run where the notebook extra is installed")
nbclient = pytest.importorskip("nbclient", reason="notebooks run where the notebook extra is installed")

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture
def server(request: pytest.FixtureRequest, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook that asks for PostgreSQL is told of one as libpq's programs are."""
    if "PGHOST" in path.read_text(encoding="utf-8"):
        postgres: PostgresServer = request.getfixturevalue("postgres_server")
        monkeypatch.setenv("PGHOST", "127.0.0.1")
        monkeypatch.setenv("PGPORT", str(postgres.port))
        monkeypatch.setenv("PGUSER", postgres.user)
        monkeypatch.setenv("PGPASSWORD", postgres.password)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("server")
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert [cell for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")] == []


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS
