"""The page of DataX's keys names each plugin, and each key with an effect or that is refused; `check` names others."""

import re
from pathlib import Path

import pytest

from spark_channel.datax import document
from spark_channel.datax.columns import NamedColumn, PickedColumn
from spark_channel.datax.plugins import (
    aliases,
    buckets,
    databases,
    elasticsearch,
    files,
    ftp,
    hive,
    http,
    kafka,
    mongodb,
    readers,
    redis,
    stream_load,
    streams,
    writers,
)
from spark_channel.datax.sections import JobSection
from spark_channel.datax.transformers import _STEPS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT.joinpath("docs", "datax.md").read_text()
SECTIONS = dict(re.findall(r"^##+ (.*?)\n(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.MULTILINE))
TEXT_READER = "txtfilereader, and hdfsreader with text or csv"
WHERE: list[tuple[type[JobSection], str]] = [
    (streams.StreamReader, "streamreader, streamwriter"),
    (streams.MadeUpColumn, "streamreader, streamwriter"),
    (streams.StreamWriter, "streamreader, streamwriter"),
    (files.TxtFileReader, TEXT_READER),
    (files.HdfsReader, TEXT_READER),
    (files.CsvReaderConfig, TEXT_READER),
    (PickedColumn, TEXT_READER),
    (files.TxtFileWriter, "txtfilewriter"),
    (files.HdfsWriter, "hdfswriter"),
    (buckets.OssReader, "ossreader, osswriter, s3reader, s3writer"),
    (buckets.S3Reader, "ossreader, osswriter, s3reader, s3writer"),
    (buckets.OssWriter, "ossreader, osswriter, s3reader, s3writer"),
    (buckets.S3Writer, "ossreader, osswriter, s3reader, s3writer"),
    (databases.DatabaseReader, "Database readers"),
    (databases.ReaderConnection, "Database readers"),
    (databases.DatabaseWriter, "Database writers"),
    (databases.WriterConnection, "Database writers"),
    (aliases.OceanbaseReader, "oceanbasev10reader, oceanbasev10writer"),
    (aliases.OceanbaseWriter, "oceanbasev10reader, oceanbasev10writer"),
    (aliases.AdbpgWriter, "drdswriter, adbmysqlwriter, adbpgwriter"),
    (hive.HiveReader, "hivereader, hivewriter"),
    (hive.HiveWriter, "hivereader, hivewriter"),
    (elasticsearch.ElasticReader, "elasticsearchreader, elasticsearchwriter"),
    (elasticsearch.ElasticColumn, "elasticsearchreader, elasticsearchwriter"),
    (elasticsearch.ElasticWriter, "elasticsearchreader, elasticsearchwriter"),
    (elasticsearch.ElasticColumn, "elasticsearchreader, elasticsearchwriter"),
    (ftp.FtpReader, "ftpreader, ftpwriter"),
    (ftp.FtpWriter, "ftpreader, ftpwriter"),
    (kafka.KafkaReader, "kafkareader, kafkawriter"),
    (kafka.KafkaWriter, "kafkareader, kafkawriter"),
    (kafka.KafkaColumn, "kafkareader, kafkawriter"),
    (mongodb.MongoReader, "mongodbreader, mongodbwriter"),
    (mongodb.MongoColumn, "mongodbreader, mongodbwriter"),
    (mongodb.MongoConnection, "mongodbreader, mongodbwriter"),
    (mongodb.MongoWriter, "mongodbreader, mongodbwriter"),
    (mongodb.Upsert, "mongodbreader, mongodbwriter"),
    (mongodb.PreAction, "mongodbreader, mongodbwriter"),
    (mongodb.PreItem, "mongodbreader, mongodbwriter"),
    (http.HttpReader, "httpreader"),
    (http.HttpConnection, "httpreader"),
    (http.HttpProxy, "httpreader"),
    (http.PageParams, "httpreader"),
    (http.PageParameter, "httpreader"),
    (redis.RedisReader, "redisreader, rediswriter"),
    (redis.RedisWriter, "redisreader, rediswriter"),
    (redis.RedisConfig, "redisreader, rediswriter"),
    (stream_load.StreamLoadWriter, "starrockswriter, doriswriter, selectdbwriter"),
    (stream_load.LoadConnection, "starrockswriter, doriswriter, selectdbwriter"),
    (document.SpeedSetting, "Settings"),
    (document.ErrorLimit, "Settings"),
    (document.ColumnFormats, "Settings"),
    (document.ChannelSection, "Settings"),
    (document.Core, "Settings"),
    (document.JobFile, "Settings"),
]


@pytest.mark.parametrize("plugin", sorted({*readers(), *writers()}))
def test_every_plugin_is_named(plugin: str) -> None:
    assert f"`{plugin}`" in SECTIONS["Readers and writers"]


SERVERS = {
    "real server": "MariadbServer|PostgresServer|RedisServer|start_hdfs|servers.kafka|servers.opensearch",
    "another product": "MariadbServer|PostgresServer|FerretServer|start_s3",
    "engine": "chdb|jdbc:derby",
    "test server": r"tests\.servers\.",
    "no server": "",
    "planned only": "",
}
"""What a test names that proves a plugin so."""


PROVEN = (
    ("real server", "tests/behaviour/datax/test_as_datax.py", "mysqlreader mysqlwriter"),
    ("real server", "tests/behaviour/datax/test_as_datax.py", "postgresqlreader postgresqlwriter"),
    ("real server", "tests/connectors/redis/test_redis.py", "redisreader rediswriter"),
    ("real server", "tests/behaviour/datax/test_job_hdfs.py", "hdfsreader hdfswriter"),
    (
        "another product",
        "tests/datax/plugins/test_aliases.py",
        (
            "drdsreader drdswriter oceanbasev10reader oceanbasev10writer adbmysqlreader adbmysqlwriter "
            "gaussdbreader gaussdbwriter adbpgreader adbpgwriter kingbaseesreader kingbaseeswriter"
        ),
    ),
    ("engine", "tests/datax/plugins/test_hive.py", "rdbmsreader rdbmswriter"),
    ("engine", "tests/datax/plugins/test_hive.py", "hivereader hivewriter"),
    (
        "engine",
        "tests/connectors/clickhouse/test_clickhouse.py",
        "clickhousereader clickhousewriter",
    ),
    (
        "another product",
        "tests/datax/plugins/test_buckets.py",
        "ossreader osswriter s3reader s3writer",
    ),
    ("test server", "tests/connectors/remote/test_remote.py", "ftpreader ftpwriter"),
    ("another product", "tests/connectors/mongodb/test_ferretdb.py", "mongodbreader mongodbwriter"),
    (
        "real server",
        "tests/connectors/elasticsearch/test_elasticsearch.py",
        "elasticsearchreader elasticsearchwriter",
    ),
    ("real server", "tests/connectors/kafka/test_kafka_jobs.py", "kafkareader kafkawriter"),
    (
        "test server",
        "tests/connectors/stream_load/test_writer.py",
        "starrockswriter doriswriter selectdbwriter",
    ),
    ("test server", "tests/connectors/http/test_reader.py", "httpreader"),
    (
        "no server",
        "tests/behaviour/datax/test_as_datax.py",
        "sqlite3reader sqlite3writer sqlitereader sqlitewriter",
    ),
    (
        "no server",
        "tests/datax/plugins/test_connectors.py",
        "deltareader deltawriter icebergreader icebergwriter",
    ),
    ("no server", "tests/behaviour/datax/test_end_to_end.py", "txtfilereader txtfilewriter"),
    ("no server", "tests/datax/plugins/test_streams.py", "streamreader streamwriter"),
    (
        "planned only",
        "tests/datax/plugins/test_databases.py",
        "oraclereader oraclewriter sqlserverreader sqlserverwriter db2reader db2writer",
    ),
)
"""How a plugin was proven, the test, and the plugins."""


def test_how_each_plugin_was_proven() -> None:
    """A test moves rows with it, against such a server."""
    for proof, test, names in PROVEN:
        text = ROOT.joinpath(test).read_text()
        assert re.search(SERVERS[proof], text), (names, proof)
        assert proof in ("planned only", "no server") or re.search(
            r"carry_out\(|move\(|ran\(|spark_channel\.run\(", text
        ), names
        assert [
            each for each in names.split() if re.sub("(reader|writer)$", "", each) not in text
        ] == []
    proven = [name for _, _, names in PROVEN for name in names.split()]
    assert sorted(proven) == sorted({*readers(), *writers()})


@pytest.mark.parametrize("name", sorted({*_STEPS, "dx_groovy"}))
def test_every_transformer_is_named(name: str) -> None:
    assert f"`{name}`" in SECTIONS["Transformers"]


@pytest.mark.parametrize(
    ("section", "title"), WHERE, ids=lambda value: getattr(value, "__name__", "")
)
def test_every_key_with_an_effect_or_that_is_refused_is_named_in_its_table(
    section: type[JobSection], title: str
) -> None:
    fields = {field.alias or name for name, field in section.model_fields.items()}
    body = SECTIONS[title]
    missing = [key for key in {*fields, *section.refused} if not re.search(rf"\b{key}\b", body)]
    assert missing == []


def test_the_named_columns_of_hive_are_described() -> None:
    assert set(NamedColumn.model_fields) == {"name", "type"}
    assert "names and Hive types" in SECTIONS["hdfswriter"]
