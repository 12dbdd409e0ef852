"""Job files of object stores: what they ask for, and what they do to a bucket."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

pytest.importorskip("obstore")

from pyspark.sql import SparkSession

import spark_channel
from spark_channel.connectors import WriteContext, load_reader, load_writer
from spark_channel.connectors.files.filesystem import locate
from spark_channel.connectors.files.reader import FilesReader
from spark_channel.datax import load_job
from spark_channel.datax.plugins import readers
from spark_channel.errors import JobFileError, OptionError, TargetError
from tests.behaviour.datax.test_end_to_end import carry_out
from tests.connectors.files.helpers import read_all, writer_of
from tests.servers.stores import BUCKET, ObjectServer, start_s3

OSS = {
    "endpoint": "http://oss-cn-hangzhou.aliyuncs.com",
    "bucket": "lake",
    "accessId": "id",
    "accessKey": "k3y",
}
VIRTUAL = {"aws_virtual_hosted_style_request": "true"}
KEYS = {"aws_access_key_id": "id", "aws_secret_access_key": "k3y"}


def rows_of(options: dict[str, Any]) -> pa.Table:
    reader, _ = load_reader(options)
    assert isinstance(reader, FilesReader)
    return read_all(reader)


def writes(make_job: Any, plugin: str, **parameter: Any) -> dict[str, Any]:
    """The options of the writer that a job becomes."""
    loaded = load_job(
        make_job(writer=plugin, writes={"object": "cdo/x", "writeMode": "append", **parameter})
    )
    return dict(loaded.spec.writer.options)


def reads(make_job: Any, plugin: str, **parameter: Any) -> dict[str, Any]:
    loaded = load_job(make_job(plugin, {"object": "cdo/*", "column": ["*"], **parameter}))
    return {"reader": loaded.spec.reader.name, **loaded.spec.reader.options}


@pytest.mark.parametrize(
    ("plugin", "parameter", "path", "settings"),
    [
        (
            "osswriter",
            OSS,
            "scheme=http&region=oss-cn-hangzhou&endpoint_override=oss-cn-hangzhou.aliyuncs.com",
            VIRTUAL,
        ),
        (
            "osswriter",
            {**OSS, "endpoint": "oss-cn-beijing-internal.aliyuncs.com"},
            "region=oss-cn-beijing&endpoint_override=oss-cn-beijing-internal.aliyuncs.com",
            VIRTUAL,
        ),
        (
            "osswriter",
            {**OSS, "endpoint": "http://10.0.0.7:8080"},
            "scheme=http&region=us-east-1&endpoint_override=10.0.0.7%3A8080",
            {},
        ),
        (
            "s3writer",
            {**OSS, "endpoint": "s3.eu-west-1.amazonaws.com", "region": "eu-west-1"},
            "region=eu-west-1",
            {},
        ),
        (
            "s3writer",
            {**OSS, "endpoint": "minio:9000", "sslEnabled": False, "region": "x"},
            "scheme=http&region=x&endpoint_override=minio%3A9000",
            {},
        ),
        (
            "s3writer",
            {**OSS, "endpoint": "https://minio.example.com", "pathStyleAccessEnabled": "true"},
            "region=us-east-1&endpoint_override=minio.example.com",
            {},
        ),
    ],
)
def test_where_a_bucket_is(
    make_job: Any, plugin: str, parameter: dict[str, Any], path: str, settings: dict[str, str]
) -> None:
    options = writes(make_job, plugin, **parameter)
    assert options["path"] == f"s3://lake/cdo/x?{path}"
    assert json.loads(options["storageOptions"]) == {**KEYS, **settings}


def test_where_objects_are(make_job: Any) -> None:
    options = reads(make_job, "ossreader", **OSS)
    assert options["path"].startswith("s3://lake/cdo/*?")
    options = reads(make_job, "s3reader", object=["/a/?.csv", "b"], bucket="x", region="eu-west-1")
    assert json.loads(options["paths"]) == [
        "s3://x/a/[!/].csv?region=eu-west-1",
        "s3://x/b?region=eu-west-1",
    ]
    assert "storageOptions" not in options  # those of the environment
    options = reads(
        make_job,
        "ossreader",
        **{**OSS, "fileFormat": "parquet", "path": "/parquet", "object": None},
    )
    assert (options["reader"], options["path"].partition("?")[0]) == (
        "parquet",
        "s3://lake/parquet",
    )


def test_sizes_and_formats(make_job: Any) -> None:
    options = writes(
        make_job, "osswriter", **OSS, maxFileSize="5", nullFormat="nil", compress="gzip"
    )
    assert (options["maxBytesPerFile"], options["nullValue"], options["compression"]) == (
        str(5 << 20),
        "nil",
        "gzip",
    )
    assert writes(make_job, "osswriter", **OSS)["nullValue"] == "null"
    assert (
        writes(make_job, "s3writer", **OSS, fileType="orc", compress="snappy")["compression"]
        == "snappy"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"accessKey": None},
            r"writer\.parameter\.accessKey is missing; osswriter takes both, or neither",
        ),
        ({"endpoint": "ftp://x"}, r"endpoint got 'ftp://x'; it takes a host"),
        ({"endpoint": "http://h/path"}, r"endpoint got .*; it takes a host"),
        ({"endpoint": "http://[::1"}, r"endpoint got 'http://\[::1'; it takes a host"),
        ({"cname": True}, r"cname got 'true'; it takes false"),
        ({"object": "/"}, r"object got '/'; it takes the name of a folder"),
        ({"fileFormat": "seq"}, r"fileFormat got 'seq'; it takes .*sequence files"),
        ({"writeSingleObject": "true"}, "writeSingleObject got 'true'; it takes false"),
        ({"syncMode": "copy"}, "syncMode"),
        (
            {"writeMode": "replace"},
            r"writeMode got 'replace'; it takes append, nonConflict or truncate",
        ),
    ],
)
def test_what_is_refused(make_job: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(JobFileError, match=message) as caught:
        writes(make_job, "osswriter", **{**OSS, **changes})
    assert "k3y" not in str(caught.value)


def test_no_secret_is_shown(make_job: Any) -> None:
    loaded = load_job(
        make_job("ossreader", {"object": "x", **OSS}, "osswriter", {"object": "y", **OSS})
    )
    for half, end in (("reader", loaded.spec.reader), ("writer", loaded.spec.writer)):
        load = load_reader if half == "reader" else load_writer
        made, _ = load({half: end.name, **end.options})
        assert "k3y" not in repr(made.options)
    assert "k3y" not in " ".join(loaded.warnings)
    with pytest.raises(OptionError, match="takes a JSON object") as caught:
        load_reader({"reader": "csv", "path": "x", "storageOptions": '{"k3y'})
    assert "k3y" not in str(caught.value)


def test_storage_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE_KEY", 'with "quotes"')
    given = {"aws_access_key_id": "id", "aws_secret_access_key": "${env:STORE_KEY}"}
    reader: Any = load_reader({"reader": "csv", "path": "x", "storageOptions": json.dumps(given)})[
        0
    ]
    assert reader.options.login.get("aws_secret_access_key") == 'with "quotes"'
    for settings, message in (
        ({"aws_access_key_id": "id"}, "aws_access_key_id without aws_secret_access_key"),
        ({"aws_endpoint": "x"}, "has 'aws_endpoint'; for files it takes aws_access_key_id"),
    ):
        with pytest.raises(OptionError, match=message):
            load_reader({"reader": "csv", "path": "x", "storageOptions": json.dumps(settings)})


def test_both_names_are_known() -> None:
    assert {"ossreader", "s3reader"} <= set(readers())


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectServer]:
    """The environment holds no credentials: only the job's own open the bucket."""
    with start_s3() as found, pytest.MonkeyPatch.context() as patch:
        for name in (
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_PROFILE",
            "AWS_DEFAULT_PROFILE",
        ):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
        yield found


def bucket(server: ObjectServer) -> dict[str, Any]:
    return {
        "endpoint": f"http://127.0.0.1:{server.port}",
        "bucket": BUCKET,
        "accessId": server.environment["AWS_ACCESS_KEY_ID"],
        "accessKey": server.environment["AWS_SECRET_ACCESS_KEY"],
    }


def stream(*rows: int) -> dict[str, Any]:
    first, *_ = rows
    column = [{"value": str(first), "type": "long"}, {"value": "a|b", "type": "string"}]
    return {"column": column, "sliceRecordCount": len(rows)}


@pytest.mark.parametrize("plugin", ["oss", "s3"])
def test_append_and_truncate_of_texts(make_job: Any, server: ObjectServer, plugin: str) -> None:
    """Through the log: a truncate replaces the folder in one step, and nothing beside it."""
    name = uuid4().hex
    where = bucket(server)

    def write(mode: str, rows: int, folder: str) -> None:
        job = make_job(
            "streamreader",
            stream(*[7] * rows),
            f"{plugin}writer",
            {
                **where,
                "object": folder,
                "writeMode": mode,
                "fileFormat": "csv",
                "fieldDelimiter": "|",
            },
            setting={"speed": {"channel": 1}},
        )
        carry_out(load_job(job).spec, uuid4().hex)

    def rows(folder: str) -> list[Any]:
        column = [{"index": 0, "type": "long"}, {"index": 1, "type": "string"}]
        options = reads(
            make_job, f"{plugin}reader", **where, object=folder, column=column, fieldDelimiter="|"
        )
        return list(rows_of(options).to_pylist())

    write("append", 2, f"{name}/orders")
    write("append", 3, f"{name}/orders")
    write("append", 1, f"{name}/orders2")
    assert len(rows(f"{name}/orders")) == 5
    write("truncate", 4, f"{name}/orders")
    found = rows(f"{name}/orders")
    assert len(found) == 4
    assert set(found[0].values()) == {7, "a|b"}
    assert len(rows(f"{name}/orders2")) == 1
    assert len(rows(f"{name}/*")) == 5


@pytest.mark.parametrize("form", ["orc", "parquet"])
def test_files_with_types(make_job: Any, server: ObjectServer, form: str) -> None:
    name, where = uuid4().hex, bucket(server)
    column = [{"name": "id", "type": "int"}, {"name": "text", "type": "string"}]
    job = make_job(
        "streamreader",
        stream(1, 2, 3),
        "osswriter",
        {**where, "object": name, "writeMode": "append", "fileFormat": form, "column": column},
        setting={"speed": {"channel": 1}},
    )
    carry_out(load_job(job).spec, uuid4().hex)
    table = rows_of(reads(make_job, "ossreader", **where, object=name, fileFormat=form))
    assert [str(field.type) for field in table.schema] == ["int32", "string"]
    assert table.to_pylist() == [{"id": 1, "text": "a|b"}] * 3


@pytest.mark.parametrize("file_type", ["text", "orc", "parquet"])
def test_hdfswriter_appends_and_truncates_by_the_log(
    make_job: Any, server: ObjectServer, file_type: str
) -> None:
    """Into a bucket; into `hdfs://` see docs/files.md."""
    target = server.uri(f"{uuid4().hex}/orders")
    with pytest.MonkeyPatch.context() as patch:
        for key, value in server.environment.items():
            patch.setenv(key, value)

        def write(mode: str, rows: int) -> None:
            given = {
                "path": target,
                "fileName": "orders",
                "fileType": file_type,
                "writeMode": mode,
                "column": [{"name": "id", "type": "bigint"}, {"name": "text", "type": "string"}],
                "fieldDelimiter": ",",
                "overwriteDirectory": True,
            }
            spec = load_job(make_job("streamreader", stream(*[5] * rows), "hdfswriter", given)).spec
            carry_out(spec, uuid4().hex)

        write("append", 2)
        write("append", 3)
        place = locate(target)
        assert place.fs.get_file_info(f"{place.path}/_spark_channel").type.name == "Directory"
        form = "csv" if file_type == "text" else file_type
        assert rows_of({"reader": form, "path": target}).num_rows == 5
        write("truncate", 1)
        assert rows_of({"reader": form, "path": target}).num_rows == 1


def test_the_jobs_own_credentials_open_the_bucket(server: ObjectServer) -> None:
    target = server.uri(f"{uuid4().hex}/out")
    context, schema = WriteContext("one"), pa.schema([("n", pa.int64())])
    with pytest.raises(TargetError):
        writer_of("parquet", target).prepare(context, schema)
    settings = {
        "aws_access_key_id": server.environment["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": server.environment["AWS_SECRET_ACCESS_KEY"],
    }
    writer = writer_of("parquet", target, storageOptions=json.dumps(settings))
    writer.abort(writer.prepare(context, schema), None)


@pytest.mark.spark
@pytest.mark.newest
def test_through_spark(spark: SparkSession, make_job: Any, server: ObjectServer) -> None:
    """The executors' processes have the job's credentials, and no others."""
    name, where = uuid4().hex, bucket(server)
    write = make_job(
        "streamreader",
        {**stream(1), "sliceRecordCount": 500},
        "osswriter",
        {
            **where,
            "object": name,
            "writeMode": "truncate",
            "fileFormat": "csv",
            "fieldDelimiter": ",",
        },
        setting={"speed": {"channel": 2}},
    )
    spark_channel.run(spark, write)
    spark_channel.run(spark, write)
    back = make_job(
        "s3reader",
        {**where, "region": "us-east-1", "object": [f"{name}/*"], "column": ["*"]},
        "s3writer",
        {**where, "object": f"{name}-copy", "fileType": "parquet", "writeMode": "nonConflict"},
        setting={"speed": {"channel": 2}},
    )
    spark_channel.run(spark, back)
    options = reads(make_job, "s3reader", **where, object=f"{name}-copy", fileType="parquet")
    assert rows_of(options).num_rows == 1000
