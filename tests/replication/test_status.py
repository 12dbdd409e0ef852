"""The following of tables is ended by the file: its slot, checkpoints and claims; what `status` says of it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from spark_channel.connectors import load_reader
from spark_channel.errors import ChannelError
from spark_channel.replication.config import load_replication
from spark_channel.replication.reasons import shared_reasons
from spark_channel.replication.status import end_tables, status_of
from spark_channel.tunnel import Tunnel
from tests.cli.typed import typed
from tests.replication.test_changes import Followed, followed
from tests.servers.postgres import PostgresServer

__all__ = ["followed"]


def file_of(followed: Followed, folder: Path) -> str:
    path = folder / "shop files.yml"
    path.write_text(yaml.safe_dump(followed.file))
    return str(path)


def claims(followed: Followed) -> int:
    """Streams of changes that the target has claims of."""
    with_rows = {**followed.target, "query": "SELECT name FROM spark_channel_claims"}
    reader, _ = load_reader(with_rows)
    names = [
        name for split in reader.split(1) for batch in reader.read(split) for name in batch["name"]
    ]
    return sum(str(name).startswith("replicate/changes/") for name in names)


def slots(followed: Followed) -> str:
    text = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'fol'"
    return str(followed.sql(text)) if followed.source.get("slot") else "-"


def test_a_schema_is_ended_by_its_file(followed: Followed, tmp_path: Path) -> None:
    file = file_of(followed, tmp_path)
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x'); INSERT INTO fol.b VALUES (7)")
    followed.run()
    assert claims(followed) == 2
    shown = typed("replicate", "status", file).output
    assert f"spark-channel replicate end '{file}'" in shown
    assert f"tunnel: {file}\n" in shown
    assert ("of its log for them" in shown) == (slots(followed) == "1")
    done = typed("replicate", "end", file)
    assert done.exit_code == 0, done.output
    assert "fol.a, fol.b: following is ended" in done.output
    assert ("slot fol is dropped" in done.output) == ("slot" in followed.source)
    assert slots(followed) in ("0", "-")
    assert claims(followed) == 0
    assert [each.state for each in status_of(load_replication(file))] == ["not followed"] * 2
    assert followed.rows("a", "id, n, s") == [(1, 1, "x")]
    assert "nothing to end" in typed("replicate", "end", file).output
    followed.sql("INSERT INTO fol.a VALUES (2, 2, 'y')")
    followed.run()
    assert followed.rows("a", "id") == [(1,), (2,)]


def test_one_table_is_ended_and_the_other_goes_on(followed: Followed, tmp_path: Path) -> None:
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x'); INSERT INTO fol.b VALUES (7)")
    followed.run()
    file = file_of(followed, tmp_path)
    done = typed("replicate", "end", file, "fol.a")
    assert done.exit_code == 0, done.output
    assert "fol.a is followed no more: take it out of the file" in done.output
    assert claims(followed) == 1
    states = [each.state for each in status_of(load_replication(file))]
    assert states == ["not followed", "followed"]
    assert slots(followed) in ("1", "-")
    del followed.streams["fol.a"]
    followed.sql("INSERT INTO fol.a VALUES (2, 2, 'y'); INSERT INTO fol.b VALUES (8)")
    followed.run()
    assert followed.rows("b", "id") == [(7,), (8,)]
    assert followed.rows("a", "id") == [(1,)]
    followed.streams["fol.a"] = {}
    followed.sql("DELETE FROM fol.a WHERE id = 1")
    followed.run()
    assert followed.rows("a", "id") == [(2,)]
    ended = end_tables(load_replication(file), ["fol.a", "fol.b"])
    assert ended.is_whole
    assert slots(followed) in ("0", "-")


def test_the_tunnel_takes_the_file(followed: Followed, tmp_path: Path) -> None:
    file = file_of(followed, tmp_path)
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x')")
    followed.run()
    shown = typed("tunnel", "describe", file, "--output", "json")
    assert shown.exit_code == 0, shown.output
    assert "fol.a" in shown.output
    assert typed("tunnel", "resnapshot", file, "--table", "fol.a").exit_code == 0
    assert typed("tunnel", "delete", file, "--yes").exit_code == 0
    assert slots(followed) in ("0", "-")
    assert typed("tunnel", "describe", file).exit_code == 1


def test_status_shows_rows_that_are_read_again(followed: Followed, tmp_path: Path) -> None:
    file = file_of(followed, tmp_path)
    assert [each.state for each in status_of(load_replication(file))] == ["not copied"] * 2
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x'); INSERT INTO fol.b VALUES (7)")
    followed.run()
    assert typed("tunnel", "resnapshot", file, "--table", "fol.a").exit_code == 0
    again, other = status_of(load_replication(file))
    assert (again.state, other.state, other.lag_rows) == ("reading rows", "followed", 0)
    assert again.lag_rows is None or again.lag_rows > 0
    assert (again.rows, other.rows) == (1, 1)  # of the last write, before
    shown = typed("replicate", "status", file).output
    assert "existing rows, not counted" in shown or "about " in shown
    followed.run()
    assert [each.state for each in status_of(load_replication(file))] == ["followed"] * 2


def test_status_keeps_what_the_target_knows(
    followed: Followed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the source does not say how far the tables are behind, and where the file has another table."""
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x'); INSERT INTO fol.b VALUES (7)")
    followed.run()
    file = file_of(followed, tmp_path)
    before = status_of(load_replication(file))
    assert [(each.state, each.rows) for each in before] == [("followed", 1)] * 2
    describe = Tunnel.describe

    def without_source(tunnel: Tunnel) -> Any:
        if tunnel._options:
            raise ChannelError("the source has no answer")
        return describe(tunnel)

    monkeypatch.setattr(Tunnel, "describe", without_source)
    found = status_of(load_replication(file))
    assert [(each.state, each.rows, each.published_at) for each in found] == [
        (each.state, each.rows, each.published_at) for each in before
    ]
    assert {each.why for each in found} == {"the source has no answer"}


def test_tables_without_a_publication_have_one_statement(
    postgres_server: PostgresServer,
    followed: Followed,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if "slot" not in followed.source:
        pytest.skip("MariaDB has no publications")
    followed.sql("DROP PUBLICATION fol")
    file = file_of(followed, tmp_path)
    report = followed.run(code=3)
    statement = "CREATE PUBLICATION fol FOR TABLE fol.a, fol.b"
    assert {each.why.partition(": run ")[2] for each in report.parked} == {statement}
    assert [line for line in caplog.messages if "is parked" in line] == []
    followed.sql(statement)
    followed.run()
    assert typed("replicate", "status", file).exit_code == 0


def test_reasons_that_differ_by_the_name_are_one() -> None:
    reasons = {
        "shop.a": "grant it with GRANT SELECT ON shop.a TO etl",
        "shop.a.b": "other",
        "shop.b": "grant it with GRANT SELECT ON shop.b TO etl",
        "c": "the server is away",
        "d": "the server is away",
        "e.f": "run ADD TABLE e.f",
        "e.G h": 'run ADD TABLE e."G h"',
    }
    assert shared_reasons(reasons.items()) == [
        (("shop.a", "shop.b"), "grant it with GRANT SELECT ON shop.a, shop.b TO etl"),
        (("shop.a.b",), "other"),
        (("c", "d"), "the server is away"),
        (("e.f", "e.G h"), 'run ADD TABLE e.f, e."G h"'),
    ]


def test_numbers_go_on_behind_the_rows_when_a_table_is_drained_and_when_it_is_ended(
    followed: Followed, tmp_path: Path
) -> None:
    """The target is the user's: with a column that counts, as the application wants it after the cut over."""
    if "publication" in followed.source:
        counts = "GENERATED BY DEFAULT AS IDENTITY"
    else:
        counts = "AUTO_INCREMENT"
        followed.sql("DROP DATABASE IF EXISTS fol_dw; CREATE DATABASE fol_dw")
        followed.target = {**followed.source, "url": followed.source["url"] + "_dw"}
        followed.target.pop("heartbeatInterval")
        followed.target.pop("maxRetryInterval")
        followed.source["tunnelStore"] = str(tmp_path / "tunnel.db")
    followed.sql(f"CREATE TABLE fol_dw.t_a (id INT {counts} PRIMARY KEY, n INT, s VARCHAR(20))")
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x'), (41, 2, 'y')")
    followed.run()
    followed.sql("INSERT INTO fol_dw.t_a (s) VALUES ('drained')")
    assert followed.rows("a", "id, s")[-1] == (42, "drained")
    followed.sql("INSERT INTO fol.a VALUES (60, 3, 'z')")
    followed.run()
    if counts != "AUTO_INCREMENT":  # MariaDB does not count back below its rows
        # As a run leaves it that applied the rows, and was stopped or killed before its end.
        followed.sql("ALTER TABLE fol_dw.t_a ALTER COLUMN id RESTART WITH 5")
        assert all(not each.rows for each in followed.run().tables)
        followed.sql("INSERT INTO fol_dw.t_a (s) VALUES ('unchanged')")
        assert followed.rows("a", "id, s")[-1] == (61, "unchanged")
        followed.sql("DELETE FROM fol_dw.t_a WHERE id = 61")
        followed.sql("ALTER TABLE fol_dw.t_a ALTER COLUMN id RESTART WITH 5")
    done = typed("replicate", "end", file_of(followed, tmp_path))
    assert done.exit_code == 0, done.output
    followed.sql("INSERT INTO fol_dw.t_a (s) VALUES ('ended')")
    assert followed.rows("a", "id, s")[-1] == (61, "ended")


def test_an_end_whose_target_does_not_answer_can_be_repeated(
    followed: Followed, tmp_path: Path
) -> None:
    """The tunnel and the slot stay until the numbers of the targets count on behind their rows."""
    if "publication" not in followed.source:
        pytest.skip("the target is a file")
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x')")
    followed.run()
    there = followed.target
    followed.target = {**there, "password": "another"}
    refused = typed("replicate", "end", file_of(followed, tmp_path))
    assert refused.exit_code != 0, refused.output
    assert slots(followed) == "1"
    followed.target = there
    done = typed("replicate", "end", file_of(followed, tmp_path))
    assert "fol.a, fol.b: following is ended" in done.output, done.output
    assert slots(followed) == "0"
