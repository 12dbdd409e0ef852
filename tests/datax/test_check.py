"""Valid jobs broken at random: each is planned or refused in our own voice, none ends in another error."""

import copy
import json
import pickle
import random
import re
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_channel.connectors.base.registry import connector_names
from spark_channel.datax import load_job
from spark_channel.datax.json_text import parse_text
from spark_channel.datax.plugins import readers, writers
from spark_channel.errors import ChannelError
from spark_channel.options import WriteOptions
from spark_channel.planning import Split, advise, plan
from spark_channel.transfers.options import job_options

CORPUS = sorted(Path(__file__).parent.joinpath("corpus").glob("*.json"))
SEED = 20_240_131
STRANGE: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        5,
        0.5,
        1.1,
        1e308,
        2**31,
        2**63 - 1,
        2**63,
        -(2**63),
        10**40,
    ),
    *(
        "",
        " ",
        "two",
        "3",
        "-1",
        "1.5",
        "*",
        "null",
        "'",
        '"',
        ";",
        "(",
        "a,b",
        "select",
        "\x00",
        "x" * 5000,
    ),
    *(
        "${env:HOME}",
        "$x",
        "\u4e2d\U0001f600",
        "t_[0-9]",
        "t_[0-99999999]",
        "2024-01-01",
        "../../etc",
    ),
    *("jdbc:mysql://u:p@h/x", "oracle", "truncate", "update(id)", "delete from @table"),
    *([], {}, [[]], [None], [{}], {"a": 1}, ["*"], ["a", 1, None], {"index": 0}, {"name": "x"}),
)
NAMES = (
    *readers(),
    *writers(),
    *connector_names(),
    "dx_pad",
    "dx_filter",
    "dx_substr",
    "dx_groovy",
    "mongodbreader",
)

Place = tuple[dict[str, Any] | list[Any], Any]


def places(node: Any) -> Iterator[Place]:
    """Every (container, key) of JSON data."""
    keys: Any = (
        node.keys()
        if isinstance(node, dict)
        else range(len(node))
        if isinstance(node, list)
        else ()
    )
    for key in list(keys):
        yield node, key
        yield from places(node[key])


def mutate(job: dict[str, Any], chance: random.Random) -> None:
    """One change somewhere: a value, a key, a name, an order, a part of another place."""
    everywhere = list(places(job))
    if not everywhere:
        return
    container, key = chance.choice(everywhere)
    value = container[key]
    kind = chance.randrange(8)
    if kind <= 2:
        container[key] = copy.deepcopy(chance.choice(STRANGE))
    elif kind == 3:
        del container[key]
    elif kind == 4:
        other, other_key = chance.choice(everywhere)
        container[key] = copy.deepcopy(other[other_key])
    elif kind == 5 and isinstance(container, dict):
        container[str(key) + chance.choice(string.ascii_letters)] = container.pop(key)
    elif kind == 6 and isinstance(value, str) and value:
        at = chance.randrange(len(value))
        container[key] = (
            value[:at] + chance.choice(string.printable) + value[at + chance.randrange(2) :]
        )
    elif kind == 7 and key == "name":
        container[key] = chance.choice(NAMES)
    elif isinstance(container, list):
        container.append(copy.deepcopy(value))
    else:
        container[key] = [value]


def refusal(source: Any) -> str | None:
    """Why the job is refused, None when it is planned; any other error ends the test."""
    try:
        job = load_job(source, {"x": "7"}, all_content=True)
        for spec in job.specs:
            repr(spec)
            WriteOptions.parse(job_options(spec, {}).job)
            advise(spec, parallelism=2)
            plan(spec, [Split()] * 7, parallelism=2)
    except ChannelError as error:
        return str(error)
    return None


@pytest.fixture(scope="module")
def corpus() -> Iterator[list[dict[str, Any]]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spark_channel.transfers.options.resolve_references", dict)
        yield made_corpus()


def made_corpus() -> list[dict[str, Any]]:
    for path in CORPUS:
        assert refusal(path) is None
    return [parse_text(path.read_text(), {}, path.name) for path in CORPUS]


@pytest.mark.parametrize("mutations", [2_000, pytest.param(20_000, marks=pytest.mark.soak)])
def test_each_mutation_is_planned_or_refused_and_none_ends_in_another_error(
    corpus: list[dict[str, Any]], mutations: int
) -> None:
    chance = random.Random(SEED)
    frozen = [pickle.dumps(job) for job in corpus]
    refused = 0
    for number in range(mutations):
        job = pickle.loads(chance.choice(frozen))
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            mutate(job, chance)
        try:
            reason = refusal(job)
        except Exception as error:
            error.add_note(f"mutation {number}: {json.dumps(job)}")
            raise
        refused += reason is not None
        assert reason is None or len(reason) > 10
    assert mutations // 10 < refused < mutations * 9 // 10


def test_broken_text_is_refused_with_its_line_and_column(corpus: list[dict[str, Any]]) -> None:
    chance = random.Random(SEED)
    broken = 0
    for _ in range(1_000):
        text = json.dumps(chance.choice(corpus), indent=1)
        start = chance.randrange(len(text))
        text = (
            text[:start]
            + chance.choice(("", ",", "{", "]", '"', "//", "\\", "/*"))
            + text[start + 1 :]
        )
        reason = refusal(text)
        if reason is not None and "not JSON" in reason:
            broken += 1
            assert re.search(r"not JSON at line \d+, column \d+: ", reason)
    assert broken > 300
