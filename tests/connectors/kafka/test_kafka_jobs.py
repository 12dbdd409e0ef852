"""kafkareader and kafkawriter of public job files."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from spark_channel.datax import load_job
from spark_channel.errors import ChannelError, JobFileError
from tests.behaviour.datax.test_end_to_end import carry_out
from tests.connectors.kafka.conftest import put, reader, rows
from tests.datax.small_jobs import make_job
from tests.servers.kafka import KafkaServer

AT = {"bootstrapServers": "h:9092", "topic": "orders"}
BEGIN = {"beginOffset": "earliest"}
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="ann" password="s3\\"cret";'


@pytest.fixture(autouse=True)
def zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")


SECRET = "login of the job"


def reads(**given: Any) -> dict[str, Any]:
    return dict(load_job(make_job("kafkareader", given)).spec.reader.options)


def writes(**given: Any) -> dict[str, Any]:
    return dict(load_job(make_job(writer="kafkawriter", writes=given)).spec.writer.options)


def test_a_job_reads_json_into_files(server: KafkaServer, tmp_path: Path) -> None:
    server.create("orders", 2)
    hour = int(datetime.fromisoformat("2024-01-31T08:00:00+08:00").timestamp() * 1000)
    put(server, b'{"id": 1, "who": {"name": "old"}}', timestamp=hour - 1)
    put(server, b'{"id": 2, "who": {"name": "ann"}}', timestamp=hour, key=b"k2")
    put(server, b'{"id": 3, "other": 1}', partition=1, timestamp=hour + 1)
    put(server, b'{"id": 4}', partition=1, timestamp=hour + 3_600_000)
    given = {
        "server": server.address,
        "topic": "orders",
        "groupId": "g",
        "beginDateTime": "20240131080000",
        "endDateTime": "20240131090000",
        "column": [
            {"name": "id", "type": "long"},
            "who.name",
            "__key__",
            "__partition__",
            "__timestamp__",
        ],
    }
    text = {"path": str(tmp_path), "fileName": "f", "writeMode": "truncate"}
    carry_out(load_job(make_job("kafkareader", given, "txtfilewriter", text)).spec)
    lines = [line for made in tmp_path.glob("f__*") for line in made.read_text().splitlines()]
    assert sorted(lines) == [
        "2,ann,k2,0,2024-01-31 08:00:00",
        "3,null,null,1,2024-01-31 08:00:00.001000",
    ]


def test_a_job_writes_text_and_json(server: KafkaServer, tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_text("1,ann,2024-01-31 10:00:05,0.5\n2,\\N,2024-01-31 10:00:05,2.0\n")
    columns = [
        {"index": n, "type": kind} for n, kind in enumerate(("long", "string", "date", "double"))
    ]
    read = {"path": str(source), "column": columns, "nullFormat": "\\N"}
    create = {"noTopicCreate": True, "topicNumPartition": 1, "topicReplicationFactor": 1}
    text = {
        "bootstrapServers": server.address,
        "topic": "orders",
        **create,
        "fieldDelimiter": "\\t",
        "retries": 0,
    }
    carry_out(load_job(make_job("txtfilereader", read, "kafkawriter", text)).spec)
    names = ["id", "name", "at", "x"]
    made = {"brokerList": server.address, "topic": "orders", "column": names, "keyIndex": 0}
    carry_out(load_job(make_job("txtfilereader", read, "kafkawriter", made)).spec)
    found = rows(reader(server))
    assert [row["value"] for row in found[:2]] == [
        b"1\tann\t2024-01-31 10:00:05\t0.5",
        b"2\t\t2024-01-31 10:00:05\t2.0",
    ]
    assert [(row["key"], json.loads(row["value"])) for row in found[2:]] == [
        (b"1", {"id": 1, "name": "ann", "at": "2024-01-31 10:00:05", "x": 0.5}),
        (b"2", {"id": 2, "at": "2024-01-31 10:00:05", "x": 2.0}),
    ]
    back = {
        "bootstrapServers": server.address,
        "topic": "orders",
        "split": "\\t",
        "columnCount": 4,
        "parsingRules": "split",
        **BEGIN,
        "endOffset": "2",
    }
    out = {"path": str(tmp_path), "fileName": "f", "writeMode": "truncate", "fieldDelimiter": "|"}
    carry_out(load_job(make_job("kafkareader", back, "txtfilewriter", out)).spec)
    lines = [line for each in tmp_path.glob("f__*") for line in each.read_text().splitlines()]
    assert sorted(lines) == ["1|ann|2024-01-31 10:00:05|0.5", "2||2024-01-31 10:00:05|2.0"]


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"column": ["a"]}, {"valueFormat": "json", "schema": "`a` STRING"}),
        (
            {"column": ["a", "b"], "fieldDelimiter": "\\u0001"},
            {"valueFormat": "text", "delimiter": "\x01"},
        ),
        (
            {"column": ["a", "b"], "fieldDelimiter": "\t", "writeType": "json"},
            {"valueFormat": "json"},
        ),
        ({"column": ["__value__"]}, {"valueFormat": "text", "schema": "`_value` STRING"}),
        ({"columnCount": 2, "parsingRules": "split", "split": "\\|"}, {"delimiter": "|"}),
        (
            {"parsingRules": "json", "kafkaReaderColumnKey": "a,b", "writerOrder": "1,2"},
            {"schema": "`a` STRING, `b` STRING"},
        ),
        (
            {"column": ["a"], "partition": 3, "endOffset": "77"},
            {"partitions": "3", "endOffsets": "77"},
        ),
        (
            {
                "column": ["a"],
                "kafkaConfig": {
                    "security.protocol": "SASL_SSL",
                    "sasl.mechanism": "SCRAM-SHA-256",
                    "sasl.jaas.config": JAAS,
                },
            },
            {
                "securityProtocol": "SASL_SSL",
                "saslMechanism": "SCRAM-SHA-256",
                "user": "ann",
                "password": 's3"cret',
            },
        ),
    ],
)
def test_what_keys_of_the_reader_mean(given: dict[str, Any], options: dict[str, str]) -> None:
    found = reads(**AT, **BEGIN, **given)
    assert {name: found.get(name) for name in options} == options


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({}, {"valueFormat": "text", "delimiter": ","}),
        (
            {"bootstrapServers": None, "server": "h:9092"},
            {"delimiter": "\t", "bootstrapServers": "h:9092"},
        ),
        ({"writeMode": "JSON", "column": [{"name": "a"}]}, {"valueFormat": "json"}),
        (
            {
                "tableFields": ["a"],
                "producerSettings": {"bootstrap.servers": "x:1"},
                "bootstrapServers": None,
            },
            {"valueFormat": "json", "bootstrapServers": "x:1"},
        ),
        (
            {"column": ["a", "b"], "valueIndex": 1, "keyIndex": 0},
            {"valueFormat": "text", "valueColumns": '["b"]', "keyColumns": '["a"]'},
        ),
        ({"partition": 2, "compressionType": "LZ4"}, {"partition": "2", "compression": "lz4"}),
    ],
)
def test_what_keys_of_the_writer_mean(given: dict[str, Any], options: dict[str, str]) -> None:
    found = writes(**{**AT, **given})
    assert {name: found.get(name) for name in options} == options


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"groupId": "g"}, r"groupId got a consumer group, .*each run would read the whole topic"),
        (
            {"kafkaConfig": {"auto.offset.reset": "latest"}},
            "kafkaConfig got 'latest'; it takes earliest",
        ),
        ({"type": "stream", **BEGIN}, "type got 'stream'; it takes batch"),
        ({"beginOffset": "seekToLast"}, "beginOffset got 'seekToLast'"),
        (
            {"beginDateTime": "2024-01-31"},
            "beginDateTime got '2024-01-31'; it takes yyyyMMddHHmmss",
        ),
        ({**BEGIN, "column": ["*"]}, r"column got '\*'; it takes names of fields"),
        ({**BEGIN, "column": None}, "column is missing"),
        ({**BEGIN, "parsingRules": "regex"}, "parsingRules got 'regex'"),
        (
            {**BEGIN, "parsingRules": "split", "split": "a|b"},
            "split got 'a|b'; it takes a plain text",
        ),
        (
            {**BEGIN, "kafkaReaderColumnKey": "d[0].x", "parsingRules": "json"},
            r"column got 'd\[0\]\.x'",
        ),
        (
            {**BEGIN, "writerOrder": "2,1", "column": ["a", "b"]},
            "writerOrder got '2,1'; it takes 1 to 2",
        ),
        ({**BEGIN, "valueType": "Long"}, "valueType got 'Long'; it takes string"),
        ({**BEGIN, "haveKerberos": True}, "haveKerberos got 'true'"),
        (
            {**BEGIN, "kafkaConfig": {"ssl.truststore.location": "/t"}},
            r"kafkaConfig got ssl\.truststore\.location",
        ),
        ({**BEGIN, "filterContaintsStr": "x"}, "use transformer dx_filter"),
        ({**BEGIN, "bootstrapServers": None}, "bootstrapServers is missing"),
    ],
)
def test_what_a_reader_cannot_do_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(JobFileError, match=message):
        reads(**{**AT, "column": ["a"], **given})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"writeType": "json"}, r"column is missing.*not as DataX's own records"),
        ({"writeType": "avro"}, "writeType got 'avro'; it takes text or json"),
        (
            {"keyIndex": 0},
            "column is missing; kafkawriter takes the names of the columns, with keyIndex",
        ),
        ({"keyIndex": 2, "column": ["a"]}, "keyIndex got 2; it takes 0 to 0"),
        ({"headers": [{}]}, "headers is not supported"),
        ({"nullKeyFormat": "x"}, "nullKeyFormat got 'x'"),
    ],
)
def test_what_a_writer_cannot_do_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(JobFileError, match=message):
        writes(**{**AT, **given})


@pytest.mark.parametrize(
    ("jaas", "login"),
    [
        ("x required username='ann' password='s3\\'cret';", ("ann", "s3'cret")),
        ("x required username=ann password=s3cret;", ("ann", "s3cret")),
        ('x required password="" username="ann" ;', ("ann", "")),
    ],
)
def test_a_login_of_java_in_other_quotes(jaas: str, login: tuple[str, str]) -> None:
    found = reads(
        **AT, **BEGIN, column=["a"], kafkaConfig={"sasl.jaas.config": jaas, "sasl.mechanism": None}
    )
    assert (found["user"], found["password"], found.get("saslMechanism")) == (*login, None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"kafkaConfig": f'sasl.jaas.config=x password="{SECRET}"'},
            "kafkaConfig got a text; it takes an object",
        ),
        (
            {"kafkaConfig": {"sasl.jaas.config": f"x keyTab='{SECRET}';"}},
            "sasl.jaas.config without a username",
        ),
    ],
)
def test_settings_in_another_form_are_not_shown(given: dict[str, Any], message: str) -> None:
    with pytest.raises(JobFileError, match=message) as met:
        reads(**AT, **BEGIN, column=["a"], **given)
    assert SECRET not in str(met.value)


def test_a_whole_topic_is_read_with_a_warning() -> None:
    job = load_job(make_job("kafkareader", {**AT, "column": ["a"], "offsetMode": "earliest"}))
    assert any(
        "the whole topic is read, up to its present end" in warning for warning in job.warnings
    )


def test_a_job_that_is_to_be_committed_once_is_refused() -> None:
    job = make_job(writer="kafkawriter", writes=AT)
    job["job"]["setting"] = {"commit": "job", "txn": "nightly:1"}
    with pytest.raises(ChannelError, match="commit"):
        carry_out(load_job(job).spec)
