"""The login of a read that passes COPY's bytes, where the options hold no password: libpq says what it used."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import load_reader
from spark_channel.connectors.postgresql.read import copy_login
from spark_channel.errors import SourceError
from spark_channel.local import LocalEngine
from spark_channel.planning import Endpoint, TransferSpec
from spark_channel.transfers.dispatch import carry_out
from spark_channel.transfers.plan import rehearse
from tests.cli.typed import typed
from tests.connectors.postgresql.pg import Pg
from tests.servers.postgres import USER

_SECRET = r"a:b\c d"
"""What `.pgpass` escapes, and asyncpg's own reading of it does not."""


@pytest.fixture
def role(pg: Pg) -> Iterator[str]:
    name = f"{pg.schema}_etl"
    pg.psql(
        f"CREATE ROLE {name} LOGIN PASSWORD '{_SECRET}'; GRANT USAGE ON SCHEMA {pg.schema} TO {name};"
        f"CREATE TABLE a AS SELECT g AS v FROM generate_series(1, 10) g; GRANT SELECT ON a TO {name}"
    )
    copy_login._logins.clear()
    yield name
    pg.psql(f"DROP OWNED BY {name}; DROP ROLE {name}")


def _reader(pg: Pg, url: str, **options: str) -> Any:
    given = {"url": url, "dbtable": f"{pg.schema}.a", **options}
    return load_reader({"reader": "postgresql", **given})[0]


def _passed(reader: Any) -> int:
    """How many rows arrive as COPY's bytes."""
    reader.schema()
    splits = reader.split(1)
    assert reader.native_rows(splits) is not None, reader.no_native
    reader.native = True
    return sum(batch.num_rows for split in splits for batch in reader.read(split))


def _pgpass(pg: Pg, folder: Path, role: str, secret: str = _SECRET) -> Path:
    file = folder / "pgpass"
    escaped = secret.replace("\\", "\\\\").replace(":", "\\:")
    file.write_text(f"# a remark\n127.0.0.1:{pg.server.port}:*:{role}:{escaped}\n")
    file.chmod(0o600)
    return file


def test_a_password_of_pgpass(
    pg: Pg, role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSFILE", str(_pgpass(pg, tmp_path, role)))
    reader = _reader(pg, pg.server.url, user=role)
    assert _passed(reader) == 10
    pg.psql(f"ALTER ROLE {role} PASSWORD 'renewed'")
    _pgpass(pg, tmp_path, role, "renewed")
    assert _passed(_reader(pg, pg.server.url, user=role)) == 10, "a kept login is looked up again"


def test_a_pgpass_that_others_may_read_is_not_used(
    pg: Pg, role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _pgpass(pg, tmp_path, role)
    monkeypatch.setenv("PGPASSFILE", str(file))
    reader = _reader(pg, pg.server.url, user=role)
    reader.schema()
    splits = reader.split(1)
    file.chmod(0o644)
    assert reader.native_rows(splits) is None
    assert "could not log in" in reader.no_native


def test_a_password_of_the_environment(pg: Pg, role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", _SECRET)
    assert _passed(_reader(pg, pg.server.url, user=role)) == 10


@pytest.mark.parametrize("named", ["url", "environment"])
def test_a_service(
    pg: Pg, role: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "services"
    file.write_text(
        f"[shop]\nhost=127.0.0.1\nport={pg.server.port}\nuser={role}\npassword={_SECRET}\n"
        f"dbname={pg.server.url.rpartition('/')[2]}\n"
    )
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    if named == "environment":
        monkeypatch.setenv("PGSERVICE", "shop")
    url = "postgresql://?service=shop" if named == "url" else "postgresql://"
    assert _passed(_reader(pg, url)) == 10


def test_a_login_without_a_password(pg: Pg, role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "another")
    database = pg.server.url.rpartition("/")[2]
    socket = str(pg.server.directory).replace("/", "%2F")
    url = f"postgresql://{socket}:{pg.server.port}/{database}"
    assert _passed(_reader(pg, url, user=USER)) == 10


def test_a_login_that_libpq_alone_can_do_reads_arrow(
    pg: Pg, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by Kerberos: the server asks for no password, and asyncpg is refused."""
    socket = str(pg.server.directory).replace("/", "%2F")
    reader = _reader(pg, pg.server.url.replace("127.0.0.1", socket), user=USER)
    reader.schema()
    splits = reader.split(1)

    def refused(_purpose: str) -> None:
        raise SourceError("GSSAPI is not there")

    monkeypatch.setattr(reader, "copies", refused)
    assert reader.native_rows(splits) is None
    assert reader.no_native == "a login without a password failed there: GSSAPI is not there"
    rows = pa.Table.from_batches([batch for split in splits for batch in reader.read(split)])
    assert rows.num_rows == 10


def test_options_that_say_all_ask_nothing(pg: Pg, monkeypatch: pytest.MonkeyPatch) -> None:
    pg.psql("CREATE TABLE a AS SELECT 1 AS v")

    def asked(_parameters: object) -> None:
        raise AssertionError("libpq is asked")

    monkeypatch.setattr(copy_login, "_asked", asked)
    assert _passed(pg.reader("a")) == 1


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ("v int", {}, "rows pass as the source's bytes"),
        ("v bigint", {}, "through Arrow: the target's columns take other types"),
        ("v bigint", {"customSchema": "v BIGINT"}, "through Arrow: option 'customSchema' is set"),
        ("v int", {"channel_binding": "prefer"}, "'channel_binding' is known to libpq alone"),
    ],
)
def test_plan_and_report_say_which_way_the_rows_take(
    pg: Pg, columns: str, options: dict[str, str], says: str
) -> None:
    pg.psql(f"CREATE TABLE a AS SELECT 1 AS v; CREATE TABLE b ({columns})")
    given = pg.options(dbtable="a")
    if binding := options.pop("channel_binding", None):
        given["url"] += f"?channel_binding={binding}"
    source = Endpoint("postgresql", {**given, **options})
    spec = TransferSpec(source, Endpoint("postgresql", pg.options(dbtable="b")))
    with ExitStack() as held:
        planned = rehearse(spec, 1, held)[0].path
    assert says in planned
    with LocalEngine() as engine:
        report = carry_out(engine, spec)
    assert report.path == planned


@pytest.mark.parametrize("more", [[], ["-o", "reader.rowsPerSecond=1k"], ["--dry-run"]])
def test_a_table_that_the_login_may_not_read_is_no_changed_table(
    pg: Pg, role: str, tmp_path: Path, more: list[str]
) -> None:
    pg.psql("CREATE TABLE secret (id int PRIMARY KEY); INSERT INTO secret VALUES (1)")
    read = {"user": role, "password": _SECRET, "dbtable": f"{pg.schema}.secret"}
    options = [f"reader.{name}={value}" for name, value in read.items()]
    given = [text for option in (*options, "writer.dbtable=t") for text in ("-o", option)]
    done = typed("copy", pg.server.url, f"sqlite:{tmp_path}/t.db", *given, *more)
    assert done.exit_code == 2
    assert "permission denied for table secret" in str(done.exception)
