"""The existing rows of a table at a limit, while 2 000 changes a second arrive.

The WAL that the slot keeps, and the age of changes when they are processed: with chunks beside the changes, and with
`baseMode=initial`, which reads the existing rows first.

    python -m tests.benchmarks.bench_base [--out docs/images/wal-kept.png]

SPARK_CHANNEL_BENCH_BASE_ROWS (2 000 000) and SPARK_CHANNEL_BENCH_BASE_LIMIT (30 000 rows/s, changes included) set the
size.
"""

import argparse
import os
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from spark_channel.connectors.base.feed import has_base
from spark_channel.tunnel import Delivery, Tunnel
from spark_channel.tunnel.records import ChannelState
from tests.benchmarks.harness import Row, print_table
from tests.servers.postgres import PostgresServer

ROOT = Path(__file__).resolve().parents[2]
ROWS = int(os.environ.get("SPARK_CHANNEL_BENCH_BASE_ROWS", "2000000"))
LIMIT = int(os.environ.get("SPARK_CHANNEL_BENCH_BASE_LIMIT", "30000"))
CHANGES_PER_SECOND = 2_000
CHANGES = 100
"""Rows per transaction."""
LOOK_SECONDS = 0.25
AFTER_SECONDS = 8.0
"""How long changes go on when the base is read."""
_KEPT = """
SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint FROM pg_replication_slots WHERE slot_name = %s
"""


@dataclass
class Measured:
    """`kept`: (seconds, bytes). `ages`: (rows, time of commit, seconds until they were processed). `ended`: when all
    existing rows were read, in seconds since the begin and as a time."""

    kept: list[tuple[float, int]] = field(default_factory=list)
    ages: list[tuple[int, float, float]] = field(default_factory=list)
    changes: int = 0
    read: int = 0
    seconds: float = 0.0
    ended: float = 0.0

    @property
    def most(self) -> float:
        return max(nbytes for _, nbytes in self.kept) / (1 << 20)

    def age(self, share: float) -> float:
        """The age that this share of the changes did not exceed which were committed while the base was read."""
        ages = sorted((seconds, rows) for rows, at, seconds in self.ages if at < self.ended)
        left = share * sum(rows for _, rows in ages)
        for seconds, rows in ages:
            left -= rows
            if left <= 0:
                return seconds
        raise RuntimeError("no change was processed")


class Copy:
    """One copy at the limit."""

    def __init__(self, server: PostgresServer, home: Path, mode: str) -> None:
        self.server, self.measured = server, Measured()
        self.options = {
            **server.login,
            "dbtable": "big",
            "slot": f"base_{mode}",
            "publication": "big",
            "baseMode": mode,
            "checkpointInterval": "1",
            "heartbeatInterval": "5",
            "rowsPerSecond": str(LIMIT),
        }
        self.tunnel = Tunnel(mode, self.options, store=str(home / f"{mode}.db"))
        self._over = threading.Event()
        self._began = 0.0

    def run(self) -> Measured:
        self.tunnel.create(channels=4)
        threads = [threading.Thread(target=each) for each in (self._change, self._watch)]
        self._began = time.monotonic()
        for thread in threads:
            thread.start()
        try:
            self.tunnel.consume(self._process, threads=2)
        finally:
            self._over.set()
            for thread in threads:
                thread.join()
            self.tunnel.delete()
        return self.measured

    def _process(self, delivery: Delivery) -> None:
        changes, commits = 0, list[pa.Array]()
        for batch in delivery.batches:
            commits.append(pc.drop_null(batch.column("_commit_ts")))  # existing rows have none
            changes += len(commits[-1])
            self.measured.read += batch.num_rows - len(commits[-1])
        now = time.time()
        self.measured.changes += changes
        for each in commits:
            for found in pc.value_counts(each):
                at = found["values"].as_py().timestamp()
                self.measured.ages.append((found["counts"].as_py(), at, now - at))

    def _change(self) -> None:
        """Updates all over the table, with new values of 500 bytes."""
        with self._session() as session:
            began, made = time.monotonic(), 0
            while not self._over.is_set():
                session.execute(
                    "UPDATE big SET item = repeat(md5(random()::text), 16), at = now() WHERE id IN "
                    "(SELECT 1 + (random() * %s)::bigint FROM generate_series(1, %s))",
                    (ROWS - 2, CHANGES),
                )
                made += CHANGES
                self._over.wait(max(0.0, began + made / CHANGES_PER_SECOND - time.monotonic()))

    def _watch(self) -> None:
        with self._session() as session:
            while not self._over.wait(LOOK_SECONDS):
                (kept,) = session.execute(_KEPT, (self.options["slot"],)).fetchone() or (0,)
                now = time.monotonic() - self._began
                self.measured.kept.append((now, kept))
                if not self.measured.seconds and self._is_read():
                    self.measured.seconds, self.measured.ended = now, time.time()
                if self.measured.seconds and now > self.measured.seconds + AFTER_SECONDS:
                    self.tunnel.stop()

    def _is_read(self) -> bool:
        channels = self.tunnel.store.state(self.tunnel.name).channels.values()
        return not any(
            each.state is not ChannelState.TERMINATED and (each.is_base or has_base(each.token))
            for each in channels
        )

    def _session(self) -> "psycopg.Connection[tuple[Any, ...]]":
        return psycopg.connect(
            host=str(self.server.directory),
            port=self.server.port,
            user=self.server.user,
            dbname="postgres",
            autocommit=True,
        )


def measure() -> dict[str, Measured]:
    server = PostgresServer.create()
    try:
        server.psql(
            "CREATE TABLE big (id bigint PRIMARY KEY, item text, price numeric(12,2), at timestamptz);"
            f"INSERT INTO big SELECT i, 'item number ' || i, i / 100.0, now() FROM generate_series(1, {ROWS}) i;"
            "CREATE PUBLICATION big FOR TABLE big; VACUUM ANALYZE big; CHECKPOINT"
        )
        with tempfile.TemporaryDirectory() as home:
            return {
                mode: Copy(server, Path(home), mode).run() for mode in ("incremental", "initial")
            }
    finally:
        server.close()


def rows_of(measured: dict[str, Measured]) -> list[Row]:
    ours, before = measured["incremental"], measured["initial"]
    size = f"{ROWS:,} rows at {LIMIT:,} rows/s".replace(",", " ")
    made = ours.changes / (ours.seconds + AFTER_SECONDS)
    note = f"{size}: {ours.seconds:.0f} s, beside {made:.0f} changes/s"
    return [
        Row(
            "WAL kept by the slot at most, base in chunks beside the changes",
            ours.most,
            "<= 64",
            "MiB",
            note,
        ),
        Row("the same, baseMode=initial", before.most, "", "MiB", f"{before.seconds:.0f} s"),
        Row(
            "age of a change when it is processed, during the base: median", ours.age(0.5), "", "s"
        ),
        Row("the same, 99th percentile", ours.age(0.99), "< 5", "s"),
        Row("the same of baseMode=initial, 99th percentile", before.age(0.99), "", "s"),
    ]


def main() -> list[Row]:
    return rows_of(measure())


def draw(measured: dict[str, Measured], out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3), dpi=160, constrained_layout=True)
    names = {
        "incremental": "chunks beside the changes",
        "initial": "baseMode=initial: existing rows first",
    }
    for (mode, name), colour in zip(names.items(), ("tab:green", "tab:gray"), strict=True):
        found = measured[mode]
        axes.plot(
            [at for at, _ in found.kept],
            [nbytes / (1 << 20) for _, nbytes in found.kept],
            color=colour,
            label=name,
        )
        axes.axvline(found.seconds, color=colour, linestyle=":", linewidth=1)
    axes.set_xlabel("seconds; dotted: all existing rows are read")
    axes.set_ylabel("MiB of WAL kept by the slot")
    axes.set_ylim(0)
    axes.legend(fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measures a base beside changes, and draws it.")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args().out
    all_of_it = measure()
    print_table(rows_of(all_of_it))
    if asked is not None:
        draw(all_of_it, asked)
