"""The table of source files and their tests in docs/CONTRIBUTING.md names what is there."""

import pytest

from tests.source_map import PAGE, ROOT, has_its_place, own_test, sources, written

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


def test_each_test_is_where_one_looks_for_it() -> None:
    tests = ROOT / "tests"
    names = {path.relative_to(tests).as_posix() for path in tests.rglob("test_*.py")}
    assert not {name for name in names if not has_its_place(name)}


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("channel/test_memory.py", True),
        ("channel/test_memory_overflow.py", True),
        ("channel/test_overflow.py", False),
        ("datax/test_plugins.py", True),
        ("connectors/mysql/test_faults.py", True),
        ("connectors/no_such/test_faults.py", False),
        ("no_such_package/test_memory.py", False),
        ("behaviour/faults/test_histories.py", True),
        ("behaviour/test_histories.py", False),
        ("test_docs.py", True),
    ],
)
def test_a_name_says_what_is_tested(test: str, expected: bool) -> None:
    assert has_its_place(test) is expected
