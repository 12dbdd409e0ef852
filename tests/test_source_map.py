"""The table of source files and their tests in docs/CONTRIBUTING.md names what is there."""

from tests.source_map import PAGE, ROOT, own_test, sources, written

COMMAND = "run: python -m tests.source_map"


def test_the_table_names_each_source_file_and_its_own_test() -> None:
    """Which others import it changes daily, and may be older: that they exist is enough."""
    rows = written(PAGE.read_text("utf-8"))
    assert {source: own for source, (own, _) in rows.items()} == {
        source: own_test(source) for source in sources()
    }, COMMAND
    gone = {name for _, others in rows.values() for name in others if not (ROOT / name).is_file()}
    assert not gone, COMMAND


def test_200_source_files_have_a_test_of_their_own() -> None:
    """`tests/a/test_b.py` for `a/b.py`: a file that moves takes its test with it."""
    assert sum(bool(own_test(name)) for name in sources()) >= 200
