"""Writes into the files of jobs what DataX writes for each.

`DATAX=FOLDER TZ=Asia/Shanghai python -m tests.datax.renew` runs the DataX that was built in FOLDER, by the Java 8
`JAVA`. With words behind the command, jobs with these in their names are run.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

from tests.datax import plugin_ends
from tests.datax.matrix import FILES, Databases, name_of, prepare, read_jobs, rows_after
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

__all__ = ["datax_command"]


def datax_command(job: Path, *, memory: str = "512m") -> list[str]:
    """DataX as its launcher starts it."""
    home = os.environ["DATAX"]
    return [
        os.environ.get("JAVA", "java"),
        f"-Xmx{memory}",
        "-Dfile.encoding=UTF-8",
        f"-Ddatax.home={home}",
        f"-Dlogback.configurationFile={home}/conf/logback.xml",
        "-classpath",
        f"{home}/lib/*",
        "com.alibaba.datax.core.Engine",
        *("-mode", "standalone", "-jobid", "-1", "-job", str(job)),
    ]


def _outcome(written: Callable[[Path], Path], rows: Callable[[Path], Any]) -> dict[str, Any]:
    """What DataX does with the job that `written` puts into a folder; `rows` are there then."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = datax_command(written(folder))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        failed = re.findall(r"读写失败总数\s*:\s*(\d+)", done.stdout)
        return {
            "exit": min(done.returncode, 1),
            "refused": int(failed[-1]) if failed else None,
            "rows": rows(folder),
        }


def _write(name: str, jobs: list[dict[str, Any]]) -> None:
    lines = ",\n".join(json.dumps(job, ensure_ascii=False) for job in jobs)
    Path(__file__).with_name(name).write_text(f"[\n{lines}\n]\n", "utf-8")


def _renew_databases(words: list[str]) -> None:
    with mock.patch.dict(
        os.environ, {"TZ": "UTC"}
    ):  # DataX's zone is another one than the servers'
        mariadb, postgres = MariadbServer.create(), PostgresServer.create()
    try:
        databases = Databases(mariadb, postgres)
        with databases.open():
            for name in FILES:
                jobs = read_jobs(name)
                for number, job in enumerate(jobs):
                    if all(word in name_of(job) for word in words):
                        done = _outcome(
                            lambda folder, job=job: prepare(job, folder, databases),  # type: ignore[misc]
                            lambda folder, job=job: rows_after(job, folder, databases),  # type: ignore[misc]
                        )
                        jobs[number] = {**job, **done}
                _write(name, jobs)
    finally:
        mariadb.close()
        postgres.close()


def _renew_plugins(words: list[str]) -> None:
    jobs = read_jobs("plugins.json")
    for system, opened in plugin_ends.ENDS.items():
        chosen = [
            number
            for number, job in enumerate(jobs)
            if job["system"] == system and all(word in f"{system}: {job['what']}" for word in words)
        ]
        if not chosen:
            continue
        with ExitStack() as held:
            with mock.patch.dict(os.environ, {"TZ": "UTC"}):
                end = held.enter_context(opened())
            for number in chosen:
                jobs[number] |= _plugin_outcome(jobs[number], end)
    _write("plugins.json", jobs)


def _plugin_outcome(job: dict[str, Any], end: plugin_ends.End) -> dict[str, Any]:
    return _outcome(
        lambda folder: plugin_ends.written_job(job, folder, end, for_datax=True),
        lambda folder: plugin_ends.rows_after(job, folder, end),
    )


def main(words: list[str]) -> None:
    _renew_databases(words)
    _renew_plugins(words)


if __name__ == "__main__":
    main(sys.argv[1:])
