"""Jobs on YARN, as docs/deploy.md has them: an environment by `--archives`, and the wheel by `--py-files`."""

import json
import os
import re
import socket
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.deployments.yarn_application import RATE
from tests.servers.installed import EVERY, installed
from tests.servers.postgres import PostgresServer
from tests.servers.yarn import NODE, Yarn, start_yarn
from tests.spark.wheel import ROOT, build_wheel

pytestmark = [
    pytest.mark.spark,
    pytest.mark.newest,
    pytest.mark.every_server,
    pytest.mark.timeout(2_000),
]

ROWS = 6_000
SECONDS = 900
ALL_ROWS = "SELECT n, text FROM source EXCEPT ALL SELECT n, text FROM {}"
APPLICATION = Path(__file__).parent / "yarn_application.py"


@pytest.fixture(scope="module")
def yarn() -> Iterator[Yarn]:
    with start_yarn() as server:
        yield server


@pytest.fixture(scope="module")
def database(postgres_server: PostgresServer) -> str:
    """The login of a database with `ROWS` rows in `source`, as JSON. Each has 1 KB: what Spark buffers for a Python
    process, 64 KiB, would hide when rows come."""
    postgres_server.psql(
        "CREATE TABLE source (n integer PRIMARY KEY, text text);"
        f"INSERT INTO source SELECT n, repeat('ä', 500) || n FROM generate_series(1, {ROWS}) n"
    )
    return json.dumps(postgres_server.login)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The options that ship the libraries and the package."""
    folder = tmp_path_factory.mktemp("shipped")
    environment = installed("yarn/env", "venv-pack of PyPI", by=EVERY)
    archive = folder / "env.tar.gz"
    pack = f"{environment}/bin/venv-pack -q -p {environment} -o {archive}".split()
    subprocess.run(pack, check=True, timeout=SECONDS)
    package = f"{build_wheel(folder)},{ROOT / 'pyspark_channel.py'}"
    return ["--archives", f"{archive}#env", "--py-files", package]


class Submit:
    """`spark-submit` to YARN, in one of its modes."""

    def __init__(self, yarn: Yarn, mode: str, files: list[str], folder: Path) -> None:
        self.yarn, self.mode, self._files, self._folder = yarn, mode, files, folder

    def start(self, *arguments: str, **conf: str) -> "subprocess.Popen[str]":
        import pyspark

        home = Path(pyspark.__file__).parent
        settings = {
            "spark.yarn.jars": f"local:{home}/jars/*",  # each node has Spark
            "spark.driver.memory": "512m",
            "spark.yarn.am.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.instances": "2",
            "spark.ui.enabled": "false",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "100",  # rows are seen as they come
            "spark.executorEnv.SPARK_LOCAL_IP": NODE,
            "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": NODE,
            "spark.yarn.appMasterEnv.PYSPARK_PYTHON": "./env/bin/python",
            "spark.yarn.stagingDir": f"file://{self.yarn.folder}/files",
            "spark.yarn.report.interval": "200ms",
            "spark.yarn.maxAppAttempts": "1",
            **{name.replace("_", "."): value for name, value in conf.items()},
        }
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PY")},
            "HADOOP_CONF_DIR": str(self.yarn.settings),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": "./env/bin/python",
        }
        options = [word for item in settings.items() for word in ("--conf", "=".join(item))]
        command = [str(home / "bin/spark-submit"), "--master", "yarn", "--deploy-mode", self.mode]
        return subprocess.Popen(
            [*command, *options, *self._files, str(APPLICATION), *arguments],
            cwd=self._folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self, process: "subprocess.Popen[str]") -> tuple[int, str]:
        """Its exit code, and what it and the application's containers have printed."""
        try:
            text, _ = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
        logs = "".join(
            self.yarn.logs(name) for name in set(re.findall(r"application_\d+_\d+", text))
        )
        lines = [
            line
            for line in (text + logs).splitlines()
            if " INFO " not in line and not line.startswith("\tat ")
        ]
        return process.returncode, "\n".join(lines)

    def run(self, *arguments: str, **conf: str) -> None:
        code, text = self.end(self.start(*arguments, **conf))
        assert code == 0, text[-20_000:]


@pytest.fixture(scope="module", params=["client", "cluster"])
def submit(
    request: pytest.FixtureRequest,
    yarn: Yarn,
    files: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Submit:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "client":  # the driver's own process, here, needs the environment, too
        (folder / "env").mkdir()
        with tarfile.open(files[1].removesuffix("#env")) as archive:
            archive.extractall(folder / "env", filter="tar")
    return Submit(yarn, request.param, files, folder)


@pytest.fixture(scope="module")
def copied(submit: Submit, database: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the application saw."""
    result = tmp_path_factory.mktemp("result") / "result.json"
    submit.run(database, "copies", str(result))
    return json.loads(result.read_text())


def test_the_package_and_its_libraries_are_those_that_were_shipped(
    copied: Any, submit: Submit
) -> None:
    assert copied["driver host"] == {"client": "localhost", "cluster": NODE}[submit.mode]
    for _host, prefix, version in [*copied["executors"], (None, *copied["driver"])]:
        assert prefix.endswith("/env"), copied
        assert re.search(r"spark_channel-[^/]*/spark_channel", version), copied


def test_reads_and_writes_are_whole(copied: Any, postgres_server: PostgresServer) -> None:
    assert copied["read"] == [ROWS, ROWS * (ROWS + 1) // 2, ROWS]
    for table in ("written", "moved"):
        assert postgres_server.psql(f"SELECT count(*) FROM {table}") == str(ROWS)
        assert postgres_server.rows(ALL_ROWS.format(table)) == []


@pytest.mark.parametrize("what", ["write", "transfer"])
def test_tasks_reach_the_service(copied: Any, what: str) -> None:
    """Only it counts the rows of all executors, and shares out one limit."""
    assert copied[what] == {"rows": ROWS, "limit": "the whole job"}


@pytest.mark.parametrize("what", ["limited read", "throttle"])
def test_executors_share_one_limit(copied: Any, what: str) -> None:
    """The rows of the first second may come at once."""
    assert copied[what] >= ROWS / RATE - 1.1


def test_executors_that_come_and_go_share_it_too(
    submit: Submit, database: str, tmp_path: Path, postgres_server: PostgresServer
) -> None:
    result = tmp_path / "result.json"
    submit.run(
        database,
        "grows",
        str(result),
        spark_dynamicAllocation_enabled="true",
        spark_dynamicAllocation_shuffleTracking_enabled="true",
        spark_dynamicAllocation_initialExecutors="0",
        spark_dynamicAllocation_minExecutors="0",
        spark_dynamicAllocation_maxExecutors="3",
        spark_executor_instances="0",
    )
    seen = json.loads(result.read_text())
    assert seen["begin"] == 0 < seen["end"]
    assert (seen["rows"], seen["limit"]) == (ROWS, "the whole job")
    assert postgres_server.rows(ALL_ROWS.format("grown")) == []


def test_what_is_killed_publishes_nothing_and_a_rerun_all(
    submit: Submit, database: str, postgres_server: PostgresServer
) -> None:
    postgres_server.psql(
        "DROP TABLE IF EXISTS slow; CREATE TABLE slow (n integer, text text);"
        "INSERT INTO slow VALUES (0, 'of yesterday')"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(SECONDS)
        process = submit.start(database, "slow", str(server.getsockname()[1]))
        try:
            server.accept()[0].close()  # rows have come
            (name,) = re.findall(r"application_\d+_\d+", submit.yarn.application("-list"))
            submit.yarn.application("-kill", name)
        except BaseException:
            process.kill()
            raise
        code, text = submit.end(process)
    assert code != 0, text[-20_000:]
    assert postgres_server.rows("TABLE slow") == [("0", "of yesterday")]
    submit.run(database, "slow", "0")
    assert postgres_server.psql("SELECT count(*) FROM slow") == str(ROWS)
    assert postgres_server.rows(ALL_ROWS.format("slow")) == []
    staging = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE '%slow%' AND relname <> 'slow'"
    assert postgres_server.rows(staging) == []
