import json
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors.files.filesystem import locate
from spark_channel.datax import LoadedJob, load_job
from spark_channel.errors import JobFileError, OptionError, SchemaError
from spark_channel.transform import prepare

TEXT = pa.record_batch({"_c0": ["1", "2"], "_c1": ["31/01/2024", "20240201"], "_c2": ["x", None]})


def read(
    make_job: Any, plugin: str = "txtfilereader", common: Any = None, **parameter: Any
) -> LoadedJob:
    job = make_job(plugin, {"path": "/in", **parameter})
    return load_job({**job, "common": {"column": common or {}}})


def write(
    make_job: Any, plugin: str = "txtfilewriter", common: Any = None, **parameter: Any
) -> LoadedJob:
    given = {"path": "/out", "fileName": "f", "writeMode": "append", **parameter}
    return load_job({**make_job(writer=plugin, writes=given), "common": {"column": common or {}}})


def hdfs(make_job: Any, **parameter: Any) -> LoadedJob:
    column = [{"name": "id", "type": "bigint"}, {"name": "n", "type": "decimal(5,2)"}]
    given = {"defaultFS": "s3://lake/", "fileType": "orc", "column": column, **parameter}
    return write(make_job, "hdfswriter", **given)


def run(loaded: LoadedJob, batch: pa.RecordBatch) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        prepare(loaded.spec.transformers, batch.schema).run(batch).batch.to_pylist()
    )
    return rows


def test_columns_by_index_with_types_constants_and_formats(make_job: Any) -> None:
    loaded = read(
        make_job,
        column=[
            {"index": 2, "type": "string"},
            {"index": 0, "type": "long"},
            {"index": "1", "type": "date", "format": "dd/MM/yyyy"},
            {"value": 7, "type": "long"},
            {"index": 0, "type": "string"},
            {"value": "eu"},
        ],
    )
    outcome = prepare(loaded.spec.transformers, TEXT.schema).run(TEXT)
    assert outcome.batch.to_pylist() == [
        {"_c2": "x", "_c0": 1, "_c1": datetime(2024, 1, 31), "c3": 7, "c4": "1", "c5": "eu"}
    ]
    (refused,) = outcome.refused
    assert refused.rows.to_pylist() == [{"_c0": "2", "_c1": "20240201", "_c2": None}]


def test_common_column_gives_the_patterns_of_dates(make_job: Any) -> None:
    common = {
        "datetimeFormat": "dd/MM/yyyy HH:mm:ss",
        "dateFormat": "dd/MM/yyyy",
        "extraFormats": ["yyyyMMdd"],
    }
    loaded = read(make_job, column=[{"index": 1, "type": "date"}], common=common)
    assert run(loaded, TEXT) == [{"_c1": datetime(2024, 1, 31)}, {"_c1": datetime(2024, 2, 1)}]


def test_every_column_is_text(make_job: Any) -> None:
    for column in (["*"], "*", None):
        spec = read(make_job, column=column).spec
        assert [step.label for step in spec.transformers] == [
            "job.content[0].reader.parameter.path"
        ]
        assert spec.reader.options["inferSchema"] == "false"


def test_options_of_text_files(make_job: Any) -> None:
    options = read(
        make_job,
        path=["/a", "/b/*"],
        fieldDelimiter="|",
        encoding="gbk",
        nullFormat="NULL",
        compress="bzip2",
        skipHeader="true",
        csvReaderConfig={"useTextQualifier": False, "trimWhitespace": "false", "useComments": True},
    ).spec.reader.options
    assert dict(options) == {
        "paths": '["/a", "/b/*"]',
        "recursiveFileLookup": "true",
        "hiddenFiles": "true",
        "header": "false",
        "skipHeader": "true",
        "columnsIfEmpty": "1",
        "quotedIsNull": "true",
        "inferSchema": "false",
        "sep": "|",
        "encoding": "gbk",
        "nullValue": "NULL",
        "emptyIsNull": "false",
        "quote": "",
        "escape": "",
        "comment": "#",
        "compression": "bz2",
        "multiLine": "false",
        "mode": "MARK",
    }


@pytest.mark.parametrize(
    ("file_type", "connector"),
    [("text", "csv"), ("CSV", "csv"), ("orc", "orc"), ("parquet", "parquet"), ("par", "parquet")],
)
def test_hdfs_file_types(make_job: Any, file_type: str, connector: str) -> None:
    spec = read(
        make_job, "hdfsreader", defaultFS="hdfs://nn:8020", fileType=file_type, column=["*"]
    ).spec
    assert spec.reader.name == connector
    assert spec.reader.options["path"] == "hdfs://nn:8020/in"


def test_a_path_with_a_scheme_needs_no_default(make_job: Any) -> None:
    spec = read(
        make_job, "hdfsreader", path=["s3://b/x", "/y"], defaultFS="hdfs://nn", fileType="orc"
    ).spec
    assert json.loads(spec.reader.options["paths"]) == ["s3://b/x", "hdfs://nn/y"]


@pytest.mark.parametrize(
    ("given", "mode"),
    [("append", "append"), ("truncate", "overwrite"), ("nonConflict", "errorIfExists")],
)
def test_a_text_writer_names_its_files_in_the_folder_itself(
    make_job: Any, given: str, mode: str
) -> None:
    loaded = write(make_job, writeMode=given)
    assert loaded.spec.save_mode == mode
    assert (loaded.spec.writer.options["path"], loaded.spec.writer.options["filePrefix"]) == (
        "/out",
        "f",
    )
    stored = write(make_job, writeMode=given, path="s3://lake/out")
    assert stored.spec.writer.options["path"] == "s3://lake/out/f"
    assert any("the files go into the folder s3://lake/out/f" in text for text in stored.warnings)


def test_a_text_writer_names_columns_and_formats_times(make_job: Any) -> None:
    rows = pa.record_batch(
        {"a": ["x"], "t": pa.array([datetime(2024, 1, 31, 8, 30)], pa.timestamp("us"))}
    )
    loaded = write(make_job, header=["name", "at"], dateFormat="yyyyMMdd", quoteChar="'")
    steps = loaded.spec.transformers[1:]  # the stream's own columns come first
    assert prepare(steps, rows.schema).run(rows).batch.to_pylist() == [
        {"name": "x", "at": "20240131"}
    ]
    assert loaded.spec.writer.options["header"] == "true"
    quoted = write(make_job, fileFormat="csv", quoteChar="'").spec.transformers[-1]
    assert quoted.apply(pa.record_batch({"a": ["x,y"]})).batch.to_pylist() == [{"a": "'x,y'"}]
    with pytest.raises(JobFileError, match=r"quoteChar got ''; it takes one character"):
        write(make_job, fileFormat="csv", quoteChar="")
    with pytest.raises(
        JobFileError,
        match=r"fieldDelimiter got '\|\|'; it takes one character, since fileFormat is",
    ):
        write(make_job, fileFormat="csv", fieldDelimiter="||")
    plain = write(make_job, common={"datetimeFormat": "dd.MM.yyyy HH:mm"})
    assert prepare(plain.spec.transformers[1:], rows.schema).run(rows).batch.to_pylist() == [
        {"a": "x", "t": "31.01.2024 08:30"}
    ]
    assert plain.spec.writer.options["header"] == "false"


def test_a_hive_writer_gives_names_and_types_by_position(make_job: Any) -> None:
    loaded = hdfs(make_job, compress="SNAPPY")
    assert loaded.spec.writer.name == "orc"
    assert dict(loaded.spec.writer.options) == {"path": "s3://lake/out", "compression": "snappy"}
    rows = pa.record_batch({"x": ["1", "2"], "y": [1.5, 2.25]})
    pipeline = prepare(loaded.spec.transformers[1:], rows.schema)
    assert pipeline.run(rows).batch.to_pylist() == [
        {"id": 1, "n": Decimal("1.50")},
        {"id": 2, "n": Decimal("2.25")},
    ]
    with pytest.raises(
        SchemaError, match=r"writer\.parameter\.column: column: 1 columns arrive .* writer has 2"
    ):
        prepare(loaded.spec.transformers[1:], rows.select(["x"]).schema)


def test_replacing_a_whole_folder_must_be_said(make_job: Any) -> None:
    with pytest.raises(
        JobFileError, match=r"writeMode got 'truncate'; .*overwriteDirectory.*whole folder"
    ):
        hdfs(make_job, writeMode="truncate")
    assert (
        hdfs(make_job, writeMode="truncate", overwriteDirectory=True).spec.save_mode == "overwrite"
    )


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        ({"path": []}, "path is missing; txtfilereader takes"),
        ({"column": []}, "column got an empty list"),
        ({"column": [{"type": "long"}]}, r"column\[0\] got neither index nor value"),
        ({"column": [{"index": 0, "value": ""}]}, r"column\[0\] got both index and value"),
        ({"column": [{"index": -1}]}, r"column\[0\]\.index got -1"),
        (
            {"column": [{"index": 0, "type": "blob"}]},
            r"column\[0\]\.type got 'blob'; it takes one of string, long",
        ),
        (
            {"column": [{"index": 0, "type": "date", "format": "SSSS"}]},
            r"column\[0\]\.format: date pattern 'SSSS'",
        ),
        (
            {"column": [{"value": "x", "type": "long"}]},
            r"parameter\.column: column value 'x' is not a value of type",
        ),
        ({"compress": "rar"}, "compress got 'rar'"),
        ({"csvReaderConfig": []}, "csvReaderConfig got an empty list; it takes an object"),
    ],
)
def test_a_reader_that_makes_no_sense_is_refused(
    make_job: Any, parameter: dict[str, Any], message: str
) -> None:
    with pytest.raises(JobFileError, match=message):
        read(make_job, **parameter)


@pytest.mark.parametrize("file_type", ["rc", "seq"])
def test_hadoops_old_formats_are_refused_with_the_way_out(make_job: Any, file_type: str) -> None:
    with pytest.raises(
        JobFileError, match=f"fileType got '{file_type}'; .*turn them into ORC or Parquet"
    ):
        read(make_job, "hdfsreader", fileType=file_type)


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        (
            {"writeMode": "replace"},
            "writeMode got 'replace'; it takes append, nonConflict or truncate",
        ),
        ({"fileName": "a/b"}, "fileName got 'a/b'; it takes a name without /"),
        ({"fileName": "_a"}, "fileName got '_a'; it takes a name without /, and not . or _ first"),
        ({"dateFormat": "SSSS"}, "dateFormat: date pattern"),
        ({"fileFormat": "xml"}, "fileFormat got 'xml'"),
    ],
)
def test_a_text_writer_that_makes_no_sense_is_refused(
    make_job: Any, parameter: dict[str, Any], message: str
) -> None:
    with pytest.raises(JobFileError, match=message):
        write(make_job, **parameter)


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        ({"column": []}, "column got an empty list"),
        ({"column": [{"name": "a", "type": "map"}]}, r"column\[0\]\.type got 'map'"),
        ({"column": [{"name": "a", "type": "decimal(50,2)"}]}, "a decimal of 1 to 38 digits"),
        (
            {"column": [{"name": "a", "type": "int"}, {"name": "a", "type": "int"}]},
            "column got 'a' twice",
        ),
        ({"fileType": "avro"}, "fileType got 'avro'"),
    ],
)
def test_a_hive_writer_that_makes_no_sense_is_refused(
    make_job: Any, parameter: dict[str, Any], message: str
) -> None:
    with pytest.raises(JobFileError, match=message):
        hdfs(make_job, **parameter)


def test_a_missing_hadoop_client_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_root: str, _login: Any) -> None:
        raise OSError(
            "Unable to load libjvm\ndlopen(/a/libjvm.so) failed\ndlopen(/b/libjvm.so) failed"
        )

    monkeypatch.setattr("spark_channel.connectors.files.filesystem._from_uri", missing)
    with pytest.raises(OptionError, match="install Java and Hadoop's client") as caught:
        locate("hdfs://nn-that-no-other-test-names:8020/x")
    assert len(str(caught.value).splitlines()) == 1


def test_a_write_to_hdfs(make_job: Any) -> None:
    column = [{"name": "a", "type": "string"}]
    given = {
        "defaultFS": "hdfs://nn:8020",
        "path": "/out",
        "fileType": "text",
        "writeMode": "append",
        "column": column,
    }
    spec = load_job(make_job(writer="hdfswriter", writes=given)).spec
    assert (spec.writer.options["path"], spec.save_mode) == ("hdfs://nn:8020/out", "append")
    given["defaultFS"] = "webhdfs://nn:9870"
    with pytest.raises(
        JobFileError, match=r"defaultFS got a write to webhdfs://nn:9870/out.*hdfs://"
    ):
        load_job(make_job(writer="hdfswriter", writes=given))


def test_addax_overwrites_the_folder(make_job: Any) -> None:
    loaded = hdfs(make_job, writeMode="overwrite", skipTrash=True)
    assert loaded.spec.save_mode == "overwrite"
    assert any("skipTrash (files that are replaced are removed" in each for each in loaded.warnings)
    with pytest.raises(
        JobFileError, match="writeMode got 'x'; it takes append, nonConflict, trunc"
    ):
        hdfs(make_job, writeMode="x")
    twice = [{"name": "a", "type": "string"}, {"name": "b", "type": "int"}] * 2
    with pytest.raises(JobFileError, match=r"column got 'a' twice, at \[0\] and \[2\]"):
        hdfs(make_job, column=twice)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("\x01", "\x01"),
        ("\\u0001", "\x01"),
        ("\\x01", "\x01"),
        ("\\001", "\x01"),
        ("\\t", "\t"),
        ("|", "|"),
        ("\\", "\\"),
    ],
)
def test_a_delimiter_may_be_an_escape(make_job: Any, given: str, found: str) -> None:
    reads = {"path": "/a", "fieldDelimiter": given, "encoding": " "}
    options = load_job(make_job("txtfilereader", reads)).spec.reader.options
    assert (options["sep"], options["encoding"]) == (found, "utf-8")
