"""Texts from outside are shown as text in every place: errors, logs, progress, reports, tables of the command line."""

import ast
import io
import json
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import yaml

import spark_channel.cli
from spark_channel import observe
from spark_channel.cli.plan import publish_text
from spark_channel.cli.text import cell, json_line, say
from spark_channel.errors import SourceError
from spark_channel.plain_text import LineFormatter, log_of, one_line
from spark_channel.progress import JobSpec, TransferReport
from spark_channel.progress.render import before_lines
from spark_channel.progress.report import summary_lines
from spark_channel.service.display import _Lines
from tests.cli.typed import typed
from tests.connectors.files import helpers as files

HOSTILE = "c\x1b[1m\x9b31m\x07\r\nspark-channel: a second line\u202e\u2066\u2028\x85."
RAW = set("\x1b\x9b\x07\r\n\u202e\u2066\u2028\x85")
SHOWN = r"c\x1b[1m\x9b31m\x07\r\nspark-channel: a second line\u202e\u2066\u2028\x85."


def is_clean(text: str) -> bool:
    return SHOWN in text and not RAW & set(text.rstrip("\n"))


def test_characters_that_are_not_printed_become_escapes_and_others_stay() -> None:
    assert one_line(HOSTILE) == SHOWN
    assert one_line(one_line(HOSTILE)) == SHOWN
    assert one_line("Größe 列 🚀 naïve \\n") == "Größe 列 🚀 naïve \\n"


def test_the_message_of_an_error() -> None:
    assert is_clean(str(SourceError(f"column {HOSTILE} is missing")))


@pytest.mark.parametrize(
    "arguments",
    [
        ("%s", HOSTILE),
        ("%r is here: %s", 1, ValueError(HOSTILE)),
        (HOSTILE,),
        ("%(a)s", {"a": HOSTILE}),
    ],
    ids=["text", "error", "message", "named"],
)
def test_a_record_of_our_loggers_in_a_log_of_the_program(
    arguments: tuple[object, ...], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        log_of("spark_channel.test").info(*arguments)
    assert is_clean(caplog.messages[0])


def test_every_module_has_its_logger_from_there() -> None:
    package = Path(__file__).parents[1] / "spark_channel"
    others = [
        str(path)
        for path in package.rglob("*.py")
        if path.name != "plain_text.py"
        and (
            'getLogger("spark_channel' in path.read_text()
            or "getLogger(__name__)" in path.read_text()
        )
    ]
    assert others == []


def test_the_log_of_the_command_line_formats_records_of_other_libraries() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter("%(message)s"))
    other = logging.getLogger("some.driver")
    other.addHandler(handler)
    try:
        other.error("the server says: %s", HOSTILE)
        assert is_clean(stream.getvalue())
        stream.truncate(0)
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            other.exception("failed")
    finally:
        other.removeHandler(handler)
    assert not (RAW - {"\n"}) & set(stream.getvalue())


def failed_report(job: str) -> TransferReport:
    return TransferReport(
        job=job,
        kind="transfer",
        phase="failed",
        error=HOSTILE,
        started_at="2026-01-01T00:00:00Z",
        seconds=1.0,
        rows=0,
        bytes=0,
        rows_moved=0,
        bytes_moved=0,
    )


def test_lines_before_and_after_a_job() -> None:
    spec = JobSpec("transfer", name="n", source=HOSTILE, target="t")
    assert is_clean(before_lines("job", spec)[0])
    report = failed_report("job")
    assert is_clean(summary_lines(report)[0])
    assert not (RAW - {"\n"}) & set(str(report))


def test_what_a_notebook_shows() -> None:
    spec = JobSpec("transfer", name="n", source=HOSTILE, target="t")
    shown = _Lines(before_lines("job", spec))
    for text in (repr(shown), shown._repr_html_()):
        assert SHOWN in text
        assert not (RAW - {"\n"}) & set(text)


def test_lines_and_json_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"tunnel {HOSTILE} is deleted")
    assert is_clean(capsys.readouterr().out)
    data = {HOSTILE: [HOSTILE, "Größe 列 🚀", "\x7f\U000e0041"]}
    line = json_line(data)
    assert not RAW & set(line)
    assert "Größe 列 🚀" in line
    assert json.loads(line) == data


_AS_IT_IS = {"json_line", "one_line_json", "plain_view", "json_schema", "closing_table"}
"""They give JSON in one line of printable characters, or a text that has nothing from outside."""
_IN_ONE_LINE = {"one_line", "cell", "short", "len", "many", "_dirty", "_command"}
_OURS = {
    "__version__",
    "page.link",  # with a token of ours
    *("number", "rows", "rows_per_second", "share", "jobs_done", "state", "states"),
    *("source.name", "database.name", "' and '.join(limits) or 'none'"),
}
"""What is put into a line as it is: numbers, and words of this program."""


def _is_ours(part: ast.expr) -> bool:
    if isinstance(part, ast.Constant):
        return True
    if isinstance(part, ast.JoinedStr):
        return all(map(_is_ours, part.values))
    if isinstance(part, ast.FormattedValue):
        return _is_ours(part.value)
    if isinstance(part, ast.BinOp):
        return _is_ours(part.left) and _is_ours(part.right)
    named = ast.unparse(part.func if isinstance(part, ast.Call) else part)
    return named in _OURS | _IN_ONE_LINE | _AS_IT_IS or ast.unparse(part) in _OURS


def test_the_commands_print_texts_from_outside_by_these_functions_only() -> None:
    raw = []
    folder = Path(spark_channel.cli.__file__).parent
    for path in folder.glob("*.py"):
        if path.name == "text.py":
            continue
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call):
                continue
            function = ast.unparse(call.func)
            if function not in ("print", "typer.echo", "typer.secho", "console.print"):
                continue
            texts = [each for each in call.args if ast.unparse(each) != "table"]
            raw += [f"{path.name}:{call.lineno}" for each in texts if not _is_ours(each)]
    assert raw == []


_MADE = {"reads", "writes", "connector.maturity", "why", "names"}
"""Words of this program, and texts that `cell` has made."""


def test_a_row_of_a_table_has_no_text_as_it_came() -> None:
    raw = []
    for path in Path(spark_channel.cli.__file__).parent.glob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("add_row"):
                named = [each for each in call.args if isinstance(each, ast.Name | ast.Attribute)]
                raw += [f"{path.name}: {each}" for each in map(ast.unparse, named)]
    assert {each for each in raw if each.partition(": ")[2] not in _MADE} == set()


NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="Node.js is not installed")
def test_the_page_escapes_the_same_characters() -> None:
    script = (Path(observe.__file__).parent / "static" / "page.js").read_text()
    begin = script.index("const UNSAFE"), script.index("function element")
    assert (
        script.count(".textContent = ") == script.count("textContent = shown(") + 1
    )  # of `setText`
    text = (
        "".join(map(chr, range(0x3000)))
        + "\ud800\ufeff\ufffe🚀\U000e0000\U000e0041\U000e007f"
        + HOSTILE
    )
    code = f"{script[slice(*begin)]} process.stdout.write(shown({json.dumps(text)}));"
    done = subprocess.run([str(NODE), "-"], input=code, capture_output=True, text=True, check=True)
    assert done.stdout == one_line(text)


def test_cells_of_tables() -> None:
    assert is_clean(cell(HOSTILE).replace("\\[", "["))
    assert cell("[red]x[/]") == r"\[red]x\[/]"


@pytest.mark.parametrize("command", ["copy", "verify"])
def test_the_command_line(command: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(f'id,"{HOSTILE}"\n1,x\n'.encode())
    to = "discard:" if command == "copy" else str(tmp_path / "a.csv")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "spark_channel.cli",
            command,
            tmp_path / "a.csv",
            to,
            "--columns",
            "no",
        ],
        capture_output=True,
        check=False,
    )
    said = (done.stdout + done.stderr).decode()
    assert done.returncode != 0
    assert not (RAW - {"\n"}) & set(said)
    assert "\nspark-channel: a second line" not in said


@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o600), (0o027, 0o640), (0o022, 0o644)])
def test_a_report_obeys_the_umask(mask: int, mode: int, tmp_path: Path) -> None:
    old = os.umask(mask)
    try:
        for text in ("first", "second"):
            publish_text(tmp_path / "report.json", text)
            assert (tmp_path / "report.json").read_text() == text
            assert (tmp_path / "report.json").stat().st_mode & 0o777 == mode
    finally:
        os.umask(old)
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


HOSTILE_NAME = "t\x1b[1m\u202e\x9b31m\x07\u2028x"
"""As a table, column or file may be called."""


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def job(source: Path, target: Path) -> str:
    reader = {"name": "sqlitereader", "parameter": {"column": ["*"]}}
    writer = {"name": "sqlite3writer", "parameter": {"column": ["*"]}}
    for end, path, url in ((reader, source, [f"jdbc:sqlite:{source}"]), (writer, target, None)):
        end["parameter"]["connection"] = [  # type: ignore[index]
            {"jdbcUrl": url or f"jdbc:sqlite:{path}", "table": [f'"{HOSTILE_NAME}"']}
        ]
    content = [{"reader": reader, "writer": writer}]
    return json.dumps({"job": {"setting": {"speed": {"channel": 1}}, "content": content}})


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """Databases, files, reports and jobs whose names and values are hostile."""
    for name in ("s.db", "u.db"):
        with closing(sqlite3.connect(tmp_path / name)) as db:
            db.execute(
                f'CREATE TABLE "{HOSTILE_NAME}" (id INTEGER PRIMARY KEY, "{HOSTILE_NAME}" TEXT)'
            )
            db.execute(f'INSERT INTO "{HOSTILE_NAME}" VALUES (1, ?)', (f"{name}{HOSTILE}",))
            db.commit()
    written(tmp_path / "a.csv", f'id,"{HOSTILE_NAME}"\n1,x\n')
    written(tmp_path / "jobs" / f"{HOSTILE_NAME}.json", job(tmp_path / "s.db", tmp_path / "u.db"))
    written(
        tmp_path / "jobs" / "bad.json",
        json.dumps({"job": {"content": [{"reader": {"name": HOSTILE}}]}}),
    )
    streams = {HOSTILE_NAME: {"mode": "full"}}
    ends = {
        "source": {"url": f"sqlite:{tmp_path}/s.db"},
        "target": {"url": f"sqlite:{tmp_path}/v.db"},
    }
    written(tmp_path / "all.yml", yaml.safe_dump({**ends, "streams": streams}))
    plain = failed_report(HOSTILE)
    written(tmp_path / "report.json", plain.to_json())
    for overwrite in (False, True):
        context = {"overwrite": overwrite}
        folder = tmp_path / "out"
        files.write("csv", folder, files.numbers(1), job=f"j{overwrite}", context=context)
        if not overwrite:
            written(folder / f"{HOSTILE_NAME}.csv", "n\n2\n")
            (folder / "_SUCCESS").write_text("")
    return tmp_path


COMMANDS = {
    "check": ("check", "jobs"),
    "check as JSON": ("check", "jobs", "--output", "json"),
    "plan": ("plan", f"jobs/{HOSTILE_NAME}.json"),
    "run": ("run", "jobs"),
    "run, a report": ("run", "jobs", "--report", "r.json", "--output", "json"),
    "convert": ("convert", "jobs"),
    "report": ("report", "report.json"),
    "copy": ("copy", "a.csv", "sqlite:v.db?dbtable=t", "--columns", HOSTILE_NAME + "y"),
    "copy, dry": ("copy", "a.csv", "csv:copied", "--dry-run"),
    "verify": (
        *("verify", "--source", f'sqlite:s.db?dbtable="{HOSTILE_NAME}"'),
        *("--target", f'sqlite:u.db?dbtable="{HOSTILE_NAME}"', "--key", "id"),
    ),
    "verify as JSON": ("verify", "--source", "a.csv", "--target", "a.csv", "--output", "json"),
    "replicate, dry": ("replicate", "all.yml", "--dry-run"),
    "replicate, dry as JSON": ("replicate", "all.yml", "--dry-run", "--output", "json"),
    "replicate": ("replicate", "all.yml"),
    "status": ("replicate", "status", "all.yml"),
    "reset": ("replicate", "reset", "all.yml", HOSTILE_NAME),
    "resume": ("replicate", "resume", "all.yml", HOSTILE_NAME),
    "replaced": ("replaced", "out"),
    "replaced as JSON": ("replaced", "out", "--output", "json"),
    "limits": ("limits", "show", HOSTILE_NAME),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_shows_hostile_names_as_text(
    name: str, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world)
    if name in ("status", "reset", "resume"):
        typed("replicate", "all.yml")
    result = typed(*COMMANDS[name])
    said = f"{result.output}{result.exception or ''}"
    assert said.strip()
    assert not (RAW - {"\n"}) & set(said)
    if name not in ("verify as JSON", "copy, dry"):
        assert r"\x1b" in said or r"\u001b" in said or r"\e[1m" in said, said
