"""Pages show the figures of docs/figures.json."""

from pathlib import Path

import pytest

from tests import figures
from tests.benchmarks.harness import Row


def test_pages_have_the_measured_figures() -> None:
    for path, (current, correct) in figures.pages().items():
        assert current == correct, f"{path.name}: run python -m tests.figures"


def test_a_benchmark_writes_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, kept = tmp_path / "page.md", tmp_path / "figures.json"
    page.write_text("| worst second | 1.02 |\nIt was 1.02 times the\nlimit.\n")
    kept.write_text(
        '[{"name": "worst", "value": "1.02", "bench": "limits", "row": "worst", "format": "{:.2f}",'
        ' "pages": {"page.md": "| worst second | {} |"}},'
        ' {"name": "again", "value": "1.02", "bench": "limits", "row": "worst", "format": "{:.2f}",'
        ' "pages": {"page.md": "It was {} times the limit"}}]'
    )
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "FIGURES", kept)
    figures.record("limits", [Row("worst", 1.0349)])
    assert page.read_text() == "| worst second | 1.03 |\nIt was 1.03 times the\nlimit.\n"
    figures.record("channel", [Row("worst", 9.0)])
    assert '"value": "1.03"' in kept.read_text()
    page.write_text("nothing")
    with pytest.raises(LookupError, match=r"page\.md has '\| worst second \| \{\} \|' 0 times"):
        figures.pages()
