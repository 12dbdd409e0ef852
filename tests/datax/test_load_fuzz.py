"""Job files and options that are broken in every way: either a job, or an error of this package that says where."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from spark_channel.connectors import load_reader, load_writer
from spark_channel.datax import load_job
from spark_channel.errors import ChannelError
from tests.service.fuzz import ODD, mutated, odd, resident_mib


def plain_jobs() -> list[bytes]:
    """The corpus, but for files with comments and what else DataX lets pass."""
    found = []
    for path in sorted(Path(__file__).parent.rglob("*.json")):
        try:
            json.loads(path.read_bytes())
        except ValueError:
            continue
        found.append(path.read_bytes())
    return found


JOBS = plain_jobs()
OPTIONS: list[dict[str, Any]] = [
    {
        "reader": "generator",
        "rows": "10",
        "channels": "2",
        "rowsPerSecond": "5k",
        "limitFallback": "static",
    },
    {"path": "/tmp/a.csv", "header": "true", "sep": ",", "columns": "a, b", "where": "a > 1"},
    {
        "url": "jdbc:postgresql://u:p@h:5432/d?x=y",
        "dbtable": "t",
        "numPartitions": "4",
        "sharedLimit": "h:1/x",
    },
    {
        "url": "mysql://h/d",
        "dbtable": "t",
        "maxConnections": "3",
        "maxDirtyRows": "7",
        "commit": "task",
    },
    {
        "path": "/tmp/a.db",
        "dbtable": "o",
        "txnAppId": "a",
        "txnVersion": "3",
        "writeMode": "upsert",
        "keyColumns": "a",
    },
]


def broken_options(random_: random.Random) -> dict[str, Any]:
    options = dict(random_.choice(OPTIONS))
    for _ in range(random_.randint(1, 3)):
        key = random_.choice(list(options))
        match random_.randrange(3):
            case 0:
                options[key] = random_.choice(ODD)
            case 1:
                options[mutated(random_, key.encode()).decode("latin-1")] = options.pop(key)
            case _:
                options[key] = mutated(
                    random_, str(options[key]).encode("utf-8", "replace")
                ).decode("latin-1")
    return {key: value for key, value in options.items() if value is not None}


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("number", [3_000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_broken_options_are_refused_in_our_words(number: int) -> None:
    random_ = random.Random(17)
    refused, before = 0, resident_mib()
    for _ in range(number):
        options = broken_options(random_)
        for load in (load_reader, load_writer):
            try:
                load(options)
            except ChannelError as error:
                refused += bool(str(error))
    print(
        f"{number} sets of options, each by both: {refused} refused, at most {resident_mib() - before} MiB more"
    )
    assert resident_mib() - before < 200
    assert refused > number // 2


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("number", [1_000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_broken_job_files_are_refused_in_our_words(number: int) -> None:
    random_ = random.Random(18)
    refused, before = 0, resident_mib()
    for _ in range(number):
        job = random_.choice(JOBS)
        text = (mutated if random_.random() < 0.5 else odd)(random_, job).decode("utf-8", "replace")
        try:
            load_job(text)
        except ChannelError as error:
            refused += bool(str(error))
    print(f"{number} job files: {refused} refused, {resident_mib() - before} MiB more")
    assert resident_mib() - before < 200
    assert refused > number // 3


@pytest.mark.parametrize("nested", ["[" * 5_000, '{"a":' * 5_000])
@pytest.mark.parametrize(
    "given",
    [
        {"path": "/tmp/a.csv", "columns": ""},
        {"reader": "csv", "paths": ""},
        {"url": "mysql://h/d", "dbtable": "t", "sessionInitStatement": ""},
        {"reader": "adbc", "driver": "sqlite", "dbtable": "t", "driverOptions": ""},
        {"reader": "delta", "path": "/tmp/nothing", "storageOptions": ""},
        {"reader": "iceberg", "dbtable": "a.b", "catalogProperties": ""},
    ],
    ids=lambda given: list(given)[-1],
)
def test_json_that_is_nested_without_end_is_refused_by_its_option(
    given: dict[str, str], nested: str
) -> None:
    option = list(given)[-1]
    message = (
        f"{option} is SQL, which is looked at later" if option == "sessionInitStatement" else ""
    )
    try:
        load_reader({**given, option: nested})
    except ChannelError as error:
        message = str(error)
    assert option.lower() in message.lower()


@pytest.mark.parametrize(
    "nested", ["[" * 5_000, '{"job":' * 5_000, '{"job": {"content": ' + "[" * 5_000]
)
def test_a_job_that_is_nested_without_end_is_refused(nested: str) -> None:
    with pytest.raises(ChannelError):
        load_job(nested)
