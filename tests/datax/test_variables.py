import json
from pathlib import Path

import pytest

from spark_channel.errors import OptionError
from spark_channel.option_types import resolve_references


def test_references_become_values_also_inside_a_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2\n")
    monkeypatch.setenv("DB_HOST", "replica")
    options = {
        "password": f"${{file:{secret}}}",
        "url": "jdbc:mysql://${env:DB_HOST}/shop",
        "rows": 5,
        "q": "$x ${x}",
    }
    assert resolve_references(options) == {
        "password": "hunter2",
        "url": "jdbc:mysql://replica/shop",
        "rows": 5,
        "q": "$x ${x}",
    }


def test_a_value_inside_json_stays_one_text_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = 'a "quoted" \\ text, {"and": "more"}'
    monkeypatch.setenv("SECRET", secret)
    given = {
        "storageOptions": '{"key": "${env:SECRET}", "nested": ["x ${env:SECRET}", 1.10, null], "n": 1E3}',
        "sql": "[${env:SECRET}]",
        "whole": "${env:SECRET}",
    }
    made = resolve_references(given)
    found = json.loads(made["storageOptions"])
    assert (found["key"], found["nested"][0]) == (secret, f"x {secret}")
    assert "1.10, null" in made["storageOptions"]
    assert (made["sql"], made["whole"]) == (f"[{secret}]", secret)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (
            "${env:NOT_SET_ANYWHERE}",
            "option 'password': the environment variable NOT_SET_ANYWHERE is not set",
        ),
        ("${file:/no/such/file}", "option 'password': /no/such/file cannot be read: No such file"),
    ],
)
def test_a_reference_that_leads_nowhere_is_named(reference: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        resolve_references({"password": reference})
