"""A small job starts as fast as a script: nothing is imported that it does not use."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_channel.cli.copying import CopyOptions, copy
from spark_channel.cli.run import RunOptions
from spark_channel.connectors.postgresql.session import PgSession
from tests.cli.cpu import cpu_of, imports
from tests.cli.test_run import CLI, environment
from tests.cli.typed import made_up, write_job
from tests.servers.postgres import PostgresServer

USED = {
    *("pyarrow", "dateutil", "six"),
    *("pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection"),
    *("typer", "annotated_doc", "shellingham"),
}
"""Libraries of every copy, and what they import themselves; pyarrow imports numpy unless it is left out."""
DRIVERS = {
    "postgresql": {"psycopg", "psycopg_binary", "asyncpg"},
    "mariadb": {"pymysql", "cryptography", "bcrypt", "numpy"},
}
UNUSED = (
    "pyarrow.flight",
    "pyarrow.dataset",
    "spark_channel.service.windows",
    "spark_channel.carrier",
    "spark_channel.connectors.base.network",
    "spark_channel.datax.load",
    "spark_channel.datax.columns",
    "spark_channel.datax.plugins",
    "spark_channel.limits.coordinator",
    "spark_channel.limits.messages",
    "spark_channel.observers.lineage",
    "spark_channel.pipeline.fan_out",
    "spark_channel.service.leases",
    "spark_channel.service.limit_control",
    "spark_channel.service.protection",
    "spark_channel.transfers.fan_out",
)
"""Parts of these libraries and of this package that a copy does without."""
OF_NEW_TABLES = (
    "spark_channel.connectors.base.definition",
    "spark_channel.connectors.sql.definition.new_table",
    "spark_channel.connectors.sql.write.file_database",
    "spark_channel.connectors.sql.write.new_file",
)
"""A copy into a table of PostgreSQL that is there imports none of them."""
OWN = {
    *("arrow_schema", "channel", "cli", "clock", "connectors", "datax", "errors"),
    *("final_errors", "lazy", "limits", "local", "masking", "observers", "option_types", "options"),
    *("pipeline", "plain_text", "planning", "processes", "progress", "requirements", "retry"),
    *("serialization", "service", "signals", "transfers", "transform", "version"),
    "working_directory",
}
"""Modules and packages of this package that a copy uses: none of verification, replication, tunnels and Spark."""


@pytest.fixture
def ten_rows(tmp_path: Path) -> str:
    return write_job(tmp_path / "job.json", made_up(10), {"name": "streamwriter"})


def loaded_by(*arguments: str) -> set[str]:
    """The modules that a command has imported when it ends."""
    script = (
        "import atexit, gc, sys\nfrom spark_channel.cli import main\n"
        "atexit.register(lambda: print('left to collect', len(gc.get_objects())))\n"
        f"sys.argv = ['spark-channel', *{list(arguments)!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "print('loaded', *sys.modules)"
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
    *_, loaded, left = done.stdout.splitlines()
    assert left == "left to collect 0"
    return set(loaded.split()[1:])


def libraries(modules: set[str]) -> set[str]:
    tops = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names
    return {name for name in tops if not name.startswith("_")} - {"spark_channel", "cython_runtime"}


def own(modules: set[str]) -> set[str]:
    return {name.split(".")[1] for name in modules if name.startswith("spark_channel.")}


def ten_lines(directory: Path) -> str:
    csv = directory / "ten.csv"
    csv.write_text("id,name\n" + "".join(f"{number},n\n" for number in range(10)))
    return f"csv:{csv}"


def test_a_copy_between_files_and_a_file_database_imports_what_it_uses(tmp_path: Path) -> None:
    table, parquet = f"sqlite:{tmp_path}/ten.db?dbtable=ten", f"parquet:{tmp_path}/ten"
    for source, target in (
        (ten_lines(tmp_path), table),
        (table, parquet),
        (parquet, f"csv:{tmp_path}/out"),
    ):
        loaded = loaded_by("copy", source, target)
        assert libraries(loaded) <= USED
        assert own(loaded) <= OWN
        assert not loaded & set(UNUSED)


@pytest.mark.parametrize("system", DRIVERS)
def test_a_copy_between_tables_imports_the_drivers_alone(
    request: pytest.FixtureRequest, system: str, tmp_path: Path
) -> None:
    server = request.getfixturevalue(
        {"postgresql": "postgres_server", "mariadb": "mariadb_server"}[system]
    )
    login = "&".join(f"{name}={value}" for name, value in server.login.items() if name != "url")
    first, second = (f"{server.url}?dbtable={name}&{login}" for name in ("start_1", "start_2"))
    loaded_by("copy", ten_lines(tmp_path), first)
    loaded_by("copy", first, second)
    loaded = loaded_by("copy", first, second)
    assert libraries(loaded) <= USED | DRIVERS[system]
    assert own(loaded) <= OWN
    if system == "postgresql":
        assert not loaded & {"dateutil", "six"}, "no value becomes one of Python's"
    assert not loaded & {*UNUSED, *(OF_NEW_TABLES if system == "postgresql" else ())}


def test_a_copy_between_tables_logs_in_once_to_plan_once_to_write_and_once_for_a_channel(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres_server.psql(
        "CREATE TABLE logged_in AS SELECT 1 AS id; CREATE TABLE other_login (id int)"
    )
    login = "&".join(
        f"{name}={value}" for name, value in postgres_server.login.items() if name != "url"
    )
    source, target = (
        f"{postgres_server.url}?dbtable={name}&{login}" for name in ("logged_in", "other_login")
    )
    opened: list[str] = []
    set_up = PgSession._set_up

    def noted(session: PgSession) -> None:
        opened.append(type(session).__name__)
        set_up(session)

    monkeypatch.setattr(PgSession, "_set_up", noted)
    assert copy(source, target, CopyOptions(), RunOptions()) == 0
    assert sorted(opened) == ["PgCopySession", "PgPlanSession", "PgWriteSession"]
    assert postgres_server.psql("SELECT id FROM other_login").strip() == "1"


def test_a_job_of_datax_imports_what_it_uses(ten_rows: str) -> None:
    loaded = loaded_by("run", ten_rows)
    assert libraries(loaded) <= USED | {"numpy"}
    assert own(loaded) <= OWN
    assert not {name for name in loaded if name.startswith("spark_channel.limits.")}


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
