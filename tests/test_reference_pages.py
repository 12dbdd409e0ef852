"""The pages of the command line and of the errors say what the code says."""

import inspect
import re
from pathlib import Path

import spark_channel.errors as errors
from spark_channel.cli import exit_codes
from tests.cli_page import PAGE, page

ERRORS = Path(__file__).resolve().parents[1] / "docs" / "reference" / "api.md"


def test_the_page_of_the_command_line_is_true() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.cli_page"


def test_the_exit_codes_of_the_page_are_those_of_the_commands() -> None:
    documented = {
        int(code)
        for code in re.findall(r"^\| (\d+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert documented == {value for value in vars(exit_codes).values() if isinstance(value, int)}


def test_every_error_has_a_row_that_says_what_happened_and_what_to_do() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (.+) \| (.+) \|$", ERRORS.read_text(encoding="utf-8"), re.MULTILINE
    )
    named = [name for name, _, _ in rows]
    assert sorted(named) == sorted(set(errors.__all__) - {"ChannelError"})
    assert all(happened.endswith(".") and todo.endswith(".") for _, happened, todo in rows)


def test_the_tree_of_errors_names_every_class_under_its_parent() -> None:
    found: dict[int, str] = {}
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"([│ ]*(?:[├└]── )?)([A-Z]\w+)", line)
        if match and match[2] in errors.__all__:
            depth = len(match[1]) // 4
            found[depth] = match[2]
            if depth:
                parent: type[Exception] = getattr(errors, found[depth - 1])
                assert parent in getattr(errors, match[2]).__bases__
    assert all(inspect.isclass(getattr(errors, name)) for name in errors.__all__)
    missing = [name for name in errors.__all__ if name not in (errors.__doc__ or "")]
    assert missing == []
