"""Reads every file of a folder by two readers: `python -m tests.behaviour.differential.corpus FOLDER`.

Files that other programs made show what no generator thinks of. Each file is read in a child process, by spark-channel
and by a reader that shares no code with it, and then by spark-channel again in other splits and batches. A line is
printed for each: equal, refused clearly, different, or how the child ended.
"""

import argparse
import json
import logging
import os
import selectors
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_channel.connectors import FetchSize
from spark_channel.errors import ChannelError
from tests.behaviour.differential import judges
from tests.behaviour.differential.differences import accepted
from tests.behaviour.differential.tables import Found, difference, from_arrow

__all__ = ["BAD", "Verdict", "find", "judge_folder"]

BAD = frozenset({"different", "traceback", "died", "hung"})
"""Outcomes that are faults of spark-channel."""
SECONDS = 60.0
"""How long one reader may take for one file."""
_FORMS = {
    "parquet": "parquet",
    "pq": "parquet",
    "parq": "parquet",
    "orc": "orc",
    "csv": "csv",
    "tsv": "csv",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
    "arrow": "arrow",
    "arrow_file": "arrow",
    "feather": "arrow",
    "ipc": "arrow",
    "stream": "arrow",
}
_CODECS = {"gz", "bz2", "zst"}
_MOST_BYTES = 64 << 20
_MOST_ROWS = 20_000
"""Longer tables are not read again in small batches."""


@dataclass(frozen=True)
class Verdict:
    """`outcome`: equal, refused, alone (no other reader could judge, the splits agree), or one of `BAD`."""

    form: str
    path: str
    outcome: str
    reason: str = ""


def find(folder: Path) -> Iterator[tuple[str, Path]]:
    """(form, path) of each file and table below a folder."""
    for directory, names, files in os.walk(folder):
        place = Path(directory)
        names.sort()
        if "_delta_log" in names:
            yield "delta", place
            names.remove("_delta_log")
        for name in sorted(files):
            parts = name.lower().split(".")
            if (
                parts[-1] in _CODECS
                and len(parts) > 2
                and parts[-2] in ("csv", "tsv", "json", "jsonl", "ndjson")
            ):
                yield _FORMS[parts[-2]], place / name
            elif len(parts) > 1 and parts[-1] in _FORMS:
                yield _FORMS[parts[-1]], place / name


def judge_folder(
    folder: Path,
    *,
    seconds: float = SECONDS,
    only: Sequence[str] = (),
    report: Callable[[Verdict], None] = lambda _verdict: None,
) -> list[Verdict]:
    verdicts = []
    child = _Child()
    try:
        for form, path in find(folder):
            if only and form not in only:
                continue
            verdict = child.judge(form, path, seconds)
            report(verdict)
            verdicts.append(verdict)
    finally:
        child.end()
    return verdicts


class _Child:
    """A process that judges files, and another one once it has died or hung."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._read = b""

    def judge(self, form: str, path: Path, seconds: float) -> Verdict:
        if self._process is None:
            self._read = b""
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.behaviour.differential.corpus", "--child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                cwd=Path(__file__).parents[3],
            )
        pipe = self._process.stdin
        assert pipe is not None
        pipe.write(json.dumps([form, str(path)]).encode() + b"\n")
        stage = "the start"
        deadline = time.monotonic() + seconds
        while True:
            line = self._line(deadline)
            if not line:
                status = "no end" if line is None else f"exit status {self._process.wait()}"
                fault = "hung" if line is None else "died"
                self.end()
                ours = stage.startswith("spark-channel")
                return Verdict(form, str(path), fault if ours else "alone", f"{status}, in {stage}")
            said = json.loads(line)
            if "stage" not in said:
                return Verdict(**said)
            stage, deadline = said["stage"], time.monotonic() + seconds

    def _line(self, deadline: float) -> bytes | None:
        """The next line; b"" where the process has ended, None at the deadline."""
        process = self._process
        assert process is not None
        pipe = process.stdout
        assert pipe is not None
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while b"\n" not in self._read:
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    return None
                data = os.read(pipe.fileno(), 1 << 16)
                if not data:
                    return b""
                self._read += data
        line, _, self._read = self._read.partition(b"\n")
        return line

    def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


# The child


def _say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def _child() -> None:
    logging.disable(logging.CRITICAL)
    for line in sys.stdin:
        form, path = json.loads(line)
        try:
            outcome, reason = _judged(form, Path(path))
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            outcome = "traceback"
            reason = f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"
        _say(**asdict(Verdict(form, path, outcome, reason[:600])))


_TEXT_OPTIONS = {"inferSchema": "false"}


def _judged(form: str, path: Path) -> tuple[str, str]:
    options = {"reader": form, "path": str(path)}
    if path.suffix == ".tsv":
        options["sep"] = "\t"
    if form == "csv":
        outcome = _same_texts(options)
        if outcome is not None:
            return outcome
        options |= _TEXT_OPTIONS
    _say(stage="spark-channel, 1 split")
    try:
        table = judges.channel_table(options)
    except ChannelError as error:
        return "refused", str(error)
    _say(stage="the other reader")
    if table.nbytes > _MOST_BYTES:
        return "alone", f"{table.nbytes} bytes are too many to compare"
    ours = from_arrow(table)
    try:
        theirs = _other(form, path, table.schema, options)
    except judges.Unable as error:
        outcome_, reason = "alone", str(error)
    else:
        differs = difference(*accepted(form, ours, theirs), ordered=form != "delta")
        outcome_, reason = ("different", differs) if differs else ("equal", "")
    if outcome_ != "different" and (differs := _other_splits(options, table, ours)):
        return "different", differs
    return outcome_, reason


def _other_splits(options: dict[str, str], table: pa.Table, ours: Found) -> str | None:
    """What differs when spark-channel reads the same again in other pieces."""
    rows = FetchSize(rows=1) if table.num_rows <= 500 else FetchSize(nbytes=1024)
    small = (7, rows if table.num_rows <= _MOST_ROWS else None)
    for splits, fetch in ((2, None), small) if table.num_rows <= 10 * _MOST_ROWS else ():
        _say(stage=f"spark-channel, {splits} splits")
        try:
            again = judges.channel_table(options, splits=splits, fetch=fetch)
        except ChannelError as error:
            return f"{splits} splits, {fetch}: refused, and not in 1 split: {error}"
        _say(stage="the comparison")
        if differs := difference(from_arrow(again), ours):
            return f"{splits} splits, {fetch}: {differs}"
    return None


def _same_texts(options: dict[str, str]) -> tuple[str, str] | None:
    """CSV: values of inferred types are written as in the file."""
    _say(stage="spark-channel, inferred types")
    try:
        typed = judges.channel_table(options)
        texts = judges.channel_table({**options, **_TEXT_OPTIONS})
    except ChannelError:
        return None  # the caller judges refusals
    if differs := judges.changed_texts(typed, texts):
        return "different", f"inferred types: {differs}"
    return None


def _other(form: str, path: Path, schema: pa.Schema, options: dict[str, str]) -> Found:
    if form == "parquet":
        return judges.duckdb_reads("parquet", path, hive_partitioning=False)
    if form == "orc":
        return judges.pyorc_reads(path)
    if form == "csv":
        return judges.csv_file(path, sep=options.get("sep", ","))
    if form == "json":
        return judges.json_file(path, schema)
    if form == "delta":
        return judges.delta_log(path)
    return judges.arrow_file(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--only", action="append", default=[], help="a form, such as parquet")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="most seconds for a file")
    given = parser.parse_args()
    if given.child:
        _child()
        return 0

    def show(verdict: Verdict) -> None:
        print(f"{verdict.outcome}\t{verdict.form}\t{verdict.path}\t{verdict.reason}", flush=True)

    found = judge_folder(given.folder, seconds=given.seconds, only=given.only, report=show)
    counts = Counter(verdict.outcome for verdict in found)
    print(f"{len(found)} files: {', '.join(f'{n} {what}' for what, n in counts.most_common())}")
    return int(any(verdict.outcome in BAD for verdict in found))


if __name__ == "__main__":
    sys.exit(main())
