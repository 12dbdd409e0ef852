"""Passwords of databases, however they are given, are shown nowhere: by Spark, by the system, or by this project."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pyspark.sql import SparkSession

import spark_channel
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer
from tests.spark.places import mysql_place, postgres_place
from tests.spark.remote_driver import RemoteDriver

pytestmark = [
    pytest.mark.spark,
    pytest.mark.newest,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc"),
]

MARK = "s3cret"
"""All passwords of the tests' servers hold it, however they are escaped."""
OWN = b"test_passwords_are_shown_nowhere"
"""In the environment of all that the test starts: pytest puts its name there."""
Options = dict[str, Any]


@contextmanager
def command_lines_watched() -> Iterator[list[str]]:
    """Of every process that this test started, again and again: those that hold `MARK`."""
    found: list[str] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit():
                    try:
                        text = (entry / "cmdline").read_bytes().decode(errors="replace")
                        if MARK in text and OWN in (entry / "environ").read_bytes():
                            found.append(text)
                    except OSError:
                        continue  # it has ended, or is another user's

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield found
    finally:
        ended.set()
        watching.join()


def use(spark: SparkSession, options: Options, wrong: list[Options]) -> list[str]:
    """Write, read, copy and fail; return all texts that this shows. `wrong` are options whose logins are refused."""
    texts_seen: list[str] = []

    def note(*texts: object) -> None:
        texts_seen.extend(map(str, texts))

    def fails(work: Any) -> None:
        try:
            work()
        except Exception as error:
            note(error, repr(error), error.__cause__, error.__context__)
        else:
            note("it did not fail")

    def end(given: Options, table: str, **more: str) -> Options:
        return {**given, "dbtable": table, **more}

    def spark_end(kind: str, given: Options, table: str, **more: str) -> Options:
        return {
            kind: given["name"],
            **{k: v for k, v in end(given, table, **more).items() if k != "name"},
        }

    def read(given: Options, table: str) -> Any:
        return spark.read.format("channel").options(**spark_end("reader", given, table)).load()

    def write(given: Options, frame: Any, **more: str) -> None:
        there = frame.write.format("channel").mode("append")
        there.options(**spark_end("writer", given, "t", **more)).save()

    spark_channel.register(spark)
    rows = spark.range(100).selectExpr("id", "'x' AS v")
    write(options, rows)
    frame = read(options, "t")
    note(frame.count(), repr(frame), frame.schema, frame._jdf.queryExecution().toString())
    frame.createOrReplaceTempView("seen")
    note(spark.sql("EXPLAIN FORMATTED SELECT max(id) FROM seen").collect())
    report = spark_channel.transfer(
        spark, end(options, "t"), end(options, "u"), channels=2, commit="job"
    )
    note(repr(report), report)
    fails(lambda: read(options, "missing").collect())
    fails(lambda: write(options, rows, nosuchoption="1"))
    fails(lambda: write(options, rows, batchsize="x"))
    fails(lambda: write(options, rows.withColumnRenamed("id", "nosuch")))
    for each in wrong:
        fails(lambda each=each: read(each, "t").collect())
        fails(lambda each=each: write(each, rows))
        fails(lambda each=each: spark_channel.transfer(spark, end(each, "t"), end(each, "u")))
    return texts_seen


def of(name: str, **options: str) -> Options:
    return {"name": name, **options}


def of_postgresql(
    server: PostgresServer, writer: Options
) -> Iterator[tuple[Options, list[Options]]]:
    rest = {"currentSchema": writer["currentSchema"]}
    login, bare = f"{server.user}:{quote(server.password)}@", server.url
    asked = f"{bare}?user={server.user}&password={quote(server.password)}"
    wrong = [
        of("postgresql", url=bare, user=server.user, password=MARK + "-wrong", **rest),
        of("postgresql", url=bare.replace("//", f"//{server.user}:{MARK}%2Fwrong@"), **rest),
        of(
            "postgresql",
            url=f"{bare}?user={server.user}&password={MARK}&bad parameter={MARK}",
            **rest,
        ),
    ]
    yield (
        of(
            "postgresql",
            url=bare,
            user=server.user,
            password=server.password,
            sslpassword=f"{MARK}-of-key",
            **rest,
        ),
        wrong,
    )
    yield of("postgresql", url=bare.replace("//", f"//{login}"), **rest), []
    yield of("postgresql", url=f"jdbc:{asked}", **rest), []


def of_adbc(server: PostgresServer, writer: Options) -> Iterator[tuple[Options, list[Options]]]:
    uri = server.url.replace("//", f"//{server.user}:{quote(server.password)}@")
    uri += f"?options=-csearch_path%3D{writer['currentSchema']}"
    refused = uri.replace(quote(server.password), f"{MARK}-wrong")
    wrong = [
        of("adbc", driver="postgresql", uri=refused),
        of("adbc", driver="postgresql", driverOptions=f'{{"uri": "{refused}"}}'),
        of("adbc", driver="postgresql", uri=uri, driverOptions=f'{{"no.such.option": "{MARK}"}}'),
        of("adbc", driver="postgresql", uri=uri, driverOptions=f'["{MARK}"]'),
        of("adbc", driver="postgresql", uri=uri, password=f"{MARK}-too"),
    ]
    yield of("adbc", driver="postgresql", uri=uri), wrong
    yield of("adbc", driver="postgresql", driverOptions=f'{{"uri": "{uri}"}}'), []


def of_mysql(server: MariadbServer, writer: Options) -> Iterator[tuple[Options, list[Options]]]:
    url = writer["url"]
    wrong = [
        of("mysql", url=url, user=server.user, password=f"{MARK} wrong"),
        of("mysql", url=url.replace("//", f"//{server.user}:{MARK}%25wrong@")),
    ]
    yield of("mysql", url=url, user=server.user, password=server.password), wrong
    yield (
        of(
            "mysql", url=f"jdbc:{url}?user={server.user}&password={quote(server.password, safe='')}"
        ),
        [],
    )


def of_files(folder: Path) -> Iterator[tuple[Options, list[Options]]]:
    """They have no logins, and a password that is given all the same is ignored."""
    for name in ("sqlite", "duckdb"):
        path = str(folder / f"shop.{name}")
        wrong = [of(name, url=f"{name}://user:{MARK}@host/shop.db")]
        yield of(name, path=path, user="guest", password=f"{MARK}-for-nothing"), wrong


@pytest.mark.parametrize(
    ("connectors", "most"),
    [("adbc", 1), pytest.param("adbc postgresql mysql files", 9, marks=pytest.mark.soak)],
)
def test_passwords_are_shown_nowhere(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    connectors: str,
    most: int,
) -> None:
    """Tests at most so many ways to give a login per connector, and as many that are refused."""
    postgres: PostgresServer = request.getfixturevalue("postgres_server")
    mariadb: MariadbServer = request.getfixturevalue("mariadb_server")
    assert MARK in postgres.password
    assert MARK in mariadb.password
    events = tmp_path / "events"
    events.mkdir()
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.log.level": "INFO",
    }
    texts_seen: list[str] = []
    runs = 0
    with (
        postgres_place(postgres) as shop,
        postgres_place(postgres) as other,
        mysql_place(mariadb) as orders,
        command_lines_watched() as shown,
        RemoteDriver("local[2]", conf) as driver,
    ):
        ways = {
            "adbc": of_adbc(postgres, other.writer),
            "postgresql": of_postgresql(postgres, shop.writer),
            "mysql": of_mysql(mariadb, orders.writer),
            "files": of_files(tmp_path),
        }
        for options, wrong in chain.from_iterable(
            islice(ways[each], most) for each in connectors.split()
        ):
            runs += 1
            texts_seen += driver.run(use, options, wrong[:most], timeout=300)
    logs = "".join(path.read_text() for path in events.rglob("*") if path.is_file())
    assert logs.count("SparkListenerSQLExecutionStart") >= 2 * runs
    printed = "".join(capfd.readouterr())
    assert "it did not fail" not in texts_seen
    for place, text in (
        ("event log", logs),
        ("shown", "\n".join(texts_seen)),
        ("printed", printed),
    ):
        at = text.find(MARK)
        assert at < 0, f"{place}: {text[max(0, at - 300) : at + 40]}"
    assert shown == []
