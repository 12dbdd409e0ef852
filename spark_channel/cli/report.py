"""`spark-channel report`: a report that was kept, shown again."""

from pathlib import Path
from typing import NoReturn

import typer

from spark_channel.progress import TransferReport
from spark_channel.progress.picture import svg

__all__ = ["show_report"]

_BAD_INPUT = 2


def show_report(file: Path, picture: Path | None) -> None:
    """Print the summary of the report in `file`; draw it into `picture` (SVG) when one is named."""
    try:
        report = TransferReport.from_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        _refuse(f"{file} cannot be read: {error.strerror}")
    except ValueError as error:
        _refuse(f"{file} holds no report: {error}")
    typer.echo(str(report))
    if picture is None:
        return
    drawn = svg(report)
    if not drawn:
        _refuse("no picture can be drawn: no row was moved, or matplotlib is missing (extra `notebook`)")
    picture.write_text(drawn, encoding="utf-8")
    typer.echo(f"the picture is in {picture}")


def _refuse(why: str) -> NoReturn:
    typer.echo(why, err=True)
    raise typer.Exit(_BAD_INPUT)
