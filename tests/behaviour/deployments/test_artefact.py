"""What users install: the wheel and the source zip, given to spark-submit."""

import os
import shutil
import sqlite3
import subprocess
import sys
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

from tests.spark.wheel import build_wheel

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[3]

SCRIPT = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.config("spark.log.level", "ERROR").getOrCreate()
for registration in sys.argv[1:]:
    if registration == "plainly":
        import spark_channel
        try:
            spark.dataSource.register(spark_channel.ChannelDataSource)
        except Exception as error:  # Spark 4.0 takes a name once
            if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
                raise
    elif registration == "register":
        import spark_channel
        spark_channel.register(spark)
    df = spark.range(100).selectExpr("id", "cast(id as string) s")
    df.write.format("channel").option("dbtable", registration).mode("append").save("out.db")
    again = spark.read.format("channel").option("dbtable", registration).load("out.db")
    print(registration, again.selectExpr("count(s)", "sum(id)").first()[:])
spark.stop()
"""
_ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("PY")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="the wheel is built where the dev extra is installed")
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def source_zip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("zip") / "spark_channel.zip"
    with zipfile.ZipFile(target, "w") as archive:
        archive.write(ROOT / "pyspark_channel.py", "pyspark_channel.py")
        for file in sorted((ROOT / "spark_channel").rglob("*.py")):
            archive.write(file, str(file.relative_to(ROOT)))
    return target


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has this one's libraries and not this package, which its `.pth` file would bring."""
    libraries = os.pathsep.join(path for path in sys.path if path.endswith("site-packages"))
    file = tmp_path_factory.mktemp("bin") / "python"
    path = f"${{PYTHONPATH:+$PYTHONPATH:}}{libraries}"
    file.write_text(f'#!/bin/sh\nPYTHONPATH="{path}" exec "{sys.executable}" -S "$@"\n')
    file.chmod(0o755)
    look: list[str | Path] = [
        file,
        "-c",
        "import importlib.util as u; print(u.find_spec('spark_channel'), u.find_spec('pyarrow'))",
    ]
    found = subprocess.run(
        look, cwd="/", env=_ENVIRONMENT, capture_output=True, text=True, check=True
    ).stdout
    assert found.startswith("None ModuleSpec"), found
    return file


def registered(folder: Path, python: Path, py_files: list[Path], ways: list[str]) -> list[str]:
    """Those of `ways` to register under which rows were written and read."""
    (folder / "script.py").write_text(SCRIPT)
    spark_submit = shutil.which("spark-submit", path=str(Path(sys.executable).parent))
    assert spark_submit is not None
    given = ",".join(str(file) for file in py_files)
    done = subprocess.run(
        [
            spark_submit,
            "--master",
            "local[2]",
            "--conf",
            "spark.ui.enabled=false",
            "--py-files",
            given,
            "script.py",
            *ways,
        ],
        cwd=folder,
        env={**_ENVIRONMENT, "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert (folder / "out.db").is_file(), "a relative path begins where the driver runs"
    return [way for way in ways if f"{way} (100, 4950)" in done.stdout]


def test_the_wheel_holds_the_package_and_the_registration(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "pyspark_channel.py" in names
    assert "spark_channel/py.typed" in names
    assert not [name for name in names if name.startswith(("tests", "docs", "notebooks"))]


@pytest.mark.parametrize(
    ("artefact", "ways"),
    [
        ("wheel", ["automatic", "plainly", "register"]),
        pytest.param("source_zip", ["automatic"], marks=[pytest.mark.newest, pytest.mark.soak]),
    ],
)
def test_with_its_registration_beside_it_every_process_finds_the_package(
    request: pytest.FixtureRequest, python: Path, tmp_path: Path, artefact: str, ways: list[str]
) -> None:
    given = [request.getfixturevalue(artefact), ROOT / "pyspark_channel.py"]
    assert registered(tmp_path, python, given, ways) == ways


@pytest.mark.newest
@pytest.mark.soak
def test_a_wheel_alone_works_when_it_is_registered(
    wheel: Path, python: Path, tmp_path: Path
) -> None:
    assert registered(tmp_path, python, [wheel], ["register"]) == ["register"]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the wheel is installed."""
    site = tmp_path_factory.mktemp("site")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        str(site),
    ]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True, timeout=120)
    return site


SHELLS = {
    "spark-sql": """
CREATE TEMPORARY VIEW kept USING channel OPTIONS (path '{path}', dbtable 'kept');
INSERT INTO kept SELECT id FROM range(100, 200);
SELECT 'sum', count(*), sum(id) FROM kept;
""",
    "pyspark": """
import spark_channel
spark_channel.register(spark)
df = spark.read.format("channel").option("dbtable", "kept").load("{path}")
spark.range(100, 200).write.format("channel").option("dbtable", "kept").mode("append").save("{path}")
print("sum", *df.selectExpr("count(*)", "sum(id)").first(), sep="\\t")
""",
}


@pytest.mark.newest
@pytest.mark.parametrize("shell", ["spark-sql", pytest.param("pyspark", marks=pytest.mark.soak)])
def test_a_shell_finds_the_installed_wheel(
    installed: Path, python: Path, tmp_path: Path, shell: str
) -> None:
    path = tmp_path / "kept.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE kept (id INTEGER)")
        connection.executemany("INSERT INTO kept VALUES (?)", [(n,) for n in range(100)])
    program = shutil.which(shell, path=str(Path(sys.executable).parent))
    assert program is not None
    done = subprocess.run(
        [
            program,
            "--master",
            "local[2]",
            "--conf",
            "spark.ui.enabled=false",
            "--conf",
            "spark.sql.catalogImplementation=in-memory",
        ],
        input=SHELLS[shell].format(path=path),
        cwd=tmp_path,
        env={
            **_ENVIRONMENT,
            "PYTHONPATH": str(installed),
            "PYSPARK_PYTHON": str(python),
            "PYSPARK_DRIVER_PYTHON_OPTS": "-i",  # as in a terminal
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert "sum\t200\t19900" in done.stdout, (done.stdout + done.stderr)[-4000:]
