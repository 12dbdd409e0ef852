"""Which process of a run is given which file."""

from types import SimpleNamespace
from typing import Any

import pytest
from xdist.remote import Producer

from tests.spread import Spread


class Process:
    """One of xdist's, which runs what it is sent in order; a test begins when the next one is known, or the end."""

    shutting_down = False
    gateway = SimpleNamespace(id="one")

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.begun: list[str] = []

    def send_runtest_some(self, indexes: list[int]) -> None:
        self.sent += indexes

    def shutdown(self) -> None:
        self.shutting_down = True


def spread(processes: int, begin_with_spark: int, tests: list[str]) -> tuple[Spread, list[Any]]:
    config: Any = SimpleNamespace(
        getvalue=lambda _: [f"{processes}*popen"], option=SimpleNamespace(loadscopereorder=False)
    )
    made = Spread(
        config,
        Producer("test", enabled=False),
        has_spark=lambda name: name.startswith("spark"),
        begin_with_spark=begin_with_spark,
    )
    nodes: list[Any] = [Process() for _ in range(processes)]
    for node in nodes:
        made.add_node(node)
    for node in nodes:
        made.add_node_collection(node, tests)
    made.schedule()
    return made, nodes


def run(made: Spread, nodes: list[Any], tests: list[str]) -> list[list[str]]:
    """The files that each process ran, in order; all tests take equally long."""
    going = True
    while going:
        going = False
        for node in nodes:
            ran = len(node.begun)
            if len(node.sent) > ran + 1 or (node.shutting_down and len(node.sent) > ran):
                node.begun.append(tests[node.sent[ran]])
                made.mark_test_complete(node, node.sent[ran])
                going = True
    return [list(dict.fromkeys(test.partition("::")[0] for test in node.begun)) for node in nodes]


def ids_of(**files: int) -> list[str]:
    return [f"{name}.py::test_{number}" for name, count in files.items() for number in range(count)]


def test_files_with_spark_run_beside_the_others() -> None:
    tests = ids_of(a=6, b=6, c=6, d=6, spark_a=6, spark_b=6)
    made, nodes = spread(3, 1, tests)
    assert run(made, nodes, tests) == [
        ["spark_a.py", "spark_b.py"],
        ["a.py", "c.py"],
        ["b.py", "d.py"],
    ]
    assert sorted(test for node in nodes for test in node.begun) == sorted(tests)


def test_who_has_no_file_without_spark_left_takes_those_with_it() -> None:
    tests = ids_of(a=3, spark_a=9, spark_b=3, spark_c=3)
    made, nodes = spread(2, 1, tests)
    assert run(made, nodes, tests) == [["spark_a.py"], ["a.py", "spark_b.py", "spark_c.py"]]


@pytest.mark.parametrize("begin_with_spark", [0, 1, 2, 3])
def test_no_file_without_spark_follows_one_with_it(begin_with_spark: int) -> None:
    tests = ids_of(spark_a=2, a=9, spark_b=1, b=5, c=1, spark_c=3, d=1)
    made, nodes = spread(3, begin_with_spark, tests)
    for files in run(made, nodes, tests):
        kinds = [name.startswith("spark") for name in files]
        assert kinds == sorted(kinds)
    assert sorted(test for node in nodes for test in node.begun) == sorted(tests)
    assert made.tests_finished


def test_no_more_than_one_takes_files_with_spark_beside_those_that_began_with_them() -> None:
    tests = ids_of(a=3, b=3, c=3, spark_a=9, spark_b=9, spark_c=9, spark_d=9)
    made, nodes = spread(4, 1, tests)
    files = run(made, nodes, tests)
    assert len([names for names in files if any(name.startswith("spark") for name in names)]) == 2
    assert sorted(test for node in nodes for test in node.begun) == sorted(tests)


def test_without_a_number_each_process_takes_what_comes() -> None:
    tests = ids_of(spark_a=3, spark_b=3, spark_c=3)
    made, nodes = spread(3, 0, tests)
    assert run(made, nodes, tests) == [["spark_a.py"], ["spark_b.py"], ["spark_c.py"]]


def test_a_process_that_prefers_spark_takes_others_where_there_is_none() -> None:
    tests = ids_of(a=3, b=3, c=3)
    made, nodes = spread(2, 2, tests)
    assert sorted(name for files in run(made, nodes, tests) for name in files) == [
        "a.py",
        "b.py",
        "c.py",
    ]


def test_the_last_files_are_not_kept_by_a_process_that_is_busy() -> None:
    """A file is handed out when the one before it has its last test left, and not earlier."""
    tests = ids_of(a=3, b=6, c=6)
    made, (one, two) = spread(2, 0, tests)
    assert [len(one.sent), len(two.sent)] == [3, 6]
    made.mark_test_complete(one, one.sent[0])
    assert len(one.sent) == 3
    made.mark_test_complete(one, one.sent[1])
    assert len(one.sent) == 9


def test_few_files_with_spark_alone_are_run_by_few_processes() -> None:
    tests = ids_of(a=3, spark_a=3, spark_b=3, spark_c=3, spark_d=3, spark_e=3)
    made, nodes = spread(5, 2, tests)
    run(made, nodes, tests)
    assert sorted(test for node in nodes for test in node.begun) == sorted(tests)
    made, nodes = spread(4, 1, ids_of(spark_a=3, spark_b=3, spark_c=3))
    run(made, nodes, tests[3:12])
    assert sum(len(node.begun) for node in nodes) == 9
