"""A packed file of a few kilobytes is 200 MiB of text: it is read, or refused, in the memory of some blocks."""

import bz2
import gzip
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_channel.errors import SourceError
from tests.connectors.files.helpers import read

MIB = 1 << 20
MEMBER, MEMBERS = 4 * MIB, 50
MOST_GROWTH = 100
"""MiB: half of what the file unpacks to."""

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="measures memory by /proc"
)
SUFFIXES = {"gzip": "gz", "bz2": "bz2", "zstd": "zst", "lz4": "lz4", "brotli": "br", "zip": "zip"}
LINES = {"csv": b"x" * 1_023 + b"\n", "json": b'{"a":"' + b"x" * 1_015 + b'"}\n'}
ROWS = MEMBER // 1_024


def pack(path: Path, codec: str, member: bytes, members: int) -> Path:
    """A file of `members` times `member`, which is never in memory as a whole."""
    path = path.with_name(f"{path.name}.{SUFFIXES[codec]}")
    if codec == "brotli":
        with pa.CompressedOutputStream(str(path), codec) as sink:
            for _ in range(members):
                sink.write(member)
        return path
    if codec == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for number in range(members):
                archive.writestr(f"{number}.txt", member)
        return path
    if codec == "gzip":
        packed = gzip.compress(member)
    elif codec == "bz2":
        packed = bz2.compress(member)
    else:
        packed = pa.Codec(codec).compress(member, asbytes=True)
    path.write_bytes(packed * members)
    assert path.stat().st_size < 3 * MIB
    return path


def whole_lines(folder: Path, reader: str, codec: str, members: int) -> Path:
    return pack(folder / f"lines.{reader}", codec, LINES[reader] * ROWS, members)


def one_line(folder: Path, reader: str, codec: str) -> Path:
    return pack(folder / f"zeros.{reader}", codec, b"0" * MEMBER, MEMBERS)


_PROGRAM = """
import sys
import spark_channel
from pathlib import Path
from spark_channel.errors import SourceError

def peak():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(line.split()[1]) // 1024

reader, *paths = sys.argv[1:]
header = {"header": "false"} if reader == "csv" else {}
def move(path):
    packed = {"compression": "zip"} if path.endswith("zip") else {}
    source = {"name": reader, "path": path, **header, **packed}
    return spark_channel.transfer(None, source, {"name": "discard"}, channels=1)
move(paths.pop(0))  # what is imported for a first read is not the file's
open("/proc/self/clear_refs", "w").write("5")
before = peak()
for path in paths:
    try:
        print("rows", move(path).rows)
    except SourceError as error:
        print("refused", "maxLineBytes" in str(error), Path(path).name in str(error))
print("grew", peak() - before)
"""


@needs_proc
@pytest.mark.parametrize("reader", ["csv", "json"])
def test_packed_files_take_the_memory_of_blocks(tmp_path: Path, reader: str) -> None:
    small = tmp_path / f"small.{reader}"
    small.write_bytes(LINES[reader])
    paths = [small]
    for codec in SUFFIXES:
        members = MEMBERS if codec == "gzip" else 2
        paths += [whole_lines(tmp_path, reader, codec, members), one_line(tmp_path, reader, codec)]
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, reader, *map(str, paths)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *outcomes, growth = done.stdout.splitlines()
    rows = [MEMBERS * ROWS] + [2 * ROWS] * (len(SUFFIXES) - 1)
    expected = [[f"rows {count}", "refused True True"] for count in rows]
    assert outcomes == [line for pair in expected for line in pair]
    assert int(growth.split()[1]) < MOST_GROWTH


def descendants(pid: str = "self") -> Iterator[Path]:
    """`/proc` of the processes below this one; threads and processes that end meanwhile have none."""
    with suppress(FileNotFoundError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError):
                for child in (task / "children").read_text().split():
                    yield Path("/proc") / child
                    yield from descendants(child)


def workers() -> list[Path]:
    found = []
    for process in descendants():
        with suppress(FileNotFoundError):
            if b"tests.spark.preloaded" in (process / "cmdline").read_bytes():
                found.append(process)
    return found


def peak_mib(process: Path) -> int:
    lines = (process / "status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) // 1_024


@needs_proc
@pytest.mark.spark
@pytest.mark.parametrize("reader", ["csv", "json"])
def test_a_worker_of_spark_reads_it_in_the_same_memory(
    spark: SparkSession, tmp_path: Path, reader: str
) -> None:
    small = tmp_path / f"small.{reader}"
    small.write_bytes(LINES[reader])
    source = spark.read.format("channel").option("reader", reader)
    if reader == "csv":
        source = source.option("header", "false")
    assert source.load(str(small)).count() == 1
    for process in workers():
        (process / "clear_refs").write_text("5")
    before = max(map(peak_mib, workers()))
    rows = source.load(str(whole_lines(tmp_path, reader, "gzip", MEMBERS)))
    column = "a" if reader == "json" else "_c0"
    (found,) = rows.selectExpr(f"count({column})").collect()
    assert found[0] == MEMBERS * ROWS
    one_line(tmp_path, reader, "gzip")
    given = source.schema("a string").load(str(tmp_path / f"zeros.{reader}.gz"))
    with pytest.raises(Exception, match="maxLineBytes"):
        given.collect()
    assert max(map(peak_mib, workers())) - before < MOST_GROWTH


def test_a_line_may_be_as_long_as_the_option_says(tmp_path: Path) -> None:
    for reader, line in (("csv", b"x" * 1_000), ("json", b'{"a":"' + b"x" * 992 + b'"}')):
        path = tmp_path / f"long.{reader}"
        for ending in (b"", b"\n", b"\nx\n" if reader == "csv" else b'\n{"a":"x"}\n'):
            path.write_bytes(line + ending)
            options: dict[str, Any] = {"header": "false"} if reader == "csv" else {}
            options |= {"sampleBytes": "10"}
            assert read(reader, path, maxLineBytes="1000", **options).num_rows >= 1
            with pytest.raises(SourceError, match=r"a line of more than 999 bytes.*'maxLineBytes'"):
                read(reader, path, maxLineBytes="999", **options)
