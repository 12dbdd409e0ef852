"""Parameters in statements for databases that number theirs."""

import pytest

from spark_channel.connectors.sql.statements import marked


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("SELECT 1", "SELECT 1"),
        ("a = ? AND b = ?", "a = $1 AND b = $2"),
        ('INSERT INTO "what?"."t""?" VALUES (?, ?)', 'INSERT INTO "what?"."t""?" VALUES ($1, $2)'),
        (
            "UPDATE `my?` SET a = ? WHERE b = 'it''s?' AND c = ?",
            "UPDATE `my?` SET a = $1 WHERE b = 'it''s?' AND c = $2",
        ),
    ],
)
def test_marks_outside_quotes_are_numbered(sql: str, wanted: str) -> None:
    assert marked(sql, lambda number: f"${number}") == wanted
