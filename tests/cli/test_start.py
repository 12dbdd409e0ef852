"""A small job starts as fast as a script: nothing is imported that it does not use."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.cpu import cpu_of, imports
from tests.cli.test_run import CLI, environment
from tests.cli.typed import made_up, write_job

HEAVY = (
    "pyspark",
    "pandas",
    "sqlglot",
    "matplotlib",
    "rich",
    "IPython",
    "deltalake",
    "pyarrow.flight",
    "pyarrow.dataset",
    "spark_channel.datax.plugins.http",
    "spark_channel.datax.plugins.files",
    "spark_channel.datax.plugins.stores",
    "spark_channel.datax.plugins.files",
    "spark_channel.datax.plugins.documents",
    "spark_channel.datax.plugins.stores",
)


@pytest.fixture
def ten_rows(tmp_path: Path) -> str:
    return write_job(tmp_path / "job.json", made_up(10), {"name": "streamwriter"})


@pytest.mark.parametrize("command", ["run", "copy"])
def test_a_small_job_imports_nothing_heavy(ten_rows: str, tmp_path: Path, command: str) -> None:
    given = [ten_rows]
    if command == "copy":
        csv = tmp_path / "ten.csv"
        csv.write_text("id,name\n" + "".join(f"{number},n\n" for number in range(10)))
        given = [f"csv:{csv}", f"sqlite:{tmp_path}/ten.db?dbtable=ten"]
    script = (
        "import sys\nfrom spark_channel.cli import main\n"
        f"sys.argv = ['spark-channel', {command!r}, *{given!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        f"print('loaded', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    assert "copied 10 rows" in done.stderr
    assert done.stdout.splitlines()[-1] == "loaded []"


@pytest.mark.real_time
def test_ten_rows_take_four_times_the_imports_from_start_to_exit(ten_rows: str) -> None:
    """1 s where the imports take 0.25. CPU of the whole process: on an idle machine, it waits for nothing."""
    assert min(cpu_of([*CLI, "run", ten_rows]) for _ in range(4)) <= 4 * imports()


def test_pandas_can_be_imported_after_it_was_kept_out(tmp_path: Path) -> None:
    script = (
        "from spark_channel.cli.plan import without_pandas\nwithout_pandas()\nimport sys\n"
        "assert 'pandas' not in sys.modules\nimport pyarrow as pa\n"
        "assert pa.table({'a': [1, 2]}).to_pandas()['a'].sum() == 3\n"
    )
    subprocess.run(
        [sys.executable, "-c", script], check=True, cwd=tmp_path, timeout=60, env=os.environ
    )
