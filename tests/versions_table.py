"""Makes the table of versions in docs/compatibility.md: `python -m tests.versions_table`.

Pythons, Javas and further versions of PySpark are those of tests/versions.tsv, which `make test-versions` writes.
Libraries are those of the lock files, with which `make test`, `make test-all` and `make test-oldest` run, and accepted
are those of pyproject.toml.
"""

import re
from collections import defaultdict
from pathlib import Path

from spark_channel.requirements import CORE, EXTRAS

__all__ = ["page"]

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
BEGIN, END = "<!-- versions -->\n", "<!-- /versions -->\n"
CLIENTS = (
    "duckdb",
    "mongodb",
    "redis",
    "clickhouse",
    "kafka",
    "delta",
    "iceberg",
    "objects",
    "hdfs",
    "sftp",
)


def _locked(name: str) -> list[str]:
    """The lowest and the newest version that tests run with."""
    found = []
    for lock in ("requirements-oldest.lock", "requirements.lock"):
        match = re.search(rf"^{name}==([\d.]+)", (ROOT / ".ci" / lock).read_text(), re.MULTILINE)
        assert match is not None, f"{lock} has no {name}"
        found.append(match[1])
    return found


def _bound(name: str) -> str:
    """The lowest version that pyproject.toml allows of a library that is in no table of `requirements`."""
    match = re.search(rf'"{name}>=([\d.]+),', (ROOT / "pyproject.toml").read_text())
    assert match is not None, f"pyproject.toml has no lowest {name}"
    return match[1]


def _run(kind: str) -> str:
    """What ran on each version, the largest set of tests first."""
    by_tests: dict[str, list[str]] = defaultdict(list)
    for line in (ROOT / "tests" / "versions.tsv").read_text().splitlines():
        what, version, tests = line.split("\t")
        if what == kind:
            by_tests[tests].append(version)
    return "; ".join(f"{', '.join(by_tests[tests])}: {tests}" for tests in sorted(by_tests))


def _also(kind: str) -> str:
    """The same, after what is said of other versions."""
    return f"; {ran}" if (ran := _run(kind)) else ""


def table() -> str:
    clients = {name: lowest for extra in CLIENTS for name, lowest in EXTRAS[extra].items()}
    named = ", ".join(f"`{name}` {lowest}" for name, lowest in clients.items())
    lines = [
        "| | accepted | tested |",
        "|---|---|---|",
        f"| Python | 3.11 to 3.14 | {_run('Python')} |",
        "| PySpark | 4.0 to 4.3 | {} and {}{}. Streams differ between versions: "
        "[the table](streams.md#versions-of-spark) |".format(*_locked("pyspark"), _also("PySpark")),
        "| pyarrow | {} and newer | {} and {} |".format(CORE["pyarrow"], *_locked("pyarrow")),
        "| pandas | {} and newer, below 3, of which PySpark 4.3 warns | {} and {}{} |".format(
            _bound("pandas"), *_locked("pandas"), _also("pandas")
        ),
        f"| Java | 17 and newer | {_run('Java')} |",
        f"| clients | {named} and newer | the lowest and the newest |",
    ]
    return "".join(f"{line}\n" for line in lines)


def page() -> tuple[str, str]:
    """The page in its current and in its correct form."""
    text = PAGE.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN, 1)
    return text, f"{head}{BEGIN}{table()}{END}{rest.split(END, 1)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page()[1], encoding="utf-8")
