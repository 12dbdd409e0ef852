"""Foreign keys of other tables that delete rows with a table's, whatever the names are and whoever asks."""

from collections.abc import Iterator

import pytest

from spark_channel.connectors.mysql.session import MysqlWriteSession
from spark_channel.connectors.mysql.write.references import reached, reaching_keys
from spark_channel.errors import TargetError
from tests.connectors.mysql.shop import Shop, own_shop
from tests.servers.mariadb import MariadbServer

_MADE = """
CREATE DATABASE `{other}`;
CREATE TABLE `pä#r` (a INT, b INT, PRIMARY KEY (a, b)); CREATE TABLE plain LIKE `pä#r`; CREATE TABLE alone LIKE plain;
CREATE TABLE tree (id INT PRIMARY KEY, up INT, CONSTRAINT up FOREIGN KEY (up) REFERENCES tree (id) ON DELETE CASCADE);
CREATE TABLE `{other}`.`kínd 'x'` (id INT PRIMARY KEY, p INT, q INT,
  CONSTRAINT k1 FOREIGN KEY (p, q) REFERENCES {database}.`pä#r` (a, b) ON DELETE CASCADE,
  CONSTRAINT k2 FOREIGN KEY (p, q) REFERENCES {database}.plain (a, b) ON UPDATE CASCADE);
CREATE TABLE kid (id INT PRIMARY KEY, p INT, q INT, CONSTRAINT k3 FOREIGN KEY (p, q) REFERENCES `pä#r` (a, b)
  ON DELETE SET NULL);
CREATE USER IF NOT EXISTS etl@'127.0.0.1' IDENTIFIED BY 'p';
GRANT ALL ON {database}.* TO etl@'127.0.0.1'; GRANT ALL ON `{other}`.* TO etl@'127.0.0.1'
"""


@pytest.fixture
def own(mariadb_server: MariadbServer) -> Iterator[Shop]:
    with own_shop(mariadb_server) as shop:
        other = f"{shop.database}-ö#"
        shop.sql(_MADE.format(other=other, database=shop.database))
        yield shop
        shop.sql(f"DROP USER etl@'127.0.0.1'; DROP DATABASE `{other}`")


@pytest.mark.parametrize("login", [{}, {"user": "etl", "password": "p"}], ids=["process", "none"])
def test_keys_of_any_names_are_found(own: Shop, login: dict[str, str]) -> None:
    names = [(own.database, name) for name in ("pä#r", "plain", "alone", "tree", "kid")]
    with MysqlWriteSession(own.writer("t", **login).options, TargetError) as session:
        found = {name: sorted(reaching_keys(session, (own.database, name))) for _, name in names}
        assert found == {
            "pä#r": [
                ("k1", f"{own.database}-ö#", "kínd 'x'", "CASCADE", "p/q"),
                ("k3", own.database, "kid", "SET NULL", "p/q"),
            ],
            "plain": [],
            "alone": [],
            "tree": [],
            "kid": [],
        }
        assert reached(session, names) == {(own.database, "pä#r"), (own.database, "tree")}


def test_a_source_says_which_of_many_tables_have_keys(own: Shop) -> None:
    names = ["kid", "tree", "pä#r", "plain", "absent", *(f"t{number}" for number in range(60))]
    reader = own.reader("kid", user="etl", password="p")
    referring = reader.referring([(own.database, name) for name in names])
    assert referring == {(own.database, "kid"), (own.database, "tree")}
