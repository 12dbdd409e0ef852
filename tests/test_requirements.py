"""Libraries that are older than the package works with are named before a job begins."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import spark_channel
from spark_channel import requirements
from spark_channel.connectors import load_reader
from spark_channel.errors import MissingPackageError

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
BOUND = re.compile(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)(?:,<[\d.]+)?")


def bounds(requirements: list[str]) -> dict[str, str]:
    found = [BOUND.fullmatch(requirement) for requirement in requirements]
    return {match[1]: match[2] for match in found if match is not None}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Puts versions that a platform's image has before those of this environment."""

    def install(**versions: str) -> None:
        for name, version in versions.items():
            folder = tmp_path / f"{name}-{version}.dist-info"
            folder.mkdir()
            text = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n\nVersion: 0\n"
            (folder / "METADATA").write_text(text)

    monkeypatch.syspath_prepend(tmp_path)
    for cached in (requirements.check_versions, requirements._installed):
        cached.cache_clear()
    yield install
    for cached in (requirements.check_versions, requirements._installed):
        cached.cache_clear()


def test_the_bounds_are_those_of_pyproject() -> None:
    assert bounds(PROJECT["dependencies"]) == requirements.CORE
    extras = PROJECT["optional-dependencies"]
    assert {name: bounds(extras[name]) for name in requirements.EXTRAS} == requirements.EXTRAS


def test_what_is_installed_here_is_enough() -> None:
    for extra in requirements.EXTRAS:
        requirements.check_versions(extra)


@pytest.mark.parametrize("version", ["18", "18.0.0", "18.0rc1", "18.1", "19.0.dev3+git", "100.0"])
def test_a_version_that_is_new_enough(installed: Callable[..., None], version: str) -> None:
    installed(pyarrow=version)
    requirements.check_versions()


def test_every_older_library_is_named_with_the_version_it_needs(
    installed: Callable[..., None],
) -> None:
    installed(pyarrow="15.0.2", pydantic="2.6.4", duckdb="1.3.2")
    with pytest.raises(MissingPackageError) as raised:
        load_reader({"reader": "duckdb", "path": "a.duckdb", "dbtable": "t"})
    assert str(raised.value) == (
        "spark-channel needs pyarrow 18.0 or newer, pydantic 2.7 or newer, duckdb 1.4 or newer, and "
        f"{sys.executable} has pyarrow 15.0.2, pydantic 2.6.4, duckdb 1.3.2: pip install 'pyarrow>=18.0' "
        "'pydantic>=2.7' 'duckdb>=1.4', on the driver's host and on the workers"
    )


def test_a_job_ends_before_spark_starts(installed: Callable[..., None]) -> None:
    installed(pyarrow="15.0.2")
    with pytest.raises(MissingPackageError, match=r"needs pyarrow 18\.0 or newer"):
        spark_channel.transfer(
            None, reader={"name": "generator", "rows": "1"}, writer={"name": "discard"}
        )


@pytest.mark.parametrize(
    ("pyarrow", "numpy", "wanted"),
    [("26.0.1", "1.26.4", "2.0"), ("25.0.0", "1.26.4", ""), ("26.0.1", "2.0.0", "")],
)
def test_numpy_is_held_to_what_pyarrow_imports(
    installed: Callable[..., None], pyarrow: str, numpy: str, wanted: str
) -> None:
    """Beside pyarrow 26 an older NumPy ends the import of pyarrow, and pip does not know it."""
    installed(pyarrow=pyarrow, numpy=numpy)
    if not wanted:
        requirements.check_versions("verify")
        return
    with pytest.raises(
        MissingPackageError, match=r"needs numpy 2\.0 or newer.* has numpy 1\.26\.4"
    ):
        requirements.check_versions()


_BROKEN = """
import importlib.abc, sys

class Broken(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "pyarrow":
            raise ImportError("pyarrow requires NumPy 2.0 or newer, found 1.26.4")

sys.meta_path.insert(0, Broken())
sys.path.insert(0, sys.argv[1])
import spark_channel
spark_channel.transfer
"""


def test_a_library_that_cannot_be_imported_is_named_where_it_is_too_old(
    installed: Callable[..., None], tmp_path: Path
) -> None:
    installed(numpy="1.26.4", pyarrow="26.0.1")
    done = subprocess.run(
        [sys.executable, "-c", _BROKEN, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "MissingPackageError: spark-channel needs numpy 2.0 or newer" in last
