"""What a contributor's tools read: hooks, templates and the container name commands and files that exist."""

import json
import re
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
