"""A job's facts are put together in one place for writes and one for reads, and its tasks reach the service by one."""

import ast
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import spark_channel

PACKAGE = Path(spark_channel.__file__).parent


@cache
def places() -> Mapping[str, Counter[str]]:
    """Where the package calls each function or class, as `file: function`, by the name that is called."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def look(node: ast.AST, place: str, file: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = f"{file}: {child.name}" if isinstance(child, ast.FunctionDef) else place
            if isinstance(child, ast.Call) and isinstance(child.func, ast.Name | ast.Attribute):
                found[ast.unparse(child.func)][inner] += 1
            look(child, inner, file)

    for path in sorted(PACKAGE.rglob("*.py")):
        look(ast.parse(path.read_text("utf-8")), "", str(path.relative_to(PACKAGE)))
    return found


def calls(name: str) -> Counter[str]:
    return places()[name]


def test_one_function_puts_the_facts_of_a_write_together_and_one_those_of_a_read() -> None:
    assert calls("JobSpec") == {
        "transfers/job_spec.py: write_spec": 1,
        "transfers/job_spec.py: read_spec": 1,
    }


def test_tasks_of_all_jobs_reach_the_service_in_one_way() -> None:
    assert calls("TaskServiceClient") == {"transfers/job_link.py: connect": 1}


def test_one_object_claims_publishes_and_aborts_for_the_driver() -> None:
    """Tasks of a stream claim, too, since Spark notifies no driver. The copy of refused rows is a write of its own."""
    drivers = ("spark/", "transfers/", "pipeline/", "local/", "verification/")
    for method in ("prepare", "commit", "abort"):
        homes = {
            home.partition(":")[0]
            for receiver in ("writer", "self._writer", "self.writer")
            for home in calls(f"{receiver}.{method}")
            if home.startswith(drivers)
        }
        stream = {"spark/stream_write.py"} if method == "prepare" else set()
        assert homes == {"transfers/write_job.py", "pipeline/dirty.py", *stream}
