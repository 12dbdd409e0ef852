"""Rights that a login has by those of an anonymous user on a database: SHOW GRANTS does not list them."""

from pathlib import Path
from typing import Any

import pytest

import spark_channel
from spark_channel.connectors import load_reader, load_writer
from spark_channel.connectors.base.contract import WriteContext
from spark_channel.errors import TargetError
from tests.servers.mariadb import MariadbServer, MysqlServer

SCRIPT = """
CREATE DATABASE open_; CREATE TABLE open_.t (id BIGINT PRIMARY KEY, v TEXT NOT NULL);
CREATE USER app@'%' IDENTIFIED BY 'p'; CREATE USER ''@'%' IDENTIFIED BY 'q'; GRANT ALL ON open_.* TO ''@'%'
"""


@pytest.mark.parametrize("kind", [MariadbServer, pytest.param(MysqlServer, marks=pytest.mark.full)])
def test_rights_of_an_anonymous_user_are_the_logins_too(
    kind: type[MariadbServer], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server = kind.create()
    request.addfinalizer(server.close)
    server.sql(SCRIPT)
    (tmp_path / "t.csv").write_text("id,v\n1,a\n2,b\n")
    source = {"path": str(tmp_path / "t.csv")}
    login: dict[str, Any] = {**server.login, "user": "app", "password": "p"}
    login["url"] = login["url"].rpartition("/")[0] + "/open_"

    def write(table: str, **options: str) -> int:
        target = {**login, "dbtable": table, **options}
        rows = spark_channel.transfer(None, source, target).rows
        assert rows is not None
        return rows

    assert write("t") == 2
    assert write("t", writemode="upsert", keycolumns="id") == 2
    assert write("made") == 2
    schema = load_reader(source)[0].schema()

    def rehearse(table: str) -> None:
        options = {"writemode": "upsert", "keycolumns": "id"}
        writer = load_writer({**login, "dbtable": table, **options})[0]
        writer.rehearse(WriteContext("plan", commit="job"), schema)

    rehearse("t")
    rehearse("other")
    server.sql("REVOKE ALL ON open_.* FROM ''@'%'; GRANT SELECT ON open_.* TO ''@'%'")
    with pytest.raises(TargetError, match=r"run GRANT INSERT ON `open_`.`t` TO `app`@`%`"):
        write("t")
    with pytest.raises(TargetError, match=r"run GRANT INSERT, UPDATE ON `open_`.`t` TO `app`@`%`"):
        rehearse("t")
