"""What a contributor's tools read: hooks, templates and the container name commands and files that exist."""

import json
import re
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]


def test_the_hooks_run_what_make_lint_runs() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    hooks = [hook for repository in config["repos"] for hook in repository["hooks"]]
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").split("\nlint:")[1].split("\n\n")[0]
    commands = [hook["entry"].removeprefix(".venv/bin/").removesuffix(" --fix") for hook in hooks]
    assert commands == ["ruff check", "ruff format", "mypy"]
    assert all(f"$(PYTHON_BIN)/{command}" in recipe for command in commands)


def test_the_container_is_made_by_the_project_s_own_scripts() -> None:
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text("utf-8"))
    scripts = re.findall(r"\.ci/\w+", container["postCreateCommand"])
    assert scripts == [".ci/bootstrap", ".ci/servers"]
    assert all((ROOT / script).stat().st_mode & 0o100 for script in scripts)


def test_templates_name_targets_and_pages_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in (ROOT / ".github").rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"`make (\w+)", text):
            assert f"\n{target}:" in makefile, f"{page.name}: make {target}"
        for file in re.findall(r"\bdocs/\w+\.md", text):
            assert (ROOT / file).exists(), f"{page.name}: {file}"


def names_a_test(name: str) -> bool:
    file, _, function = name.partition("::")
    if not (ROOT / file).is_file():
        return False
    text = (ROOT / file).read_text("utf-8")
    first = function.split("::")[0]  # the methods of a class may be Hypothesis's
    return re.search(rf"\b{re.escape(first)}\b", text) is not None


def test_each_line_of_the_sets_names_a_test() -> None:
    for line in (ROOT / "tests" / "sets.tsv").read_text("utf-8").splitlines()[1:]:
        kind, name = line.split("\t")
        assert kind in ("quick", "full"), line
        assert names_a_test(name), f"tests/sets.tsv: {name}"


def test_few_tests_are_known_to_fail_now_and_then() -> None:
    header, *rows = (ROOT / "tests" / "flaky.tsv").read_text("utf-8").splitlines()
    assert header.split("\t") == ["test", "first seen", "reason"]
    assert len(rows) <= 10
    for row in rows:
        name, seen, reason = row.split("\t")
        assert names_a_test(name.split("[")[0]), name
        date.fromisoformat(seen)
        assert reason


def test_what_is_repeated_is_named_with_its_first_failure(tmp_path: Path) -> None:
    """`.ci/tests` itself, on a test that fails at its first run alone."""
    test = tmp_path / "test_now_and_then.py"
    test.write_text(
        "from pathlib import Path\n\n\n"
        "def test_once():\n"
        "    been = Path(__file__).with_name('been')\n"
        "    first = not been.exists()\n"
        "    been.touch()\n"
        "    assert not first, 'the first of two'\n"
    )
    script = shutil.copy(ROOT / ".ci" / "tests", tmp_path)  # whose lock this run may hold
    command = [script, sys.executable, "-c", "/dev/null", "-q", "--rootdir", str(tmp_path), test]
    run = subprocess.run(
        command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stdout + run.stderr
    last = run.stdout.strip().splitlines()[-1]
    assert "test_now_and_then.py::test_once - AssertionError: the first of two" in last
    assert last.endswith("(mend it, or add it to tests/flaky.tsv with its reason)")
