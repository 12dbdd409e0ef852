"""Texts from outside are shown as text in every place: errors, logs, progress, reports, tables of the command line."""

import io
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_lines_before_and_after_a_job() -> None:
    spec = JobSpec("transfer", name="n", source=HOSTILE, target="t")
    assert is_clean(before_lines("job", spec)[0])
    report = TransferReport(
        job="job",
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


def test_the_commands_print_by_these_functions_only() -> None:
    """What is echoed as it is, is JSON in ASCII, or has no text from outside."""
    for name in ("tunnel", "limits"):
        source = (Path(spark_channel.cli.__file__).parent / f"{name}.py").read_text()
        echoed = re.findall(r"typer\.echo\((\w+(?:\.\w+)?)\(", source)
        assert len(echoed) == source.count("typer.echo(")
        assert set(echoed) <= {"json_line", "json.dumps", "plain_view"}


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
