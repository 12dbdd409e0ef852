"""Columns of followed tables that have other names, and that no change in the log shows."""

import pytest

from spark_channel.replication.config import load_replication
from spark_channel.replication.status import status_of
from spark_channel.tunnel import Tunnel
from tests.replication.test_changes import Followed, columns, followed

__all__ = ["followed"]

pytestmark = pytest.mark.timeout(120)

PLANTED = "INSERT INTO fol.a VALUES (1, 1, 'x'), (2, 2, 'y'); INSERT INTO fol.b VALUES (1)"
only_postgres = pytest.mark.parametrize("followed", ["postgresql"], indirect=True)


def read_again(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables whose rows are read again from now on."""
    read, again = Tunnel.resnapshot, []

    def resnapshot(tunnel: Tunnel, table: str) -> None:
        again.append(table)
        read(tunnel, table)

    monkeypatch.setattr(Tunnel, "resnapshot", resnapshot)
    return again


def test_a_renamed_column_without_a_later_row_has_its_new_name(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of before the new name are in the log, and come first."""
    followed.sql(PLANTED)
    followed.run()
    followed.sql("INSERT INTO fol.a VALUES (3, 3, 'z'); ALTER TABLE fol.a RENAME COLUMN n TO m")
    again = read_again(monkeypatch)
    followed.run()
    assert followed.rows("a", "id, m, s") == [(1, 1, "x"), (2, 2, "y"), (3, 3, "z")]
    is_known = "publication" in followed.source
    assert ("n" in columns(followed, "a")) != is_known
    assert len(again) == (0 if is_known else 1)
    assert followed.run().rows == 0
    followed.sql("INSERT INTO fol.a VALUES (4, 4, NULL)")
    assert followed.run().rows == 1
    assert followed.rows("a", "id, m")[3] == (4, 4)
    (done,) = [each.columns for each in status_of(load_replication(followed.file)) if each.columns]
    assert done == (
        "renamed in the target: 'n' to 'm'" if is_known else "column 'm' added to the target"
    )


def test_a_new_column_without_a_later_row_has_its_values(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed.sql(PLANTED)
    followed.run()
    followed.sql("ALTER TABLE fol.a ADD COLUMN d INT DEFAULT 7 NOT NULL")
    again = read_again(monkeypatch)
    followed.run()
    assert len(again) == 1
    assert followed.rows("a", "id, d") == [(1, 7), (2, 7)]
    assert followed.run().rows == 0


@only_postgres
def test_columns_that_swapped_their_names_without_a_later_row_are_read_again(
    followed: Followed,
) -> None:
    swap = "; ".join(f"ALTER TABLE fol.a RENAME {each}" for each in ("n TO t", "m TO n", "t TO m"))
    followed.sql("ALTER TABLE fol.a ADD m int; INSERT INTO fol.a VALUES (1, 1, 'x', 10)")
    followed.run()
    followed.sql(swap)
    followed.run()
    assert followed.rows("a", "id, n, m") == [(1, 10, 1)]
    followed.sql(f"INSERT INTO fol.a (id, n, m) VALUES (2, 20, 2); {swap}")
    followed.run()
    assert followed.rows("a", "id, n, m") == [(1, 1, 10), (2, 2, 20)]
    assert followed.run().rows == 0


@only_postgres
def test_a_name_that_another_column_has_now_without_a_later_row_has_none_of_its_values(
    followed: Followed,
) -> None:
    followed.sql(PLANTED)
    followed.run()
    followed.sql("ALTER TABLE fol.a RENAME n TO m; ALTER TABLE fol.a ADD n int")
    followed.run()
    assert followed.rows("a", "id, n, m") == [(1, None, 1), (2, None, 2)]


@only_postgres
def test_a_masked_column_with_another_name_is_not_shown_without_a_later_row(
    followed: Followed,
) -> None:
    followed.more |= {"columns": {"*.s": "sha256"}}
    followed.sql(PLANTED)
    followed.run()
    followed.sql("ALTER TABLE fol.a RENAME s TO note; INSERT INTO fol.b VALUES (2)")
    assert "'s', which has mask sha256, was renamed to 'note'" in followed.run(3).parked[0].why
    assert columns(followed, "a") == ["id", "n", "s"]
    assert followed.rows("b", "id") == [(1,), (2,)]
    followed.more["columns"]["*.note"] = "sha256"
    followed.run()
    assert columns(followed, "a") == ["id", "n", "note"]


@only_postgres
def test_a_frozen_target_gets_no_other_name(followed: Followed) -> None:
    followed.more["contract"] = {"columns": "freeze"}
    followed.sql(PLANTED)
    followed.run()
    followed.sql("ALTER TABLE fol.a RENAME n TO m")
    assert 'RENAME COLUMN "n" TO "m"' in followed.run(3).parked[0].why
    followed.sql('ALTER TABLE fol_dw.t_a RENAME COLUMN "n" TO "m"')
    followed.run()
    assert followed.rows("a", "id, m") == [(1, 1), (2, 2)]


def test_rows_whose_key_has_another_mask_are_read_again(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By other keys the target's rows are not found: each would be there twice after its next change."""
    monkeypatch.setenv("PII_KEY", "0123456789abcdef0123")
    followed.more["columns"] = {"id": "hmac(${env:PII_KEY})"}
    followed.sql(PLANTED)
    followed.run()
    before = {key for key, _ in followed.rows("a", "id, n")}
    monkeypatch.setenv("PII_KEY", "abcdef0123456789abcd")
    followed.sql("UPDATE fol.a SET n = 10 WHERE id = 1")
    followed.run()
    rows = followed.rows("a", "id, n")
    assert sorted(n for _, n in rows) == [2, 10]
    assert before.isdisjoint(key for key, _ in rows)
    again = read_again(monkeypatch)
    followed.run()
    assert again == []


@pytest.mark.parametrize("deletes", ["soft", "scd2"])
def test_rows_that_are_read_again_change_those_without_an_end(
    followed: Followed, deletes: str
) -> None:
    followed.more["deletes"] = deletes
    followed.sql(PLANTED)
    followed.run()
    followed.sql("UPDATE fol.a SET n = 10 WHERE id = 1")
    followed.run()
    followed.sql("ALTER TABLE fol.a ADD COLUMN w INT NOT NULL DEFAULT 7")
    followed.sql("UPDATE fol.a SET w = 8 WHERE id = 1")
    followed.run()
    end = "_valid_to" if deletes == "scd2" else "_deleted_at"
    rows = followed.rows("a", f"id, n, w, {end}")
    assert [row[:3] for row in rows if row[-1] is None] == [(1, 10, 8), (2, 2, 7)]
    assert len(rows) == (4 if deletes == "scd2" else 2)


@only_postgres
@pytest.mark.parametrize(
    ("change", "rows"),
    [
        (
            "ALTER TYPE fol.mood RENAME VALUE 'ok' TO 'fine'",
            [(1, "fine", "(fine,1)"), (2, "sad", None)],
        ),
        (
            "ALTER TYPE fol.both ADD ATTRIBUTE more text CASCADE",
            [(1, "ok", "(ok,1,)"), (2, "sad", None)],
        ),
        ("ALTER TYPE fol.mood ADD VALUE 'glad'", None),
        ("ALTER TYPE fol.both RENAME ATTRIBUTE n TO k CASCADE", None),
        ("ALTER DOMAIN fol.feeling SET DEFAULT 'ok'", None),
    ],
)
def test_a_type_that_reads_existing_values_otherwise(
    followed: Followed,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    rows: list[tuple[object, ...]] | None,
) -> None:
    """No row is in the log then. A change of the type by which each value stays reads no row again."""
    followed.sql(
        "CREATE TYPE fol.mood AS ENUM ('sad', 'ok'); CREATE DOMAIN fol.feeling AS fol.mood;"
        "CREATE TYPE fol.both AS (m fol.mood, n int);"
        "ALTER TABLE fol.a DROP n, DROP s, ADD f fol.feeling, ADD c fol.both;"
        "INSERT INTO fol.a VALUES (1, 'ok', '(ok,1)'), (2, 'sad', NULL)"
    )
    followed.run()
    before = followed.rows("a", "id, f, c")
    assert before[0][1] == "ok"
    followed.sql(change)
    again = read_again(monkeypatch)
    followed.run()
    assert len(again) == (rows is not None)
    assert followed.rows("a", "id, f, c") == (rows or before)
    assert followed.run().rows == 0
