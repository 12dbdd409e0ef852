"""Drivers that are named in other ways than by a package, and drivers that do less than PostgreSQL's."""

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import adbc_driver_sqlite
import pyarrow as pa
import pytest

from spark_channel.connectors import WriteContext, load_writer
from spark_channel.connectors.adbc.session import AdbcSession
from spark_channel.connectors.sql import SqlWriter
from spark_channel.errors import OptionError, TargetError
from spark_channel.options import CommitMode
from tests.connectors.adbc.test_database import ROWS, Base

has_driver = pytest.mark.skipif(
    "OLDEST_VERSIONS" in os.environ,
    reason="the lowest chdb and duckdb bring no driver that is found by name",
)
LIBRARY = adbc_driver_sqlite._driver_path()
MANIFEST = f"""
manifest_version = 1
name = "A shop's SQLite"
version = "1.0.0"
[ADBC]
version = "1.1.0"
[Driver]
shared = "{LIBRARY}"
"""
ADDRESSES = [
    "postgresql://me:s3cret@db/shop",
    "postgresql:me:s3cret@db/shop",
    "Server=db",
    "me:s3cret@db/shop",
    "profile://me:s3cret@db",
]


def base(**options: Any) -> Base:
    return Base(options, lambda _: None)


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the manifest `shopdb` and the profile `shop`, whose database is the file `shop.db` in it."""
    (tmp_path / "shopdb.toml").write_text(MANIFEST)
    (tmp_path / "shop.toml").write_text(
        f'profile_version = 1\ndriver = "shopdb"\n[Options]\nuri = "file:{tmp_path}/shop.db"\n'
    )
    monkeypatch.setenv("ADBC_DRIVER_PATH", str(tmp_path))
    monkeypatch.setenv("ADBC_PROFILE_PATH", str(tmp_path))
    monkeypatch.setenv("SHOP", f"file:{tmp_path}/shop.db")
    return tmp_path


@pytest.mark.parametrize("driver", ["shopdb", "{}/shopdb.toml", "profile://shop", LIBRARY])
def test_a_driver_is_what_the_driver_manager_finds(named: Path, driver: str) -> None:
    given = {"driver": driver.format(named)}
    if "profile" not in driver:
        given["uri"] = "${env:SHOP}"
    found = base(**given)
    is_known = driver == LIBRARY  # by its file's name, as SQLite's
    if not is_known:
        with pytest.raises(
            OptionError, match=r"'commit' got 'job'.* an unknown SQL.* takes 'task'"
        ):
            found.write(ROWS, commit="job")
        found.write(ROWS)
        assert found.read().to_pydict() == ROWS.to_pydict()
    found = base(**given, dialect="sqlite")
    found.write(ROWS, overwrite=True, commit="job")
    found.write(ROWS.slice(0, 1))
    assert found.read().num_rows == 4
    assert found.staged() == []


def test_an_overwrite_of_a_database_whose_ddl_commits_is_by_tasks(named: Path) -> None:
    found = base(driver="profile://shop")
    found.write(ROWS)
    found.write(ROWS.slice(1), overwrite=True)
    assert found.read().to_pydict() == ROWS.slice(1).to_pydict()


@pytest.mark.parametrize(
    ("driver", "message"),
    [
        (
            "nosuch",
            r"'driver' got 'nosuch', which (?s:.*)does not load(?s:.*)package adbc-driver-NAME",
        ),
        ("no-such", "does not load"),
        ("profile://nosuch", "Profile not found: nosuch"),
        ("/nowhere/x.toml", "Could not open manifest"),
        *((each, "'uri' takes the address") for each in ADDRESSES),
        ("jdbc:sqlserver:me;password=s3cret", "parameter 'password'"),
        ("Driver={SQL Server};Server=db;Pwd=s3cret", "parameter 'Pwd'"),
        ("", "'driver' got ''; it takes the driver's name"),
    ],
)
def test_what_the_driver_manager_does_not_find_is_named(driver: str, message: str) -> None:
    with pytest.raises(OptionError, match=message) as met:
        base(driver=driver).reader().schema()
    assert "s3cret" not in str(met.value)


def test_a_driver_that_fails_while_it_is_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package that raises, one without its library, a library without the entry point, and a file that is none."""
    (tmp_path / "adbc_driver_odd.py").write_text("import no_such_part")
    (tmp_path / "adbc_driver_bare.py").write_text(
        "def _driver_path():\n    raise OSError('no library')"
    )
    (tmp_path / "text.so").write_text("no library")
    monkeypatch.syspath_prepend(tmp_path)
    cases: list[tuple[str, dict[str, str], str]] = [
        ("odd", {}, r"package adbc_driver_odd fails: ModuleNotFoundError: .*no_such_part"),
        ("bare", {}, r"package adbc_driver_bare fails: OSError: no library"),
        (f"{tmp_path}/text.so", {}, r"does not load(?s:.*)text\.so: file too short"),
        ("sqlite", {"entrypoint": "Nope"}, r"'entrypoint' got 'Nope', .* does not have: omit it"),
    ]
    for driver, more, message in cases:
        with pytest.raises(OptionError, match=message):
            base(driver=driver, **more).reader().schema()


@pytest.mark.parametrize("commit", ["job", "task"])
@pytest.mark.parametrize("undoes", [True, False], ids=["creates-commit", "all-commits"])
def test_a_driver_that_does_not_undo_is_refused_before_rows_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: CommitMode, undoes: bool
) -> None:
    """It says that it has transactions; and 'dialect' names a database that makes tables in them."""
    ingest = AdbcSession.ingest

    def ingest_and_commit(session: AdbcSession, schema: str, *others: Any) -> int:
        stored = ingest(session, schema, *others)
        if others[-1] == "create":
            session.commit()
        return stored

    if undoes:
        monkeypatch.setattr(AdbcSession, "ingest", ingest_and_commit)
    else:
        monkeypatch.setattr(AdbcSession, "undo", AdbcSession.commit)
    found = base(driver="sqlite", uri=f"file:{tmp_path}/shop.db", dialect="duckdb")
    if undoes and commit == "task":
        found.write(ROWS, commit="task")
        assert found.read().to_pydict() == ROWS.to_pydict()
        return
    with pytest.raises(
        TargetError, match=r"does not undo what a transaction wrote, so (rows|a task)"
    ):
        found.write(ROWS, commit=commit)
    monkeypatch.undo()
    with sqlite3.connect(tmp_path / "shop.db") as file:
        kept = file.execute("SELECT count(*) FROM spark_channel_tasks").fetchall()
        names = file.execute(
            "SELECT name FROM sqlite_master WHERE name NOT LIKE '%auto%'"
        ).fetchall()
    file.close()
    assert kept == [(0,)]
    assert min(names) == ("spark_channel_claims",), "neither a staging table nor the target"


def test_a_profile_may_be_named_beside_a_library_that_does_not_exist(named: Path) -> None:
    (named / "shopdb.toml").write_text(MANIFEST.replace(LIBRARY, "/nowhere/lib.so"))
    with pytest.raises(OptionError, match=r"profile://shop.*does not load"):
        base(driver="profile://shop").reader().schema()


@pytest.mark.parametrize(
    ("driver", "commit"),
    [("postgresql", "job"), ("mssql", "job"), ("redshift", "job"), ("snowflake", "task")]
    + [(name, "task") for name in ("bigquery", "oracle", "mysql", "exasol", "flightsql")],
)
def test_commit_modes_by_driver(driver: str, commit: str) -> None:
    writer = base(driver=driver).writer()
    assert isinstance(writer, SqlWriter)
    assert ("job" if writer.options.makes_tables_in_transactions() else "task") == commit


@has_driver
def test_a_driver_without_transactions_only_reads() -> None:
    """ClickHouse's engine as a driver, of package chdb."""
    found = base(driver="chdb")
    read = found.read(None, query="SELECT number AS n, toString(number) AS s FROM numbers(3)")
    assert read.to_pydict() == {"n": [0, 1, 2], "s": ["0", "1", "2"]}
    with pytest.raises(TargetError, match=r"has no transactions.* can only be read"):
        found.write(ROWS)


@has_driver
@pytest.mark.parametrize("commit", ["job", "task"])
def test_duckdbs_own_driver_only_reads(tmp_path: Path, commit: CommitMode) -> None:
    """Two of its connections in one process do not see each other's rows: three attempts of a task wrote all three."""
    path = tmp_path / "shop.duckdb"
    writer, _ = load_writer({"path": str(path), "dbtable": "t"})
    plan = writer.prepare(WriteContext("job"), ROWS.schema)
    task = writer.open(plan, 0, 0)
    for batch in ROWS.to_batches():
        task.write(batch)
    writer.commit(plan, [task.close()])
    found = base(driver="duckdb", driveroptions=json.dumps({"path": str(path)}))
    assert found.read().to_pydict() == ROWS.to_pydict()
    assert found.read().schema.field("id").type == pa.int64()
    with pytest.raises(
        TargetError, match=r"opens the file as a database of its own.*writer=duckdb"
    ):
        found.write(ROWS, commit=commit)
    assert found.read().num_rows == ROWS.num_rows
