"""Part 1 of the quickstart as a newcomer types it, line by line, where nothing is but the wheel."""

import codeop
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8").split("\n## Part 2")[0]
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def typed(language: str) -> str:
    return "\n".join(code for kind, code in BLOCK.findall(PAGE) if kind == language)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A shell's environment in which `pip install spark-channel` finds this checkout's wheel."""
    pytest.importorskip("hatchling", reason="the wheel is built where the dev extra is installed")
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(tmp_path),
        str(ROOT),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYTHON", "PYSPARK", "VIRTUAL"))
    }
    python = Path(sys.executable).resolve()
    return {
        **kept,
        "PATH": f"{python.parent}:{kept['PATH']}",
        "PIP_FIND_LINKS": f"{tmp_path} {kept.get('PIP_FIND_LINKS', '')}".strip(),
    }


def test_each_statement_is_complete_for_an_interpreter_that_reads_line_by_line() -> None:
    """As a block with no empty line behind it is not. That the code works is `test_docs.py`'s affair."""
    read: list[str] = []
    statements = 0
    for line in typed("python").splitlines():
        read.append(line)
        if codeop.compile_command("\n".join(read), symbol="single") is not None:
            read.clear()
            statements += 1
    assert not read
    assert statements > 15


@pytest.mark.soak  # it installs PySpark once more
@pytest.mark.spark
@pytest.mark.newest
@pytest.mark.timeout(900)
def test_the_quickstart_typed_line_by_line(environment: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "new"
    folder.mkdir()  # empty: each step makes what the next one reads
    (folder / "typed.py").write_text(typed("python"))
    console = "python -i -q < typed.py"  # the interactive interpreter reads a line at a time
    done = subprocess.run(
        ["bash", "-c", "set -e\n" + typed("bash") + f"\nbash -c {shlex.quote(console)}"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-4000:]
    assert "Traceback" not in done.stderr, said[-6000:]
    assert "SyntaxError" not in done.stderr, said[-6000:]
    assert "replaced a statically registered data source" not in said, said[-6000:]
    with closing(sqlite3.connect(folder / "orders.db")) as copy:
        for table in ("orders", "history"):
            assert copy.execute(f"SELECT count(*) FROM {table}").fetchone() == (100_000,), table
    assert "|customer|count|" in done.stdout, said[-4000:]
