import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from spark_channel.connectors.base.registry import connector_names, find_connector
from spark_channel.datax import load_job
from spark_channel.errors import JobFileError
from spark_channel.planning import Endpoint, Split, TransferSpec, plan

CORPUS = sorted(Path(__file__).parent.joinpath("corpus").glob("*.json"))


def speed(**values: Any) -> dict[str, Any]:
    return {"speed": values}


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_a_valid_job_loads_from_path_text_and_data_alike(path: Path) -> None:
    text = path.read_text()
    from_path = load_job(path)
    from_text = load_job(text)
    assert from_path.specs == from_text.specs
    assert from_path.warnings == from_text.warnings
    assert from_path.name == path.stem
    if "//" not in text.replace("://", ""):
        assert load_job(json.loads(text)).specs == from_path.specs


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_what_a_job_asks_for_travels_to_executors(path: Path) -> None:
    loaded = load_job(path, all_content=True)
    assert pickle.loads(pickle.dumps(loaded)) == loaded


def _ends(spec: TransferSpec) -> list[tuple[str, Endpoint]]:
    halves = (("reader", spec.reader), ("writer", spec.writer))
    return [
        (half, one)
        for half, end in halves
        for one in end.resolve(lambda urls: urls[0])
        if not end.spark_format and end.name in connector_names(half)
    ]


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_connectors_take_the_options_that_a_job_becomes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "hunter2")
    for spec in load_job(path, all_content=True).specs:
        for half, end in _ends(spec):
            connector = find_connector({half: end.name}, half)
            options = {
                key: value
                for key, value in end.options.items()
                if not str(value).startswith("${file:")
            }
            _, warnings = connector.options_class(half).parse(
                {half: end.name, **options}, connector=end.name
            )
            assert warnings == []


@pytest.mark.parametrize(
    ("setting", "core", "fields"),
    [
        ({}, {}, {"channels": None, "rows_per_second": None, "max_dirty_rows": None}),
        (speed(channel="5"), {}, {"channels": 5}),
        (speed(byte=1024, record="10"), {}, {"bytes_per_second": 1024, "rows_per_second": 10}),
        (
            speed(byte=-1, record=0, channel=2),
            {},
            {"bytes_per_second": None, "rows_per_second": None},
        ),
        ({"speed": 1048576}, {}, {"bytes_per_second": 1048576}),
        ({"errorLimit": {"record": 0}}, {}, {"max_dirty_rows": 0, "max_dirty_fraction": None}),
        (
            {"errorLimit": {"percentage": "0.02"}},
            {},
            {"max_dirty_rows": None, "max_dirty_fraction": 0.02},
        ),
        (
            {"errorLimit": {"record": 3, "percentage": 0.5}},
            {},
            {"max_dirty_rows": 3, "max_dirty_fraction": None},
        ),
        (
            speed(byte=1000),
            {
                "transport": {
                    "channel": {
                        "speed": {"byte": 100, "record": -1},
                        "capacity": 7,
                        "byteCapacity": 9,
                    }
                }
            },
            {
                "channel_bytes_per_second": 100,
                "channel_rows_per_second": None,
                "capacity_rows": 7,
                "capacity_bytes": 9,
            },
        ),
        ({}, {"container": {"taskGroup": {"channel": 3}}}, {"channels_per_task": 3}),
        ({}, {"container": {"job": {"id": 77}}}, {"job_id": "77"}),
        ({}, {"container": {"job": {"id": -1}}}, {"job_id": None}),
    ],
)
def test_settings(make_job: Any, setting: Any, core: Any, fields: dict[str, Any]) -> None:
    spec = load_job(make_job(setting=setting, core=core)).spec
    assert {name: getattr(spec, name) for name in fields} == fields


def test_a_job_limit_over_a_channel_limit_gives_the_channels(make_job: Any) -> None:
    core = {"transport": {"channel": {"speed": {"byte": 100}}}}
    spec = load_job(make_job(setting=speed(byte=1000), core=core)).spec
    assert plan(spec, [Split()] * 50, parallelism=2).channels == 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"setting": speed(channel=0)},
            r"job\.setting\.speed\.channel got 0; it takes a whole number from 1",
        ),
        ({"setting": speed(channel=-1)}, r"job\.setting\.speed\.channel got -1; it takes"),
        ({"setting": speed(channel="two")}, r"job\.setting\.speed\.channel got 'two'; it takes"),
        ({"setting": speed(channel=True)}, r"job\.setting\.speed\.channel got True"),
        (
            {"setting": speed(byte=2**63)},
            r"job\.setting\.speed\.byte got 9223372036854775808; it takes",
        ),
        ({"setting": speed(record=-2)}, r"job\.setting\.speed\.record got -2"),
        ({"setting": {"speed": []}}, r"job\.setting\.speed got an empty list; it takes an object"),
        ({"setting": {"errorLimit": {"record": -1}}}, r"job\.setting\.errorLimit\.record got -1"),
        (
            {"setting": {"errorLimit": {"percentage": 1.1}}},
            r"errorLimit\.percentage got 1\.1; it takes a number",
        ),
        ({"setting": {"errorLimit": {"percentage": "x"}}}, r"errorLimit\.percentage got 'x'"),
        (
            {"setting": {"keyVersion": "1"}},
            r"job\.setting\.keyVersion is not supported: .*\$\{env:NAME\}",
        ),
        (
            {"core": {"transport": {"channel": {"capacity": 0}}}},
            r"core\.transport\.channel\.capacity got 0",
        ),
        (
            {"reader": "hbase11xreader"},
            r"job\.content\[0\]\.reader\.name got 'hbase11xreader'; .*hdfsreader, .*mysqlread",
        ),
        ({"reader": "mysqlraeder"}, r"did you mean 'mysqlreader'\?"),
        ({"writer": "streamreader"}, r"job\.content\[0\]\.writer\.name got 'streamreader'"),
        ({"reads": {"column": []}}, r"reader\.parameter\.column got an empty list"),
        ({"writes": {"path": "/x"}}, r"writer\.parameter\.path is not supported: .*txtfilewriter"),
        ({"writes": {"*password": "AAA"}}, r"writer\.parameter\.\*password is encrypted"),
    ],
)
def test_what_makes_no_sense_is_refused_at_its_json_path(
    make_job: Any, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(JobFileError, match=message):
        load_job(make_job(**change))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "^job is missing$"),
        ({"job": {}}, r"^job\.content is missing$"),
        ({"job": {"content": []}}, r"job\.content got an empty list; it takes"),
        (
            {"job": {"content": [{"writer": {"name": "x"}}]}},
            r"^job\.content\[0\]\.reader is missing$",
        ),
        (
            {"job": {"content": {"reader": {"name": "x"}}}},
            r"^job\.content\[0\]\.writer is missing$",
        ),
        ({"job": {"content": ["x"]}}, r"job\.content\[0\] got 'x'; it takes an object"),
        ({"job": {"content": {1: 2}}}, r"job\.content: key 1 is not text"),
        (
            {"job": {"content": {"reader": object()}}},
            r"job\.content\.reader got 'object'; it takes what JSON",
        ),
        ("[1, 2]", "job got a list; it takes an object"),
        ("/no/such/job.json", r"/no/such/job\.json: cannot be read: No such file"),
        ("https://host/job.json", "fetch it from its url first"),
        ("", "cannot be read"),
    ],
)
def test_a_frame_that_is_no_job_is_refused(data: Any, message: str) -> None:
    with pytest.raises(JobFileError, match=message):
        load_job(data)


def test_content_may_be_an_object(make_job: Any) -> None:
    job = make_job()
    alone = {**job, "job": {**job["job"], "content": job["job"]["content"][0]}}
    assert load_job(alone).specs == load_job(job).specs


def test_the_first_content_runs_and_the_others_are_named(make_job: Any) -> None:
    job = make_job()
    second = make_job("txtfilereader", {"path": "/in", "unknown": 1})["job"]["content"][0]
    job["job"]["content"].append(second)
    loaded = load_job(job)
    assert [spec.reader.name for spec in loaded.specs] == ["generator"]
    (warning,) = [text for text in loaded.warnings if "only job.content[0] runs" in text]
    assert "job.content[1] (txtfilereader to streamwriter)" in warning
    assert not any("unknown" in text for text in loaded.warnings)
    everything = load_job(job, all_content=True)
    assert [spec.reader.name for spec in everything.specs] == ["generator", "csv"]
    assert any("job.content[1].reader.parameter.unknown" in text for text in everything.warnings)


def test_keys_without_effect_share_one_warning_with_the_reason(make_job: Any) -> None:
    job = make_job(
        setting={"speed": {"channel": 1, "chanel": 2}, "restore": {}},
        writes={"print": True, "colour": "red"},
        core={"transport": {"channel": {"flowControlInterval": 20}}, "dataXServer": {"timeout": 1}},
        entry={"jvm": "-Xmx1G"},
    )
    (warning,) = load_job(job).warnings
    assert warning.startswith("without effect: ")
    for part in (
        "job.setting.speed.chanel (unknown; did you mean 'channel'?)",
        "job.setting.restore (unknown)",
        "job.content[0].writer.parameter.print (rows are counted and dropped, not printed)",
        "job.content[0].writer.parameter.colour (unknown)",
        "core.transport.channel.flowControlInterval (",
        "core.dataXServer (",
        "entry (",
    ):
        assert warning.count(part) == 1


def test_null_is_the_same_as_nothing(make_job: Any) -> None:
    job = make_job(setting={"speed": {"channel": None, "byte": None}, "errorLimit": None})
    assert load_job(job) == load_job(make_job(setting={}))


def test_secrets_are_in_no_message(make_job: Any) -> None:
    connection = [{"jdbcUrl": ["jdbc:mysql://root:pa55word@h/x"], "table": ["t"]}]
    login = {"username": "u", "password": "hunter2", "column": ["id"], "connection": connection}
    loaded = load_job(make_job("mysqlreader", login))
    assert loaded.spec.reader.options["password"] == "hunter2"
    shown = repr(loaded)
    assert "hunter2" not in shown
    assert "pa55word" not in shown
    for broken in (
        {"password": {"a": "hunter2"}},
        {"password": ["hunter2"]},
        {"connection": connection[0]["jdbcUrl"]},
    ):
        with pytest.raises(JobFileError) as caught:
            load_job(make_job("mysqlreader", {**login, **broken}))
        assert "hunter2" not in str(caught.value)
        assert "pa55word" not in str(caught.value)


def test_references_to_secrets_stay_references(
    make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "hunter2")
    connection = {"jdbcUrl": "jdbc:mysql://h/x", "table": "t"}
    reads = {"password": "${env:SHOP_PASSWORD}", "username": "${file:/run/user}", "column": "*"}
    spec = load_job(json.dumps(make_job("mysqlreader", {**reads, "connection": connection}))).spec
    assert spec.reader.options["password"] == "${env:SHOP_PASSWORD}"
    assert spec.reader.options["user"] == "${file:/run/user}"


def test_data_nested_too_deeply_is_refused() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(JobFileError, match="nested too deeply"):
        load_job(deep)
    with pytest.raises(JobFileError, match="nested too deeply"):
        load_job('{"job": ' + "[" * 100_000)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_bytes(b"\xff\xfe{")
    with pytest.raises(JobFileError, match="it is not UTF-8 text"):
        load_job(path)
