"""Runs the notebooks and keeps their outputs in them: `make notebooks`, or `python -m tests.notebooks.refresh 01 04`.

A server that a notebook asks for is started for it, and stopped.
"""

import base64
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbclient
import nbformat

from tests.servers.postgres import PostgresServer

__all__ = [
    "NOTEBOOKS",
    "PLOT",
    "PLOTTED",
    "as_terminal",
    "asks_for_postgresql",
    "execute",
    "login_of",
    "main",
    "plot_of",
    "read",
    "tidy",
]

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
_START_OF_SPARK = re.compile(
    r"incubator modules|log4j2?[- ]|default log level|adjust logging level|Setting Spark log level"
    r"|NativeCodeLoader|\[Stage \d+:"
)
"""Lines that each Spark prints when it starts, and its own bar of stages."""
PLOT = ROOT / "docs" / "images" / "report.png"
"""The plot of a report that the docs show: that of the notebook `PLOTTED`."""
PLOTTED = "02_throttle_any_dataframe.ipynb"
_FOLDER = re.compile(r"/tmp/spark-channel-\w+-\w+")
"""What a notebook makes for its files."""


def read(path: Path) -> Any:
    """The notebook in the file at `path`."""
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call] # untyped


def execute(notebook: Any, folder: Path, *, seconds: int = 300) -> None:
    """Run `notebook` in `folder`, in a kernel of this interpreter; each cell may take `seconds`."""
    kept = {key: os.environ.get(key) for key in ("PYTHONPATH", "PYSPARK_PYTHON")}
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), kept["PYTHONPATH"] or ""])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    try:
        nbclient.NotebookClient(
            notebook,
            timeout=seconds,
            kernel_name="python3",
            resources={"metadata": {"path": str(folder)}},
        ).execute()
    finally:
        _set(kept)


def login_of(server: PostgresServer) -> dict[str, str]:
    """Return the variables of libpq's programs that name `server` to a notebook."""
    return {
        "PGHOST": "127.0.0.1",
        "PGPORT": str(server.port),
        "PGUSER": server.user,
        "PGPASSWORD": server.password,
    }


def asks_for_postgresql(path: Path) -> bool:
    return "PGHOST" in "".join(cell.source for cell in read(path).cells)


@contextmanager
def _server(path: Path) -> Iterator[None]:
    if not asks_for_postgresql(path):
        yield
        return
    server = PostgresServer.create()
    login = login_of(server)
    kept = {key: os.environ.get(key) for key in login}
    os.environ.update(login)
    try:
        yield
    finally:
        _set(kept)
        server.close()


def _set(variables: dict[str, str | None]) -> None:
    for key, value in variables.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value


def tidy(notebook: Any, folder: Path) -> None:
    """Keep what its reader has use for: no times and places of the run, and no line that another one overwrote."""
    notebook.metadata.get("language_info", {}).pop("version", None)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [
                each for each in _joined(cell.outputs, str(folder)) if not _is_empty(each)
            ]


def _joined(outputs: list[Any], folder: str) -> list[Any]:
    """The outputs of a cell, with the pieces in which it printed as one."""
    joined: list[Any] = []
    for output in outputs:
        if output.output_type == "stream" and joined and joined[-1].get("name") == output.name:
            joined[-1].text += output.text
        else:
            joined.append(output)
    for output in joined:
        if output.output_type == "stream":
            output.text = _FOLDER.sub(
                "/home/you", as_terminal(output.text).replace(folder, "/home/you")
            )
        for kind, value in output.get("data", {}).items():
            if isinstance(value, str):
                output.data[kind] = _FOLDER.sub("/home/you", value)
    return joined


def as_terminal(text: str) -> str:
    """`text` as a terminal leaves it: a carriage return writes over what the line held. Without Spark's start."""
    lines = [
        line.rstrip("\r").rsplit("\r", 1)[-1].replace("\x1b[K", "").rstrip()
        for line in text.split("\n")
    ]
    return "\n".join(line for line in lines if not _START_OF_SPARK.search(line))


def _is_empty(output: Any) -> bool:
    if output.output_type == "stream":
        return not output.text.strip()
    return bool(output.get("data", {}).get("text/html") == "<code></code>")


def plot_of(notebook: Any) -> bytes:
    """The first plot among the outputs, as PNG."""
    pictures = (
        output.data["image/png"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    )
    return base64.b64decode(next(pictures))


def main(wanted: list[str]) -> int:
    for path in NOTEBOOKS:
        if wanted and not any(path.name.startswith(each) for each in wanted):
            continue
        print(f"{path.name} ...", flush=True)
        notebook = read(path)
        with tempfile.TemporaryDirectory() as folder, _server(path):
            execute(notebook, Path(folder))
            tidy(notebook, Path(folder))
        nbformat.write(notebook, path)  # type: ignore[no-untyped-call] # untyped
        if path.name == PLOTTED:
            PLOT.write_bytes(plot_of(notebook))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
