"""Every notebook runs from top to bottom in a kernel of its own, against what it starts itself."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


SLOW_MACHINE = """
def make_slow():
    import concurrent.futures
    import time
    from concurrent.futures import ThreadPoolExecutor

    sleep, wait, submit = time.sleep, concurrent.futures.wait, ThreadPoolExecutor.submit
    delays = iter([0.0])

    def slow_wait(*args, **kwargs):
        sleep(5)
        return wait(*args, **kwargs)

    def late_submit(pool, work, *args):
        delay = next(delays, 15.0)
        return submit(pool, lambda: (sleep(delay), work(*args))[1])

    time.sleep = lambda seconds: sleep(5)
    concurrent.futures.wait = slow_wait
    ThreadPoolExecutor.submit = late_submit


make_slow()
"""
"""A cell looks at its jobs each 5 s only, and all jobs but the first begin 15 s late."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Runs a notebook from top to bottom, in its own folder."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)

    def run(notebook: Any) -> None:
        nbclient.NotebookClient(
            notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
        ).execute()

    return run


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("server")
def test_a_notebook_runs(path: Path, run: Callable[[Any], None]) -> None:
    run(nbformat.read(path, as_version=4))


@pytest.mark.timeout(600)
def test_a_limit_changes_while_its_jobs_run_however_slow_the_machine_is(run: Callable[[Any], None]) -> None:
    notebook = nbformat.read(ROOT / "notebooks" / "03_one_limit_for_two_jobs.ipynb", as_version=4)
    jobs = next(
        number
        for number, cell in enumerate(notebook.cells)
        if "SharedLimit(" in cell.source and cell.cell_type == "code"
    )
    notebook.cells.insert(jobs, nbformat.v4.new_code_cell(SLOW_MACHINE))
    run(notebook)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert [cell for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")] == []


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS
