"""Every notebook runs from top to bottom in its own kernel, against what it starts itself."""

from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip(
    "nbformat", reason="notebooks run where the notebook extra is installed"
)
pytest.importorskip("nbclient", reason="notebooks run where the notebook extra is installed")

from tests.notebooks.refresh import (  # noqa: E402 - behind importorskip
    NOTEBOOKS,
    PLOT,
    PLOTTED,
    ROOT,
    as_terminal,
    asks_for_postgresql,
    execute,
    login_of,
    plot_of,
    read,
    tidy,
)


@pytest.fixture
def server(request: pytest.FixtureRequest, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook that uses PostgreSQL finds the server by the variables of libpq's programs."""
    if asks_for_postgresql(path):
        for key, value in login_of(request.getfixturevalue("postgres_server")).items():
            monkeypatch.setenv(key, value)


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


def shown(notebook: Any) -> list[bool]:
    """Which cells show the value of their last line; intermediate output depends on how fast the machine is."""
    return [
        any(output.output_type == "execute_result" for output in cell.get("outputs", []))
        for cell in notebook.cells
    ]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[] if "write_a_connector" in path.name else pytest.mark.soak)
        for path in NOTEBOOKS
    ],
    ids=lambda path: path.name,
)
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("server")
def test_a_notebook_runs_and_shows_what_is_kept_of_it(path: Path, tmp_path: Path) -> None:
    notebook = read(path)
    kept = shown(notebook)
    execute(notebook, tmp_path)
    tidy(notebook, tmp_path)
    assert shown(notebook) == kept, "`make notebooks` keeps what the cells show now"


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_limit_changes_while_its_jobs_run_however_slow_the_machine_is(tmp_path: Path) -> None:
    notebook = read(ROOT / "notebooks" / "03_one_limit_for_two_jobs.ipynb")
    jobs = next(
        number
        for number, cell in enumerate(notebook.cells)
        if "SharedLimit(" in cell.source and cell.cell_type == "code"
    )
    notebook.cells.insert(jobs, nbformat.v4.new_code_cell(SLOW_MACHINE))
    execute(notebook, tmp_path)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_kept_with_the_outputs_of_one_run(path: Path) -> None:
    notebook = read(path)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), (
        "run `make notebooks`"
    )
    outputs = [output for cell in code for output in cell.outputs]
    assert outputs, "a notebook without outputs shows its reader nothing: run `make notebooks`"
    assert [output for output in outputs if output.output_type == "error"] == []
    assert "/tmp/" not in "".join(output.get("text", "") for output in outputs), (
        "a path of the machine it ran on"
    )


def test_printed_lines_are_kept_as_a_terminal_leaves_them() -> None:
    text = "Setting default log level to WARN\n[Stage 0:> (0 + 2) / 2]\r   \r10 rows\r20 rows\x1b[K\ndone\n"
    assert as_terminal(text) == "20 rows\ndone\n"


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


def test_the_plot_in_the_docs_is_that_of_a_notebook() -> None:
    assert PLOT.read_bytes() == plot_of(read(ROOT / "notebooks" / PLOTTED)), "run: make notebooks"
