"""Arguments and options that several commands of `spark-channel` take."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer

from spark_channel.cli.run import EngineName

__all__ = [
    "AllContent",
    "Conf",
    "DirtyRowsPath",
    "DryRun",
    "EndOptions",
    "Engine",
    "Job",
    "Jobs",
    "Master",
    "Output",
    "Parameters",
    "Protect",
    "SharedLimit",
    "Timezone",
    "Windows",
    "choice",
    "choices",
]


def choice(values: Any) -> Callable[[str], str]:
    """The parser of an option that takes one of the texts of a `Literal`, which typer reads itself from 0.19 on."""
    names = get_args(values)

    def parse(text: str) -> str:
        if text not in names:
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(names)}.")
        return text

    return parse


def choices(values: Any) -> str:
    """How the help shows the texts of a `Literal`."""
    return "|".join(get_args(values))


_Format = Literal["text", "json"]
Job = Annotated[Path, typer.Argument(help="A DataX job.json.", show_default=False)]
Jobs = Annotated[
    list[Path], typer.Argument(help="DataX job files, or folders of them.", show_default=False)
]
Output = Annotated[
    _Format,
    typer.Option(
        parser=choice(_Format),
        metavar=choices(_Format),
        help="json: print one line of JSON to stdout, and nothing else.",
    ),
]
Parameters = Annotated[
    list[str] | None,
    typer.Option("-p", metavar='"-Dname=value"', help="Values for ${name} in the job file."),
]
Master = Annotated[
    str | None, typer.Option(help="Spark's master; default: spark-submit's, else this machine.")
]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        "--conf", metavar="name=value", help="A Spark setting; may be given several times."
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Connect to source and target, and show the plan without moving a row.",
    ),
]
Engine = Annotated[
    EngineName,
    typer.Option(
        parser=choice(EngineName),
        metavar=choices(EngineName),
        help="local: this machine without Spark; spark: Spark; auto: local, unless --master or --conf is given, "
        "or spark-submit runs the command.",
    ),
]
EndOptions = Annotated[
    list[str] | None,
    typer.Option(
        "-o",
        "--option",
        metavar="reader.NAME=VALUE",
        help="An option of the source, or with writer.NAME=VALUE of the target; may be given several times.",
    ),
]
Protect = Annotated[
    str | None,
    typer.Option(
        metavar="auto|AIM",
        help="Lower the speed while source or target is overloaded; AIM: how much slower it may be, "
        "such as 'p99<1.25x'; default: off.",
    ),
]
DirtyRowsPath = Annotated[
    str | None, typer.Option(help="Directory for refused rows, as Parquet; default: not kept.")
]
SharedLimit = Annotated[
    str | None, typer.Option(help="The name of a limit that `spark-channel limits serve` serves.")
]
Windows = Annotated[
    list[str] | None,
    typer.Option(
        "--window",
        metavar='"DAYS TIMES LIMIT"',
        help="Limit at certain times: 'Mon-Fri 08:00-18:00 5k', '22:00-06:00 64MB', 'Sat-Sun unlimited', "
        "'12:00-13:00 pause'; may be given several times, and the first that holds counts.",
    ),
]
Timezone = Annotated[str, typer.Option(help="Time zone of --window, such as Europe/Berlin.")]
AllContent = Annotated[
    bool, typer.Option("--all-content", help="Run each entry of job.content; DataX runs the first.")
]
