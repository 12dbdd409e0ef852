"""What the conformance kit compares with: rows as a multiset, and what a process holds open."""

import gc
import os
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

__all__ = ["HeldResources", "expect", "held_resources", "rows_of", "same_rows"]


_JOIN_SECONDS = 5.0


def expect(holds: object, message: str) -> None:
    """Fail with `message` unless `holds`; unlike assert, also under `python -O`."""
    if not holds:
        raise AssertionError(message)


def rows_of(batches: Iterable[pa.RecordBatch] | pa.Table) -> Counter[str]:
    """The rows as a multiset: texts that are equal when all values are."""
    rows: Counter[str] = Counter()
    for batch in batches.to_batches() if isinstance(batches, pa.Table) else batches:
        columns = [column.to_pylist() for column in batch.columns]
        rows.update(map(repr, zip(*columns, strict=True)))
    return rows


def same_rows(rows: Counter[str], expected: Counter[str], when: str) -> None:
    """Fail unless both hold the same rows; shows the first few that one side lacks."""
    lost, extra = expected - rows, rows - expected
    expect(
        not lost and not extra,
        f"{when}: {sum(lost.values())} rows missing (such as {list(lost)[:2]}), "
        f"{sum(extra.values())} rows too many (such as {list(extra)[:2]})",
    )


class HeldResources:
    """Files and threads that a process held at one moment."""

    def __init__(self, files: Counter[str], threads: set[threading.Thread]) -> None:
        self.files, self.threads = files, threads

    def expect_no_more(self, when: str) -> None:
        """Fail if more files are open now, or if threads that came since do not end."""
        for thread in set(threading.enumerate()) - self.threads:
            thread.join(_JOIN_SECONDS)
            expect(not thread.is_alive(), f"{when}: thread {thread.name!r} still runs")
        still_open = held_resources().files - self.files
        expect(not still_open, f"{when}: still open: {', '.join(still_open)}")


def held_resources() -> HeldResources:
    """The resources that are open now. Files are known only on Linux."""
    gc.collect()
    files: Counter[str] = Counter()
    listing = Path("/proc/self/fd")
    if listing.is_dir():
        for name in os.listdir(listing):  # noqa: PTH208 - the listing holds its own descriptor open while it lasts
            try:
                target = str((listing / name).readlink())
            except OSError:
                continue
            if target.startswith("/") and not target.startswith(("/dev/", "/proc/")):
                files[target] += 1
    return HeldResources(files, set(threading.enumerate()))
