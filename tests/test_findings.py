"""The form of the findings: `make findings` runs them, and no test does."""

import os
import re
from pathlib import Path

import pytest

from tests.findings_page import FIELDS, FINDINGS, ROOT, Finding, findings, page

ALL = findings()
each_finding = pytest.mark.parametrize(
    "finding", [pytest.param(each, id=each.path.stem) for each in ALL]
)
PINNED = re.compile(r"'?[\w-]+(?:\[[\w,-]+\])?==\d[\w.]*'?|[\w.-]+:[\w.-]+:\d[\w.]*|\d+(?:\.\d+)+")
"""A package of pip, a jar of Maven, a server's version."""


def test_the_page_is_made_from_the_heads() -> None:
    shown = (FINDINGS / "README.md").read_text(encoding="utf-8")
    assert shown == page(), "run: python -m tests.findings_page"


def test_there_are_findings() -> None:
    assert len(ALL) >= 30


def test_other_files_are_the_page_and_what_the_scripts_share() -> None:
    others = {path.name for path in FINDINGS.iterdir() if path.suffix != ".sh"}
    assert others == {"README.md", "common.bash"}


@each_finding
def test_the_head_is_complete(finding: Finding) -> None:
    assert 3 <= len(finding.lines) <= 8
    assert tuple(finding.fields) in (FIELDS, FIELDS[:-1])
    assert all(len(line) <= 140 for line in finding.lines)
    assert re.search(r"\d", finding.fields["Version"]), "no version"


@each_finding
def test_the_script_is_short_and_runs_alone(finding: Finding) -> None:
    lines = finding.path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 60
    assert lines[0] == "#!/usr/bin/env bash"
    assert '. "$(dirname "$0")/common.bash"' in lines
    assert any(line.startswith("observe ") for line in lines)
    assert any(line.startswith("expect ") for line in lines)
    assert os.access(finding.path, os.X_OK)


@each_finding
def test_packages_are_pinned_and_spark_channel_is_none_of_them(finding: Finding) -> None:
    text = finding.path.read_text(encoding="utf-8")
    body = text.partition('common.bash"\n')[2]
    assert "spark_channel" not in body
    assert "spark-channel" not in body
    for words in re.findall(r"^(?:pip_install|maven|postgresql|mariadb) (.+)$", body, re.MULTILINE):
        packages = [word for word in words.split() if not word.startswith("--")]
        assert packages
        assert [word for word in packages if not PINNED.fullmatch(word)] == []


@each_finding
def test_the_code_that_copes_names_the_finding(finding: Finding) -> None:
    assert finding.modules
    for module in finding.modules:
        assert f"findings/{finding.path.name}" in (ROOT / module).read_text(encoding="utf-8")


def test_findings_that_the_code_names_exist() -> None:
    named = {
        (path.relative_to(ROOT), name)
        for folder in ("spark_channel", "tests")
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"findings/([a-z][\w-]+\.sh)", path.read_text(encoding="utf-8"))
    }
    copes = {(Path(module), each.path.name) for each in ALL for module in each.modules}
    assert named == copes
