"""A schema of many small tables, copied whole: CPU of client and server beside the servers' own tools.

pgcopydb 0.10 and mydumper 0.10 are Debian's packages, unpacked once into artifacts/peers/debian.
"""

import contextlib
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.benchmarks.harness import Row, print_table
from tests.benchmarks.programs import PEERS, MissingError
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

TABLES = int(os.environ.get("SPARK_CHANNEL_BENCH_TABLES", "200"))
ROWS = int(os.environ.get("SPARK_CHANNEL_BENCH_ROWS", "500"))
ROUNDS = int(os.environ.get("SPARK_CHANNEL_BENCH_ROUNDS", "5"))
_PACKAGES = ("pgcopydb", "mydumper", "libpcre3")
_UNCOMPILED = "PYTHONDONTWRITEBYTECODE"
"""With it each process compiles the modules that it imports."""
_TICKS = os.sysconf("SC_CLK_TCK")
_COLUMNS = (
    "id {serial}, customer int NOT NULL, status varchar(10) DEFAULT 'new', price decimal(10,2), "
    "day date, note varchar(80)"
)


def debian() -> Path:
    """The folder in which the packages of the peers are unpacked."""
    to = PEERS / "debian"
    if to.exists():
        return to
    if shutil.which("apt-get") is None:
        raise MissingError("pgcopydb and mydumper are Debian packages")
    PEERS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=PEERS) as folder:
        command = ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", *_PACKAGES]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise MissingError(f"apt-get failed: {done.stderr.strip()[-300:]}")
        for package in Path(folder).glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, f"{folder}/root"], check=True)
        shutil.move(f"{folder}/root", to)
    return to


def peer(name: str) -> tuple[str, dict[str, str]]:
    """The program, and the environment in which it runs."""
    (libraries,) = (debian() / "lib").glob("*-linux-gnu")
    return str(debian() / "usr" / "bin" / name), {"LD_LIBRARY_PATH": str(libraries)}


def cpu_of(process: int) -> float:
    """The CPU seconds of a server: of the process, its children, and those of them that have ended."""
    total = 0
    for found in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            number, _, rest = found.read_text().partition(" (")
            fields = rest.rpartition(") ")[2].split()
            if int(number) == process:
                total += sum(map(int, fields[11:15]))
            elif int(fields[1]) == process:
                total += sum(map(int, fields[11:13]))
    return total / _TICKS


def spent(server: int, work: Callable[[], None]) -> tuple[float, float]:
    """The CPU seconds of the client's processes and of the server."""
    time.sleep(0.3)  # the sessions of what ran before have ended
    before = cpu_of(server), resource.getrusage(resource.RUSAGE_CHILDREN)
    work()
    time.sleep(0.3)
    after = cpu_of(server), resource.getrusage(resource.RUSAGE_CHILDREN)
    client = (after[1].ru_utime - before[1].ru_utime) + (after[1].ru_stime - before[1].ru_stime)
    return client, after[0] - before[0]


def run(command: Sequence[str] | str, **more: str) -> None:
    done = subprocess.run(
        command,
        shell=isinstance(command, str),
        executable="/bin/bash" if isinstance(command, str) else None,
        capture_output=True,
        text=True,
        check=False,
        env={name: text for name, text in (os.environ | more).items() if name != _UNCOMPILED},
        timeout=600,
    )
    if done.returncode:
        raise RuntimeError(f"{command}: {(done.stdout + done.stderr)[-3000:]}")


def captured(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    return done.stdout


def without_keys(dump: str) -> str:
    """Without the word of each dump, and with the next number of a sequence in one form."""
    lines = dump.splitlines()
    kept = [line for line in lines if not line.startswith(("\\restrict", "\\unrestrict"))]
    return re.sub(
        r"(setval\('[^']*'), (\d+), true",
        lambda found: f"{found[1]}, {int(found[2]) + 1}, false",
        "\n".join(kept),
    )


@contextlib.contextmanager
def own(source: Mapping[str, str], target: Mapping[str, str], streams: str) -> Iterator[list[str]]:
    """What copies the streams by spark-channel, with the tables' whole definitions."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "replicate.yml"
        made = {
            "source": dict(source),
            "target": dict(target),
            "defaults": {"object": "{table}", "schema": "full"},
            "streams": {streams: {}},
            "parallel": 1,  # as the peers, but for pgcopydb
        }
        file.write_text(json.dumps(made))
        yield [str(Path(sys.executable).with_name("spark-channel")), "replicate", str(file)]


def side_by_side(
    system: str,
    server: int,
    ways: Mapping[str, Callable[[], None]],
    clean: Callable[[], None],
    check: Callable[[], None],
) -> list[Row]:
    """`ways`: ours is the last one."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(ROUNDS + 1):
        for name in list(ways) if number % 2 else list(ways)[::-1]:
            if number > 1 and name == "pgcopydb":  # it takes ten times as long as the others
                continue
            clean()
            cost = spent(server, ways[name])
            check()
            if number:  # what each program reads first is then in memory
                found[name].append(cost)
    totals = {name: [sum(each) for each in costs] for name, costs in found.items()}
    *others, us = totals
    faster = min(others, key=lambda name: statistics.median(totals[name]))
    shares = [a / b for a, b in zip(totals[us], totals[faster], strict=True)]
    rows = [
        Row(
            f"{system}: {name}",
            statistics.median(totals[name]),
            "",
            "CPU s",
            "client {:.2f}, server {:.2f}".format(
                *(statistics.median(each) for each in zip(*found[name], strict=True))
            ),
        )
        for name in ways
    ]
    note = f"{TABLES} tables of {ROWS} rows; {min(shares):.2f} to {max(shares):.2f}"
    asked = "<= 1.3"
    rows.append(
        Row(f"{system}: spark-channel / {faster}", statistics.median(shares), asked, "x", note)
    )
    return rows


def postgresql() -> list[Row]:
    program, environment = peer("pgcopydb")
    with contextlib.closing(PostgresServer.create()) as server:
        columns = _COLUMNS.format(serial="bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY")
        tables = "".join(
            f"CREATE TABLE t{n} ({columns}); INSERT INTO t{n} (customer, price, day, note) "
            f"SELECT i % 97, i / 7.0, date '2026-01-01' + i % 365, 'the note of ' || i "
            f"FROM generate_series(1, {ROWS}) i;"
            f"CREATE INDEX ON t{n} (customer); CREATE INDEX ON t{n} (status, day); CREATE UNIQUE INDEX ON t{n} (note);"
            for n in range(TABLES)
        )
        server.psql(tables)
        server.psql("VACUUM ANALYZE")
        uri = f"postgresql://{server.user}:{server.password}@127.0.0.1:{server.port}"
        target = {**server.login, "url": f"{server.url.rpartition('/')[0]}/dw"}
        with (
            own(server.login, target, "public.*") as ours,
            tempfile.TemporaryDirectory() as folder,
        ):
            ways: dict[str, Callable[[], None]] = {
                "pg_dump | psql": lambda: run(
                    f"set -o pipefail; pg_dump {uri}/postgres | psql -q -v ON_ERROR_STOP=1 {uri}/dw"
                ),
                "pgcopydb": lambda: run(
                    [
                        program,
                        "clone",
                        "--source",
                        f"{uri}/postgres",
                        "--target",
                        f"{uri}/dw",
                        "--dir",
                        f"{folder}/{time.monotonic()}",
                        "--no-owner",
                    ],
                    **environment,
                ),
                "spark-channel": lambda: run(ours),
            }

            def clean() -> None:
                server.psql("DROP DATABASE IF EXISTS dw WITH (FORCE)")
                server.psql("CREATE DATABASE dw")
                server.psql("CHECKPOINT")

            def dumped(database: str) -> str:
                """All rows and definitions but those of the claims, in an order of their own."""
                own = ["-T", "public.spark_channel_*", "--no-owner"]
                lines = captured(["pg_dump", *own, f"{uri}/{database}"]).splitlines()
                return "\n".join(sorted(line for line in lines if not line.startswith("--")))

            wanted = without_keys(dumped("postgres"))

            def check() -> None:
                assert without_keys(dumped("dw")) == wanted

            assert server._process is not None
            return side_by_side("PostgreSQL", server._process.pid, ways, clean, check)


def mariadb() -> list[Row]:
    dumper, environment = peer("mydumper")
    loader, _ = peer("myloader")
    with contextlib.closing(MariadbServer.create()) as server:
        columns = _COLUMNS.format(serial="bigint AUTO_INCREMENT PRIMARY KEY")
        tables = "".join(
            f"CREATE TABLE t{n} ({columns}, INDEX c (customer), INDEX s (status, day), UNIQUE INDEX n (note));"
            f"INSERT INTO t{n} (customer, price, day, note) SELECT seq % 97, seq / 7, "
            f"'2026-01-01' + INTERVAL seq % 365 DAY, CONCAT('the note of ', seq) FROM seq_1_to_{ROWS};"
            for n in range(TABLES)
        )
        server.sql(tables, database="shop")
        server.sql("ANALYZE TABLE " + ", ".join(f"t{n}" for n in range(TABLES)), database="shop")
        target = {**server.login, "url": f"{server.url.rpartition('/')[0]}/dw"}
        login = [
            "-h",
            "127.0.0.1",
            "-P",
            str(server.port),
            "-u",
            server.user,
            "-p",
            server.password,
        ]

        def dumped() -> None:
            with tempfile.TemporaryDirectory() as folder:
                run([dumper, *login, "-B", "shop", "-o", folder], **environment)
                run([loader, *login, "-s", "shop", "-B", "dw", "-d", folder], **environment)

        with own(server.login, target, "shop.*") as ours:
            ways: dict[str, Callable[[], None]] = {
                "mydumper, myloader": dumped,
                "spark-channel": lambda: run(ours),
            }

            def clean() -> None:
                server.sql("DROP DATABASE IF EXISTS dw; CREATE DATABASE dw CHARACTER SET utf8mb4")

            def shown(database: str) -> str:
                own = [
                    f"--ignore-table={database}.spark_channel_{name}"
                    for name in ("claims", "tasks")
                ]
                options = ["--no-defaults", "--skip-comments", "--skip-extended-insert"]
                command = [
                    "mariadb-dump",
                    *options,
                    *own,
                    "-S",
                    f"{server.directory}/s",
                    "-u",
                    "root",
                ]
                return captured([*command, database])

            wanted = shown("shop")

            def check() -> None:
                assert shown("dw") == wanted

            assert server._process is not None
            return side_by_side("MariaDB", server._process.pid, ways, clean, check)


def main() -> list[Row]:
    found = []
    for part in (postgresql, mariadb):
        try:
            found += part()
        except MissingError as error:
            found.append(Row(f"skipped {part.__name__}: {error}", float("nan")))
    return found


if __name__ == "__main__":
    print_table(main())
