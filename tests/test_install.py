"""What is installed beside what: PySpark is the user's, or there is none and the error says what to do."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
WITHOUT_PYSPARK = """
import sys
class NoPyspark:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pyspark":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, NoPyspark())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "pyspark" else found(name, package)
"""
USE_CLIENT = """
import pyspark, spark_channel, pyspark_channel
from spark_channel.connectors import load_reader
class Settings:
    def get(self, name, default=None): raise RuntimeError("closed")
    def set(self, name, value): raise RuntimeError("closed")
class Source:
    def register(self, source): print("registered", source.name())
class Session:
    conf, dataSource = Settings(), Source()
spark_channel.register(Session())
print("schema", load_reader({"reader": "generator", "rows": "3"})[0].schema().names)
"""
JOB = {
    "job": {
        "content": [
            {
                "reader": {"name": "generator", "parameter": {"rows": 1}},
                "writer": {"name": "streamwriter"},
            }
        ]
    }
}


def without_pyspark(program: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_PYSPARK + program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=False,
    )


def test_without_pyspark_the_package_is_imported_and_the_limit_is_served() -> None:
    done = without_pyspark(
        "import spark_channel\nwith spark_channel.SharedLimit('here', rows_per_second=1) as limit: print(limit.name)"
    )
    assert (done.returncode, done.stdout.strip()) == (0, "here"), done.stderr


USED = (
    "register",
    "transfer(object(), {}, {})",
    "throttle",
    f"run(object(), {JOB!r})",
    "ChannelDataSource",
    "last_report",
)
USE_EACH = f"""
import spark_channel
for used in {USED!r}:
    try:
        eval("spark_channel." + used)
    except ModuleNotFoundError as error:
        print(error)
    else:
        print("no error:", used)
"""


def test_without_pyspark_the_error_says_what_to_install() -> None:
    done = without_pyspark(USE_EACH)
    assert done.returncode == 0, done.stderr
    messages = done.stdout.strip().splitlines()
    assert len(messages) == len(USED)
    for message in messages:
        assert message.startswith("spark-channel found no PySpark"), message
        assert "spark-channel[spark]" in message
        assert "pyspark-client" in message


def test_without_pyspark_the_command_line_says_so_in_one_line() -> None:
    done = without_pyspark(
        "import sys; sys.argv = ['spark-channel', 'demo']\nfrom spark_channel.cli import main\nmain()"
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "found no PySpark" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "--outdir",
            str(out),
            str(ROOT),
        ],
        check=True,
        capture_output=True,
    )
    return next(out.glob("*.whl"))


def test_the_wheel_asks_for_no_pyspark_by_itself(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        pages = {each.name for each in (ROOT / "docs").glob("*.md")}
        assert {f"spark_channel/docs/{page}" for page in pages} <= {*archive.namelist()}, "help"
        metadata = archive.read(
            next(name for name in archive.namelist() if name.endswith("METADATA"))
        ).decode()
    asked = [line for line in metadata.splitlines() if line.startswith("Requires-Dist: pyspark")]
    assert asked
    assert all("extra ==" in line for line in asked)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    "beside", ["pyspark-client", "pyspark==4.0.*", "pyspark==4.1.*", "pyspark==4.2.*", "pyspark"]
)
def test_the_wheel_is_installed_beside_a_pyspark_and_leaves_it_alone(
    wheel: Path, tmp_path: Path, beside: str
) -> None:
    """From the package registry; pyspark is 450 MB each."""
    home = tmp_path / "env"
    venv.create(home, with_pip=True)
    python = home / "bin/python"
    extra = ["pandas<3"] if beside == "pyspark-client" else []
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [str(python), *arguments],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("-m", "pip", "install", "--quiet", "--disable-pip-version-check", beside, *extra)
    before = run("-m", "pip", "freeze")
    run("-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel))
    after = run("-m", "pip", "freeze")
    assert [line for line in before.splitlines() if "pyspark" in line] == [
        line for line in after.splitlines() if "pyspark" in line and "spark-channel" not in line
    ]
    assert "registered channel" in run("-c", USE_CLIENT)
