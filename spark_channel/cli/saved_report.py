"""What a report file says, in lines and as a picture."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn, TypeVar

import typer

from spark_channel.cli.exit_codes import BAD_INPUT
from spark_channel.cli.text import say
from spark_channel.progress import Phase, TransferReport
from spark_channel.progress.report import many
from spark_channel.progress.speed import svg

__all__ = ["show_report"]


_T = TypeVar("_T")


def show_report(file: Path, picture: Path | None) -> None:
    """Print what `file` says of each job or table; draw its last transfer into `picture` (SVG) when one is named."""
    try:
        entries = list(_entries(file.read_text(encoding="utf-8")))
    except OSError as error:
        _refuse(f"{file} cannot be read: {error.strerror}")
    except ValueError as error:
        _refuse(f"{file} holds no report of copy, run, replicate or a transfer: {error}")
    for line in (line for text, _ in entries for line in text.split("\n")):
        say(line)
    if picture is None:
        return
    reports = [report for _, report in entries if report is not None]
    drawn = svg(reports[-1]) if reports else ""
    if not drawn:
        _refuse(
            "no picture can be drawn: no row was moved, or matplotlib is missing (extra `notebook`)"
        )
    picture.write_text(drawn, encoding="utf-8")
    say(f"the picture is in {picture}")


def _entries(text: str) -> Iterator[tuple[str, TransferReport | None]]:
    """The lines of each job or table in what `TransferReport.to_json` or `--report` wrote, and its transfer, if any.

    Raises:
        ValueError: it holds none.
    """
    document = json.loads(text)
    if not isinstance(document, dict) or not ("jobs" in document or "tables" in document):
        report = TransferReport.from_json(text)
        yield str(report), report
        return
    jobs, tables = (
        _field(document, name, list) if name in document else [] for name in ("jobs", "tables")
    )
    failure = document.get("error") if "tables" in document else ""
    if not jobs and not tables and not failure:
        raise ValueError("it names no job and no table")
    for job in jobs:
        reports = [_transfer(transfer) for transfer in _field(job, "transfers", list)]
        file, state = _field(job, "file", str), _field(job, "state", str)
        if len(jobs) > 1:
            yield f"{file}: {state}", None
        yield from ((str(report), report) for report in reports)
        if state != "done" and not any(report.phase == Phase.FAILED for report in reports):
            code, error = _field(job, "exit_code", int), _field(job, "error", str)
            yield f"{file}: {state}, exit code {code}: {error}", None
    for table in tables:
        if isinstance(table, dict) and "stream" not in table and "outcome" in table:
            raise ValueError("it is of verify, which prints its own")
        stream, state, reason = (_field(table, name, str) for name in ("stream", "state", "why"))
        rows = many(_field(table, "rows", int), "row")
        yield f"{stream}: {state}, {rows}{f': {reason}' if reason else ''}", None
        if table.get("transfer"):
            report = _transfer(table["transfer"])
            yield str(report), report
    if failure:
        yield f"failed, exit code {_field(document, 'exit_code', int)}: {failure}", None


def _field(plain: object, name: str, kind: type[_T]) -> _T:
    value = plain.get(name) if isinstance(plain, dict) else None
    if not isinstance(value, kind):
        raise ValueError(f"field {name!r} is missing, or of another kind than {kind.__name__}")
    return value


def _transfer(plain: object) -> TransferReport:
    return TransferReport.from_json(json.dumps(plain))


def _refuse(reason: str) -> NoReturn:
    say(f"spark-channel: {reason}", error=True)
    raise typer.Exit(BAD_INPUT)
