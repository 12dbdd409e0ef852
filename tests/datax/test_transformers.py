"""DataX's transformers as steps, and the errors of those that make no sense, by their places."""

import pytest

from spark_channel.datax.document import Step
from spark_channel.datax.sections import parse_section
from spark_channel.datax.transformers import job_transformers
from spark_channel.errors import JobFileError
from spark_channel.transform import Substr
from spark_channel.transform.transformer import Labelled

ROOT = "job.content[0].transformer"


def step(name: str, *paras: str) -> Step:
    parameter = {"columnIndex": 1, "paras": list(paras)}
    return parse_section(Step, {"name": name, "parameter": parameter}, ROOT)


def test_a_step_carries_its_place() -> None:
    (labelled,) = job_transformers((step("dx_substr", "2", "5"),), ROOT, [])
    assert isinstance(labelled, Labelled)
    assert labelled.label == f"{ROOT}[0] (dx_substr)"
    assert labelled.inner == Substr(1, 2, 5)


@pytest.mark.parametrize(
    ("name", "paras", "words"),
    [
        ("dx_groovy", ("return record",), "dx_groovy is not supported"),
        ("dx_unknown", (), "dx_unknown"),
        ("dx_substr", ("2", "many"), "'many'; it takes a whole number"),
        ("dx_digest", ("md5", "upper"), "toUpperCase"),
    ],
)
def test_a_step_that_makes_no_sense_is_refused(
    name: str, paras: tuple[str, ...], words: str
) -> None:
    with pytest.raises(JobFileError, match=words) as refused:
        job_transformers((step("dx_substr", "0", "1"), step(name, *paras)), ROOT, [])
    assert f"{ROOT}[1]" in str(refused.value)
