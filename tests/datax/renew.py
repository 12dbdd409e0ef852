"""Writes into jobs.json what DataX writes for each job: `DATAX=FOLDER TZ=Asia/Shanghai python -m tests.datax.renew`.

FOLDER is a DataX that was built, `JAVA` the Java 8 that runs it. With words behind the command, jobs with these in
their names are run.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from tests.datax.matrix import FILES, Databases, name_of, prepare, read_jobs, rows_after
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

__all__ = ["datax_command"]

KEPT = ("exit", "refused", "rows")


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


def _outcome(job: dict[str, Any], databases: Databases) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = datax_command(prepare(job, folder, databases))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        failed = re.findall(r"读写失败总数\s*:\s*(\d+)", done.stdout)
        return {
            "exit": min(done.returncode, 1),
            "refused": int(failed[-1]) if failed else None,
            "rows": rows_after(job, folder, databases),
        }


def _line(job: dict[str, Any]) -> str:
    return json.dumps(job, ensure_ascii=False)


def main(words: list[str]) -> None:
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
                        jobs[number] = {**job, **_outcome(job, databases)}
                text = "[\n" + ",\n".join(_line(job) for job in jobs) + "\n]\n"
                Path(__file__).with_name(name).write_text(text, "utf-8")
    finally:
        mariadb.close()
        postgres.close()


if __name__ == "__main__":
    main(sys.argv[1:])
