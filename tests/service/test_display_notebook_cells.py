"""What a kernel shows under which cell."""

from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="cells run where the notebook extra is installed")
nbclient = pytest.importorskip("nbclient", reason="cells run where the notebook extra is installed")

SET_UP = """
import time

import spark_channel.progress.speed
from spark_channel.progress import JobSpec, Phase
from spark_channel.service import ProgressDisplay, ServiceClient, ServiceServer
from spark_channel.spark.session import _after_each_cell

class Keeper:
    def job_opened(self, progress):
        pass

    def job_closed(self, progress):
        reports[progress.spec.name] = progress.report()

draw = spark_channel.progress.speed.svg

def slow_draw(report):  # as the first one, which imports matplotlib, on a busy machine
    time.sleep(3)
    return draw(report)

spark_channel.progress.speed.svg = slow_draw
reports = {}
server, display = ServiceServer(), ProgressDisplay()
server.jobs.subscribe(Keeper())
server.jobs.subscribe(display)
server.start()
_after_each_cell(server, display)

def job(name):
    spec = JobSpec("read", name=name, source=name, tasks=1, rows_expected=10)
    with ServiceClient(server.address, name, spec) as client:
        counters = client.counters(0, 1, rows_expected=10)
        counters.pushed(10, 80)
        counters.enter(Phase.DONE)

def value(name):
    job(name)
    server.jobs.settle()
    return reports[name]

None
"""


def texts(cell: Any) -> str:
    """All that a cell shows, as plain text."""
    return "\n".join(
        output.get("text", "") or output.get("data", {}).get("text/plain", "")
        for output in cell.outputs
    )


@pytest.mark.timeout(120)
def test_a_report_appears_under_its_own_cell_once(tmp_path: Path) -> None:
    cells = [
        SET_UP,
        "job('one')",
        "job('two')\nprint('printed')",
        "1 + 1",
        "value('three')",
        "reports['one']",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
    nbclient.NotebookClient(
        notebook, timeout=60, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    _, one, two, none, three, again = notebook.cells
    for name, cell in (("one", one), ("two", two), ("three", three)):
        assert texts(cell).count(f"read {name}: {name} -> Spark") == 1
        assert texts(cell).count("read 10 rows (80B) in ") == 1
    assert "printed" in texts(two)
    assert texts(none) == "2"
    assert texts(again).count("read 10 rows (80B) in ") == 1, "a cell that asks for it is shown it"
    assert [
        each.output_type for each in three.outputs if each.output_type == "execute_result"
    ] == []
