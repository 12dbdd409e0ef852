"""Makes docs/reference/cli.md from the commands: `python -m tests.cli_page` writes it."""

import inspect
import typing
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from spark_channel.cli.app import complete
from tests.contents import with_contents

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "cli.md"

_KINDS = (("Path", "PATH"), ("int", "NUMBER"), ("float", "NUMBER"), ("Literal", "NAME"))

HEAD = """# Command line

`spark-channel` is installed with the package; `python -m spark_channel.cli` is the same program.
`--help` after any command shows its part of this page.
`spark-submit` can start a job, too; see [spark-submit and Airflow](../deploy.md).

## Exit codes

| exit code | meaning | what a scheduler should do |
|---|---|---|
| 0 | done | continue |
| 1 | the source, the target or Spark failed, after all retries; a disk is full | retry |
| 2 | an option, a job file or a column is wrong; an end or a right is missing; `check` refuses | alert a person |
| 3 | more rows were refused than allowed; `verify`: rows differ; `replicate`: a table is parked | alert a person |
| 130 | interrupted (Ctrl-C); staging is removed | retry |
| 143 | ended by SIGTERM; staging is removed | retry |

With a transaction id, a retry adds no row twice to targets marked [once](../commits.md#delivery-by-target).
"""

FEW = 3
"""Commands with at most so many separate options have no section."""

Members = Sequence[tuple[tuple[str, ...], Any]]

SHARED = """
## Options of several commands

The text of a command has the names of those that it takes.

| option | meaning | default |
|---|---|---|"""


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


def _row(command: Any, parameter: Any) -> str:
    return f"| {_name(command, parameter)} | {_cell(_help(parameter)[0])} | {_cell(_default(parameter))} |"


def _rows(command: Any) -> dict[str, Any]:
    return {_row(command, each): each for each in command.params if each.name != "help"}


def _usage(path: tuple[str, ...], command: Any) -> str:
    shown = _rows(command).values()
    arguments = [
        f"{each.name.upper()}" + ("..." if each.nargs == -1 else "")
        for each in shown
        if each.param_type_name == "argument"
    ]
    options = ["[OPTIONS]"] if any(each.param_type_name == "option" for each in shown) else []
    return " ".join(["spark-channel", *path, *options, *arguments])


def section(path: tuple[str, ...], command: Any, shared: Container[str]) -> str:
    """A command: what it does, its own arguments and options, and the names of those that others take, too."""
    own = [row for row in _rows(command) if row not in shared]
    lines = [f"\n## {' '.join(path)}\n", inspect.cleandoc(command.help or "")]
    if also := _also(command, shared):
        lines += ["", f"{also}."]
    lines += ["", f"| `{_usage(path, command)}` | meaning | default |", "|---|---|---|", *own]
    return "\n".join(lines) + "\n"


def _also(command: Any, shared: Container[str]) -> str:
    names = [
        f"`{max(each.opts, key=len)}`" for row, each in _rows(command).items() if row in shared
    ]
    return f"Also: {', '.join(names)}" if names else ""


def family(title: str, members: Members, shared: Container[str] = ()) -> str:
    """Commands with few options: a table of them, and one of their arguments and options."""
    lines = [f"\n## {title}\n", "| command | what it does |", "|---|---|"]
    uses: dict[str, list[str]] = {}
    for path, each in members:
        said = [_cell(inspect.cleandoc(each.help or "")), _also(each, shared)]
        lines.append(f"| `{_usage(path, each)}` | {' '.join(filter(None, said))} |")
        for row in _rows(each):
            if row not in shared:
                uses.setdefault(row, []).append(f"`{path[-1]}`")
    lines += ["", "| option or argument | meaning | default | of |", "|---|---|---|---|"]
    lines += [
        f"{row} {'all' if len(each) == len(members) else ', '.join(each)} |"
        for row, each in uses.items()
    ]
    return "\n".join(lines) + "\n"


def page() -> str:
    found = list(commands(typer.main.get_command(complete(()))))
    alone = [(path, each) for path, each in found if len(path) == 1]
    uses = Counter(
        row
        for _, command in alone
        for row, each in _rows(command).items()
        if each.param_type_name == "option"
    )
    shared = [row for row, count in uses.items() if count > 1]
    parts = [HEAD, "\n".join((SHARED, *shared, ""))]
    small = [each for each in alone if len(_rows(each[1]).keys() - shared) <= FEW]
    parts += [section(path, each, shared) for path, each in alone if (path, each) not in small]
    parts.append(family("Other commands", small, shared))
    for name in dict.fromkeys(path[0] for path, _ in found if len(path) > 1):
        parts.append(family(name, [each for each in found if each[0][0] == name]))
    return with_contents("".join(parts))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
