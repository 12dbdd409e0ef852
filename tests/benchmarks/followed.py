"""Many small tables that are followed: the CPU of a first run and of one with nothing new, of client and servers.

Source and target are PostgreSQL servers of their own. Each run is a process of `spark-channel replicate`.
"""

import json
import os
import resource
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.benchmarks.harness import Row
from tests.servers.postgres import PostgresServer

__all__ = ["many_followed"]

TABLES = os.environ.get("SPARK_CHANNEL_BENCH_TABLES", "300 3000")
_RUNS = ("first run", "nothing new")
_TICKS = os.sysconf("SC_CLK_TCK")
_AT_ONCE = 300


def many_followed(folder: Path, held: ExitStack) -> list[Row]:
    """A run of ten times the tables beside one of the first number."""
    servers = [PostgresServer.create() for _ in range(2)]
    for each in servers:
        held.callback(each.close)
    few, many = sorted(map(int, TABLES.split()))
    first, later = (_seconds(folder, servers, count) for count in (few, many))
    return [
        Row(
            f"CPU of {many} followed tables beside {few}, {name}",
            later[name] / first[name],
            f"<= {1.2 * many / few:.3g}",
            note=f"{later[name]:.1f} and {first[name]:.1f} s",
        )
        for name in _RUNS
    ]


def _seconds(folder: Path, servers: list[PostgresServer], tables: int) -> dict[str, float]:
    source, target = servers
    name = f"many{tables}"
    for begin in range(0, tables, _AT_ONCE):
        source.psql(
            f"CREATE SCHEMA IF NOT EXISTS {name};"
            + "".join(
                f"CREATE TABLE {name}.t{each} (id int PRIMARY KEY, name text);"
                f"INSERT INTO {name}.t{each} SELECT n, 'x' FROM generate_series(1, 5) n;"
                for each in range(begin, min(tables, begin + _AT_ONCE))
            )
        )
    listed = ", ".join(f"{name}.t{each}" for each in range(tables))
    source.psql(f"CREATE PUBLICATION {name} FOR TABLE {listed}; ANALYZE")
    target.psql(f"CREATE SCHEMA {name}")
    file = folder / f"{name}.json"
    said = {
        "source": {**source.login, "publication": name, "slot": name},
        "target": {**target.login, "currentSchema": name},
        "streams": {f"{name}.*": {}},
        "defaults": {"mode": "full_then_changes"},
    }
    file.write_text(json.dumps(said))
    command = [sys.executable, "-m", "spark_channel.cli", "replicate"]
    found = {}
    for run in _RUNS:
        before = _used(servers)
        subprocess.run([*command, str(file), "--once"], check=True, capture_output=True)
        found[run] = _used(servers) - before
    subprocess.run([*command, "end", str(file)], check=True, capture_output=True)
    return found


def _used(servers: list[PostgresServer]) -> float:
    """CPU seconds of the processes that this one has waited for, and of the servers."""
    ours = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ours.ru_utime + ours.ru_stime + sum(map(_of_server, servers))


def _of_server(server: PostgresServer) -> float:
    (process,) = (server.data / "postmaster.pid").read_text().splitlines()[:1]
    ticks = 0
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if entry.parent.name == process:  # with what its ended children have used
            ticks += sum(map(int, fields[11:15]))
        elif fields[1] == process:
            ticks += sum(map(int, fields[11:13]))
    return ticks / _TICKS
