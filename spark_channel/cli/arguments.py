"""Arguments and options that several commands of `spark-channel` take."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import typer
from typer.models import OptionInfo

__all__ = [
    "OF_DATAX",
    "AllContent",
    "Conf",
    "DirtyRowsPath",
    "DryRun",
    "EndOptions",
    "Engine",
    "EngineName",
    "Job",
    "Jobs",
    "Master",
    "Output",
    "Parameters",
    "Protect",
    "SharedLimit",
    "Timezone",
    "Verbose",
    "Windows",
    "choice",
    "choices",
    "examples_of",
    "in_panels",
]

OF_DATAX = "Of DataX"
_PANELS = {
    "Rows": "where columns mode schema options key exclude json text select parameters all_content",
    "Limit": "rows_per_second bytes_per_second window timezone shared_limit protect",
    "Safety": "commit txn max_dirty_rows dirty_rows_path dry_run plans full_refresh once confirm repair max_repairs "
    "delete",
    "Engine": "engine master conf channels parallel",
    "Output": "report output _verbose datax_summary",
    OF_DATAX: "jobid loglevel jvm",
}


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


def show_all(verbose: bool) -> bool:
    """Have the displays of this process show all that is known of a job."""
    if verbose:
        from spark_channel.service.display import VERBOSE

        os.environ[VERBOSE] = "1"
    return verbose


def examples_of(topic: str, *commands: str) -> str:
    """The end of a command's help: examples, and where its page is."""
    return "\n\n".join(
        [*(f"Example: {command}" for command in commands), f"More: spark-channel help {topic}"]
    )


def in_panels(function: Callable[..., None]) -> Callable[..., None]:
    """Let the help of a command show its options in groups."""
    panels = {name: panel for panel, names in _PANELS.items() for name in names.split()}
    for name, hint in get_type_hints(function, include_extras=True).items():
        for annotation in getattr(hint, "__metadata__", ()):
            if isinstance(annotation, OptionInfo):
                annotation.rich_help_panel = annotation.rich_help_panel or panels.get(name)
    return function


EngineName = Literal["auto", "local", "spark"]
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
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        callback=show_all,
        help="Also show how the work is split and tried, what each side waited for, and how the limit was used.",
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
    str | None,
    typer.Option(
        help="A limit that `spark-channel limits serve` serves: its name, or from another host HOST:PORT/NAME "
        "(its token: `spark-channel help limits`)."
    ),
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
