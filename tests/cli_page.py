"""Makes docs/reference/cli.md from the commands: `python -m tests.cli_page` writes it."""

import inspect
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from spark_channel.cli.app import complete

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "cli.md"

_KINDS = (("Path", "PATH"), ("int", "NUMBER"), ("float", "NUMBER"), ("Literal", "NAME"))

HEAD = """# Command line

`spark-channel` is installed with the package; `python -m spark_channel.cli` is the same program.
`--help` after any command shows its part of this page.
`spark-submit` can start a job, too; see [spark-submit and Airflow](../deploy.md).

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | the job failed |
| 2 | an option, a job file or an argument is wrong, or `check` refuses a job |
| 3 | more rows were refused than the job allows; of `verify`: rows differ |
| 130 | interrupted |
| 143 | ended by SIGTERM |

*`python -m tests.cli_page` makes this page from the commands; a test compares the two.*
"""


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each command that does something, with the words that call it."""
    children = getattr(command, "commands", None)
    if not children:
        yield path, command
        return
    for name, child in children.items():
        yield from commands(child, (*path, name))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _help(parameter: Any) -> tuple[str, str]:
    """The meaning, and what the text after `; default: ` says of the default."""
    text, _, default = (parameter.help or "").rstrip(".").partition("; default: ")
    return text + ".", default


def _default(parameter: Any) -> str:
    described, value = _help(parameter)[1], getattr(parameter, "default", None)
    if parameter.required:
        return "required"
    if described:
        return described
    plain = isinstance(value, str | int | float) and value != ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`" if plain else "none"


def _takes(command: Any, parameter: Any) -> str:
    if parameter.metavar:
        return str(parameter.metavar)
    hint = str(typing.get_type_hints(command.callback).get(parameter.name, ""))
    return next((shown for kind, shown in _KINDS if kind in hint), "TEXT")


def _name(command: Any, parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.name.upper()}`"
    takes = "" if parameter.is_flag else f" {_takes(command, parameter)}"
    return ", ".join(f"`{each}{takes}`" for each in parameter.opts).replace("|", "\\|")


def section(path: tuple[str, ...], command: Any) -> str:
    shown = [each for each in command.params if each.name != "help"]
    arguments = [
        (f"{each.name.upper()}" + ("..." if each.nargs == -1 else ""))
        for each in shown
        if each.param_type_name == "argument"
    ]
    options = ["[OPTIONS]"] if any(each.param_type_name == "option" for each in shown) else []
    usage = " ".join(["spark-channel", *path, *options, *arguments])
    lines = [
        f"\n## {' '.join(path)}\n",
        inspect.cleandoc(command.help or ""),
        "",
        f"| `{usage}` | meaning | default |",
        "|---|---|---|",
    ]
    lines += [
        f"| {_name(command, each)} | {_cell(_help(each)[0])} | {_cell(_default(each))} |"
        for each in shown
    ]
    return "\n".join(lines) + "\n"


def page() -> str:
    return HEAD + "".join(
        section(path, found) for path, found in commands(typer.main.get_command(complete(())))
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
