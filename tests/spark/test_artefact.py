"""What users install: the wheel and the source zip, given to spark-submit."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import sys
from pyspark.sql import SparkSession

def where(batches):
    import spark_channel
    import pyarrow as pa
    list(batches)
    yield pa.record_batch({"f": [spark_channel.__file__]})

spark = SparkSession.builder.config("spark.log.level", "ERROR").getOrCreate()
if sys.argv[1] != "automatic":
    import spark_channel
if sys.argv[1] == "register":
    spark_channel.register(spark)
if sys.argv[1] == "plainly":
    try:
        spark.dataSource.register(spark_channel.ChannelDataSource)
    except Exception as error:  # Spark 4.0, where the package is installed too, has found it already
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
df = spark.range(100).selectExpr("id", "cast(id as string) s")
df.write.format("channel").option("dbtable", "t").mode("append").save("out.db")
again = spark.read.format("channel").option("dbtable", "t").load("out.db")
print("ROWS", again.count(), "SUM", again.selectExpr("sum(id)").first()[0])
print("WORKER", spark.range(1).mapInArrow(where, "f string").first().f)
spark.stop()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="the wheel is built where the dev extra is installed")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def source_zip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("zip") / "spark_channel.zip"
    with zipfile.ZipFile(target, "w") as archive:
        archive.write(ROOT / "pyspark_channel.py", "pyspark_channel.py")
        for file in sorted((ROOT / "spark_channel").rglob("*.py")):
            archive.write(file, str(file.relative_to(ROOT)))
    return target


def submit(folder: Path, artefact: Path, registration: str, **more: str) -> str:
    (folder / "script.py").write_text(SCRIPT)
    spark_submit = shutil.which("spark-submit", path=str(Path(sys.executable).parent))
    assert spark_submit is not None
    command = [spark_submit, "--master", "local[2]", "--py-files", str(artefact), "script.py", registration]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**environment, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", **more},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


def test_the_wheel_holds_the_package_and_the_registration(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "pyspark_channel.py" in names
    assert "spark_channel/py.typed" in names
    assert not [name for name in names if name.startswith(("tests", "docs", "notebooks"))]


def test_a_wheel_given_to_py_files_works(wheel: Path, tmp_path: Path) -> None:
    out = submit(tmp_path, wheel, "register")
    assert "ROWS 100 SUM 4950" in out
    assert "spark_channel-0" in out.split("WORKER", 1)[1]


def test_a_source_zip_given_to_py_files_works(source_zip: Path, tmp_path: Path) -> None:
    out = submit(tmp_path, source_zip, "plainly")
    assert "ROWS 100 SUM 4950" in out
    assert "spark_channel.zip" in out.split("WORKER", 1)[1]


def test_on_the_python_path_it_is_registered_by_itself(source_zip: Path, tmp_path: Path) -> None:
    out = submit(tmp_path, source_zip, "automatic", PYTHONPATH=str(source_zip))
    assert "ROWS 100 SUM 4950" in out
