"""The lowest version of each library that this package works with, and the error for one that is older.

pip keeps these by pyproject.toml. Where the package was shipped as an archive, or installed with `--no-deps` into the
image of a platform, an older library would fail in the middle of a job, in words of its own.
"""

import re
import sys
from collections.abc import Mapping
from functools import cache, lru_cache

from spark_channel.errors import MissingPackageError

__all__ = ["CORE", "EXTRAS", "check_versions"]

CORE: Mapping[str, str] = {
    "pyarrow": "18.0",
    "adbc-driver-manager": "1.13",
    "pydantic": "2.7",
    "pyyaml": "6.0",
    "sqlglot": "26.0",
    "stamina": "25.2",
    "typer": "0.15.4",
    "rich": "13.7",
}
EXTRAS: Mapping[str, Mapping[str, str]] = {
    "postgresql": {
        "adbc-driver-postgresql": "1.13",
        "asyncpg": "0.30",
        "psycopg": "3.2.1",
        "numpy": "1.26",
    },
    "mysql": {"PyMySQL": "1.2", "numpy": "1.26"},
    "duckdb": {"duckdb": "1.4"},
    "mongodb": {"pymongo": "4.9"},
    "redis": {"redis": "5.0"},
    "clickhouse": {"clickhouse-connect": "0.8"},
    "kafka": {"confluent-kafka": "2.16"},
    "objects": {"obstore": "0.8"},
    "hdfs": {"hdfs-native": "0.14.7"},
    "delta": {"deltalake": "1.6", "obstore": "0.8"},
    "iceberg": {"pyiceberg": "0.12"},
    "sftp": {"paramiko": "3.5"},
    "verify": {"numpy": "1.26"},
}
"""Of each extra whose library a connector or a command uses. A test holds both to pyproject.toml."""


BESIDE: Mapping[str, tuple[str, str, str]] = {"numpy": ("2.0", "pyarrow", "26")}
"""A library that another one needs from some version on, and that pip does not hold to it: pyarrow 26 and NumPy 2."""


@lru_cache(maxsize=32)
def check_versions(extra: str = "") -> None:
    """Check what is installed of the package's own libraries, and of an extra's. A library that is missing is no fault.

    Raises:
        MissingPackageError: a library is older than the package works with. It names each, and the version it needs.
    """
    needs = {**CORE, **EXTRAS.get(extra, {})}
    for name, (lowest, other, since) in BESIDE.items():
        beside = _installed(other)
        if beside is not None and _numbers(beside) >= _numbers(since):
            needs[name] = lowest
    old = []
    for name, lowest in needs.items():
        installed = _installed(name)
        if installed is not None and _numbers(installed) < _numbers(lowest):
            old.append((name, lowest, installed))
    if not old:
        return
    needed = ", ".join(f"{name} {lowest} or newer" for name, lowest, _ in old)
    versions = ", ".join(f"{name} {installed}" for name, _, installed in old)
    packages = " ".join(f"'{name}>={lowest}'" for name, lowest, _ in old)
    raise MissingPackageError(
        f"spark-channel needs {needed}, and {sys.executable} has {versions}: pip install {packages}, "
        "on the driver's host and on the workers",
        name=", ".join(name for name, _, _ in old),
    )


@cache
def _installed(name: str) -> str | None:
    """The version of a library; None = it is missing. Cached: it is read from a file of the library's.

    `version` of the standard library parses the whole file as a mail, README included: 3 ms for each library.
    """
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        found = distribution(name)
    except PackageNotFoundError:
        return None
    line = re.search(r"^Version: *(\S+)", found.read_text("METADATA") or "", re.MULTILINE)
    return line[1] if line else found.version


def _numbers(version: str) -> tuple[int, ...]:
    """The release of a version: 2.7.0 and 2.7 are equal, and so is 2.7rc1, which has what it brings."""
    release = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(part) for part in release[0].split(".")] if release else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
