"""What the docs name exists: commands and their options, options of connectors, files, modules, error classes.

Text between backticks and in code blocks counts. A name that looks like one of this package and does not exist fails.
"""

import ast
import builtins
import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main

from spark_channel import errors
from spark_channel.cli.app import complete
from spark_channel.connectors.base.registry import all_connectors
from spark_channel.options import Options, ReadOptions, WriteOptions
from spark_channel.transfers.options import TargetOptions
from spark_channel.tunnel.options import TunnelOptions

pytest.importorskip(
    "deltalake", reason="options of all connectors are looked at where all are installed"
)

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"`([^`\n]+)`")
COMMAND = re.compile(
    r"(?:^|`|; )spark-channel((?: (?:claims|limits|tunnel))? [a-z]+(?:-[a-z]+)*)((?:[^\n`;#]|\\\n)*)",
    re.MULTILINE,
)
NO_COMMANDS = {"read", "write", "health", "found"}
"""Names of sessions in a database begin so, and an error."""
FLAG = re.compile(r"(?<![\w-])(--[a-z][a-z-]+|-[a-z](?=[ \"]))")
OPTION = re.compile(r"\.option\(\s*\"(\w+)\"")
OPTIONS_CALL = re.compile(r"\.options\(([^()]*(?:\([^()]*\)[^()]*)*)\)")
NOT_OURS = {"header", "sep", "inferSchema", "checkpointLocation", "replaceWhere", "path", "driver"}
"""Options of Spark's own formats and writers, in examples."""
IN_TABLES = {
    "onSlow",
    "onFailure",
    "max_dirty_rows",
    "max_dirty_fraction",
    "dirty_rows_path",
}
"""Options of a writer in a list, and arguments of `transfer`."""
FILES = re.compile(r"^(?:docs|tests|notebooks|spark_channel|\.ci)/[\w./-]+$")
OF_LIBRARIES = {"AlreadyExistsError"}
"""Error classes of obstore."""

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def commands() -> dict[str, set[str]]:
    """Each command of the command line, with its options."""
    found: dict[str, set[str]] = {}

    def walk(command: Any, name: str) -> None:
        found[name] = {
            text for each in command.params for text in (*each.opts, *each.secondary_opts)
        } | {"--help"}
        for below, each in getattr(command, "commands", {}).items():
            walk(each, f"{name} {below}".strip())

    walk(typer.main.get_command(complete(())), "")
    return found


COMMANDS = commands()


def all_models() -> set[type[Options]]:
    models: set[type[Options]] = {ReadOptions, WriteOptions, TunnelOptions, TargetOptions}
    for connector in all_connectors():
        models |= {
            connector.options_class(half)
            for half in ("reader", "writer")
            if getattr(connector, half)
        }
    return models


def known_options() -> set[str]:
    """The lower-cased names of all options, whatever becomes of them."""
    names: set[str] = set()
    for model in all_models():
        names |= {
            *model.names(),
            *(name.lower() for name in (*model.aliases, *model.ignored, *model.refused)),
        }
    return names


OPTIONS = known_options()


@pages
def test_a_command_that_a_page_names_exists_with_its_options(page: Path) -> None:
    code = "\n".join([*FENCE.findall(text_of(page)), *QUOTED.findall(FENCE.sub("", text_of(page)))])
    for match in COMMAND.finditer(code):
        name, rest = match[1].strip(), match[2]
        if name in NO_COMMANDS:
            continue
        assert name in COMMANDS, f"{page.name}: spark-channel {name}"
        unknown = set(FLAG.findall(rest)) - COMMANDS[name]
        assert not unknown, f"{page.name}: spark-channel {name} has no {sorted(unknown)}"


@pages
def test_an_option_that_an_example_sets_exists(page: Path) -> None:
    unknown = {
        name for name in OPTION.findall(text_of(page)) if name.lower() not in OPTIONS
    } - NOT_OURS
    assert not unknown, f"{page.name}: {sorted(unknown)}"


@pages
def test_options_given_by_keyword_exist(page: Path) -> None:
    for given in OPTIONS_CALL.findall("\n".join(FENCE.findall(text_of(page)))):
        unknown = {
            name for name in re.findall(r"(\w+)=(?!=)", given) if name.lower() not in OPTIONS
        } - NOT_OURS
        assert not unknown, f"{page.name}: {sorted(unknown)}"


UNITS = {"": 1, "s": 1, "MiB": 1 << 20, "GiB": 1 << 30}
DEFAULT = re.compile(r"`(\w+)`(?: seconds)? \((\d[\d ]*)(?: (s|MiB|GiB))?[,)]")
"""As in "`retryTimeout` (60 s)", "`retryTimeout` seconds (60)"."""


def numeric_defaults() -> dict[str, set[float]]:
    found: dict[str, set[float]] = {}
    for model in all_models():
        for name, field in model.model_fields.items():
            if isinstance(field.default, int | float) and not isinstance(field.default, bool):
                found.setdefault((field.alias or name).lower(), set()).add(field.default)
    return found


def test_a_number_behind_an_option_is_its_default() -> None:
    defaults, seen = numeric_defaults(), 0
    for page in PAGES:
        for name, number, unit in DEFAULT.findall(text_of(page)):
            if known := defaults.get(name.lower()):
                seen += 1
                value = int(number.replace(" ", "")) * UNITS[unit]
                assert value in known, (
                    f"{page.name}: `{name}` ({number} {unit}), and the code has {known}"
                )
    assert seen > 12


@pages
def test_an_option_of_a_table_exists(page: Path) -> None:
    """Of tables whose first column is called "option"; `--name` is of a command, `format` of Spark."""
    listed = False
    for line in text_of(page).splitlines():
        if line.startswith("| option |"):
            listed = True
        elif not line.startswith("|"):
            listed = False
        elif listed:
            for name in re.findall(r"`(\w+)(?:=\w+)?`", line.split("|")[1]):
                assert name.lower() in OPTIONS or name in IN_TABLES, f"{page.name}: option {name}"


@pages
def test_a_file_that_a_page_names_exists(page: Path) -> None:
    for name in QUOTED.findall(FENCE.sub("", text_of(page))):
        if FILES.fullmatch(name):
            assert (ROOT / name).exists(), f"{page.name}: {name}"


def test_a_page_that_the_code_names_exists_with_its_heading() -> None:
    named = set(re.findall(r"\bdocs/([\w/-]+\.md)(?:#([\w-]+))?", messages()))
    topics = set(re.findall(r"spark-channel help ([a-z][\w-]*)(?:#([\w-]+))?", messages()))
    assert len(topics) >= 6
    for name, anchor in {*named, *((f"{topic}.md", anchor) for topic, anchor in topics)}:
        page = ROOT / "docs" / name
        assert page.exists(), name
        assert not anchor or anchor in anchors(page), f"{name}#{anchor}"


@pages
def test_an_error_class_that_a_page_names_exists(page: Path) -> None:
    for name in re.findall(r"`([A-Z]\w+Error)`", text_of(page)):
        assert hasattr(errors, name) or hasattr(builtins, name) or name in OF_LIBRARIES, (
            f"{page.name}: {name}"
        )


@pages
def test_a_module_that_a_page_runs_exists(page: Path) -> None:
    for name in re.findall(r"python -m (tests\.[\w.]+|spark_channel[\w.]*)", text_of(page)):
        assert importlib.util.find_spec(name) is not None, f"{page.name}: {name}"


@pages
def test_an_extra_that_a_page_installs_exists(page: Path) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for names in re.findall(r"spark[-_]channel(?:-[\w.-]+\.whl)?\[([\w,]+)\]", text_of(page)):
        assert set(names.split(",")) <= set(extras), f"{page.name}: spark-channel[{names}]"


@pages
def test_a_make_target_that_a_page_names_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name in re.findall(r"(?:`|^)make ([a-z-]+)", text_of(page), re.MULTILINE):
        assert name in targets, f"{page.name}: make {name}"


@pages
def test_a_benchmark_that_a_page_names_exists(page: Path) -> None:
    for names in re.findall(r"BENCH=\"?([a-z_ ]+)", text_of(page)):
        for name in names.split():
            assert (ROOT / "tests" / "benchmarks" / f"bench_{name}.py").exists(), (
                f"{page.name}: BENCH={name}"
            )


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_a_link_leads_to_a_heading(page: Path) -> None:
    """mkdocs looks at docs/; GitHub's readers follow README's links, too."""
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#([\w-]+)\)", text_of(page)):
        other = (page.parent / target).resolve() if target else page
        if other.suffix == ".md":
            assert anchor in anchors(other), f"{page.name}: {target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """The ids that GitHub and mkdocs give to a page's headings, and those that it sets itself."""
    text = FENCE.sub("", text_of(page))
    found = set(re.findall(r"<a id=\"([\w-]+)\">", text))
    for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title)
        found.add(re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-"))
    return found


SYMPTOMS = re.compile(r"\| (?:you see|message or symptom|message|symptom|the message says) \|")
HOLES = re.compile(r"\.\.\.|'[^']*'|\b[A-Z]{1,9}(?::[A-Z]+)?\b|\b\d+\b|=")
OF_OTHERS = {
    "Authentication failed",
    "too many filtered rows",
    "E11000 duplicate key error",
    "ModuleNotFoundError: No module named 'spark_channel'",
    "Spark needs Java 17 or newer",
    "Python worker process terminated due to idle timeout",
    "canceling statement due to statement timeout",
    "canceling statement due to conflict with recovery",
    "... holds 'N/A' (text), which is not double",
}
"""Messages of databases, of Python, of Spark and of `.ci/bootstrap`; the last one is ours, made of parts."""


def messages() -> str:
    """Every text of the package; values that a message fills in are left out."""
    found = []
    for path in sorted((ROOT / "spark_channel").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value for part in node.values if isinstance(part, ast.Constant)]
                found.append("\0".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def test_a_message_that_a_page_explains_is_one_of_ours() -> None:
    texts, seen = messages(), 0
    for page in PAGES:
        listed = False
        for line in text_of(page).splitlines():
            if SYMPTOMS.match(line):
                listed = True
            elif not line.startswith("|"):
                listed = False
            elif listed:
                for message in QUOTED.findall(line.split(" | ")[0]):
                    if " " not in message or message in OF_OTHERS:
                        continue
                    pieces = [piece.strip(" ,.:/") for piece in HOLES.split(message)]
                    for piece in (piece for piece in pieces if len(piece) > 6):
                        seen += 1
                        assert piece in texts, f"{page.name}: {message!r}: {piece!r}"
    assert seen > 20


def test_each_table_of_benchmarks_names_the_command_that_measures_it() -> None:
    there = {
        path.stem.removeprefix("bench_")
        for path in (ROOT / "tests" / "benchmarks").glob("bench_*.py")
    }
    sections = text_of(ROOT / "docs" / "benchmarks.md").split("\n## ")[1:]
    assert sections
    for section in sections:
        title = section.splitlines()[0]
        named = re.findall(r'BENCH=(?:"([\w ]+)"|(\w+))', section)
        is_counted = "`tests/behaviour/growth`" in section
        assert named or is_counted or "`make soak`" in section, f"{title}: no command"
        assert {name for some in named for name in " ".join(some).split()} <= there, title


HOW_IT_WORKS = ROOT / "docs" / "how-it-works.md"


@pytest.mark.parametrize(
    "page", [HOW_IT_WORKS, HOW_IT_WORKS.with_name("CONTRIBUTING.md")], ids=lambda page: page.stem
)
def test_what_a_page_on_the_code_names_is_there(page: Path) -> None:
    """Its names are relative to the package, where they are not of tests or of the project."""
    names = re.findall(r"`([\w.]+/[\w./]*|\w+\.(?:py|toml))`", text_of(page))
    of_any_folder = {"dialect.py", "types.py", "health.py", "reader.py"}
    missing = {
        name
        for name in {*names} - of_any_folder
        if not any((folder / name).exists() for folder in (ROOT / "spark_channel", ROOT))
    }
    assert len(names) > 35
    assert not missing


def test_the_layers_that_a_page_shows_are_those_that_import_linter_checks() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    held = [re.findall(r"\w+", layer) for layer in contracts["contracts"][0]["layers"]]
    rows = re.findall(r"^\| \d+ \| ([^|]+) \|", text_of(HOW_IT_WORKS), re.MULTILINE)
    shown = [re.findall(r"`(\w+)`", row) for row in rows]
    assert [sorted(layer) for layer in shown] == [sorted(layer) for layer in held]
