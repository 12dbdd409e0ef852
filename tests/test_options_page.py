"""docs/options.md says what the models say."""

from tests.options_page import PAGE, page


def test_the_page_of_options_is_true() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.options_page"


def test_every_option_is_described() -> None:
    undescribed = [
        line for line in page().splitlines() if line.startswith("| `") and line.split("|")[2].strip() == ""
    ]
    assert undescribed == []
