"""Makes docs/reference/cli.md from the commands: `python -m tests.cli_page` writes it."""

import inspect
import re
import typing
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from spark_channel.cli.app import complete
from tests.contents import with_contents

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "cli.md"

_KINDS = (("Path", "PATH"), ("int", "NUMBER"), ("float", "NUMBER"), ("Literal", "NAME"))

HEAD = """# Command line

`--help` after a command shows its part of this page; `python -m spark_channel.cli` is the same program.
`spark-submit` can start a job, too; see [spark-submit and Airflow](../deploy.md).

## Exit codes

| exit code | meaning | what a scheduler should do |
|---|---|---|
| 0 | done | continue |
| 1 | a failure after all retries; a full disk; several jobs failed in different ways; `verify` does not know | retry |
| 2 | an option, a job file or a column is wrong; table, file or right are missing; `check` refuses | alert a person |
| 3 | more rows were refused than allowed; `verify`: rows differ; `replicate`: a table is parked | alert a person |
| 130 | interrupted (Ctrl-C); staging is removed | retry |
| 143 | ended by SIGTERM; staging is removed | retry |

With a transaction id, a retry adds no row twice to targets marked [once](../commits.md#delivery-by-target).
"""

CODES = re.compile(r"\n*Exit codes: 0 (done|equal),.*?(?=\n\n|\Z)", re.DOTALL)
"""What `--help` says of exit codes, for which the page has a table."""
FEW = 3
"""Commands with at most so many separate options have no section."""

Members = Sequence[tuple[tuple[str, ...], Any]]

SHARED = """
## Options of several commands

| option | meaning |
|---|---|"""


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
    """What a cell ends with: nothing for an argument, which the usage shows, and where nothing is the default."""
    described, value = _help(parameter)[1], getattr(parameter, "default", None)
    if parameter.required:
        return "" if parameter.param_type_name == "argument" else " Required."
    if not described and isinstance(value, str | int | float) and value not in ("", False):
        described = f"`{value}`"
    return f" Default: {described}." if described else ""


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
    return f"| {_name(command, parameter)} | {_cell(_help(parameter)[0] + _default(parameter))} |"


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


def _text(command: Any) -> str:
    """What the command does."""
    return CODES.sub("", inspect.cleandoc(command.help or ""))


def section(path: tuple[str, ...], command: Any, shared: Container[str]) -> str:
    """A command: what it does, its own arguments and options, and the names of those that others take, too."""
    own = [row for row in _rows(command) if row not in shared]
    lines = [f"\n## {' '.join(path)}\n", _text(command)]
    if also := _also(command, shared):
        lines += ["", f"{also}."]
    lines += ["", f"| `{_usage(path, command)}` | meaning |", "|---|---|", *own]
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
        said = [_cell(_text(each)), _also(each, shared)]
        usage = _usage(path, each).removeprefix("spark-channel ").replace(" [OPTIONS]", "")
        lines.append(f"| `{usage}` | {' '.join(filter(None, said))} |")
        for row in _rows(each):
            if row not in shared:
                uses.setdefault(row, []).append(f"`{path[-1]}`")
    lines += ["", "| option or argument | meaning | of |", "|---|---|---|"]
    names = [f"`{path[-1]}`" for path, _ in members]
    lines += [f"{row} {_of(each, names)} |" for row, each in uses.items()]
    return "\n".join(lines) + "\n"


def _of(users: list[str], names: list[str]) -> str:
    """The commands of a family that take an option, or those that do not, if these are fewer."""
    others = [name for name in names if name not in users]
    if not others:
        return "all"
    return f"all but {', '.join(others)}" if len(others) < len(users) else ", ".join(users)


def page() -> str:
    found = list(commands(typer.main.get_command(complete(()))))
    alone = [(path, each) for path, each in found if len(path) == 1]
    users: dict[str, set[str]] = {}
    for path, command in found:
        for row, each in _rows(command).items():
            if each.param_type_name == "option":
                users.setdefault(row, set()).add(path[0])
    shared = [row for row, names in users.items() if len(names) > 1]
    parts = [HEAD, "\n".join((SHARED, *shared, ""))]
    small = [each for each in alone if len(_rows(each[1]).keys() - shared) <= FEW]
    parts += [section(path, each, shared) for path, each in alone if (path, each) not in small]
    parts.append(family("Other commands", small, shared))
    for name in dict.fromkeys(path[0] for path, _ in found if len(path) > 1):
        parts.append(family(name, [each for each in found if each[0][0] == name], shared))
    return with_contents("".join(parts))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
