"""Credentials and addresses of Unity Catalog, without a server."""

import os
from typing import Any

import pytest

from spark_channel.connectors.unity.credentials import Credentials, credentials_of
from spark_channel.connectors.unity.workspace import Workspace, without_workspace
from spark_channel.errors import OptionError

HOUR = 3600.0


@pytest.fixture(autouse=True)
def _no_catalog_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("UNITY_", "DATABRICKS_")):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(("life", "due"), [(HOUR, HOUR - 600), (1800.0, 1200.0), (30.0, 20.0)])
def test_new_credentials_are_asked_for_early(life: float, due: float) -> None:
    found = Credentials((), received=0.0, expires=life)
    assert not found.is_due(due - 1)
    assert found.is_due(due)
    assert not found.has_expired(life - 1)
    assert found.has_expired(life)


def test_credentials_without_an_end_are_kept() -> None:
    found = Credentials((), received=0.0, expires=0.0)
    assert not found.is_due(1e12)
    assert not found.has_expired(1e12)


@pytest.mark.parametrize(
    ("answer", "scheme", "settings"),
    [
        (
            {"azure_user_delegation_sas": {"sas_token": "s"}},
            "abfss",
            {"azure_storage_sas_key": "s"},
        ),
        ({"azure_aad": {"aad_token": "t"}}, "abfss", {"azure_storage_token": "t"}),
        (
            {"aws_temp_credentials": {"access_key_id": "a", "secret_access_key": "b"}},
            "s3",
            {"aws_access_key_id": "a", "aws_secret_access_key": "b"},
        ),
        ({"aws_temp_credentials": {"access_key_id": "a"}}, "s3", None),
        ({"azure_user_delegation_sas": {"sas_token": "s"}}, "s3", None),
        ({"gcp_oauth_token": {"oauth_token": "t"}, "aws_temp_credentials": None}, "s3", None),
    ],
)
def test_credentials_of_an_answer(
    answer: dict[str, Any], scheme: str, settings: dict[str, str] | None
) -> None:
    found = credentials_of({**answer, "expiration_time": 7_200_000}, scheme, HOUR)
    assert (None if found is None else dict(found.settings)) == settings
    assert found is None or (found.received, found.expires) == (HOUR, 7200.0)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        (
            "https://adb-1.azuredatabricks.net/",
            "https://adb-1.azuredatabricks.net/api/2.1/unity-catalog",
        ),
        ("adb-1.azuredatabricks.net", "https://adb-1.azuredatabricks.net/api/2.1/unity-catalog"),
        ("https://h:8443/api/2.1/unity-catalog", "https://h:8443/api/2.1/unity-catalog"),
        ("https://h/proxied", "https://h/proxied/api/2.1/unity-catalog"),
    ],
)
def test_addresses(given: str, url: str) -> None:
    assert Workspace.of({"Databricks_Host": given, "databricks_token": "t"}).url == url


@pytest.mark.parametrize(
    "given", ["ftp://h", "https://", "https://ann:s3cret@h", "https://h?o=s3cret"]
)
def test_addresses_that_are_refused(given: str) -> None:
    with pytest.raises(OptionError, match="it takes https://host") as caught:
        Workspace.of({"databricks_host": given, "databricks_token": "t"})
    assert "s3cret" not in str(caught.value)


def test_an_option_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNITY_WORKSPACE_URL", "https://of-the-environment")
    monkeypatch.setenv("UNITY_ACCESS_TOKEN", "t")
    assert "of-the-environment" in Workspace.of({}).url
    assert "given" in Workspace.of({"databricks_host": "https://given"}).url


def test_the_stores_settings_are_the_others() -> None:
    given = {
        "unity_access_token": "t",
        "DATABRICKS_HOST": "h",
        "allow_http_url": "true",
        "AWS_REGION": "r",
    }
    assert without_workspace(given) == {"aws_region": "r"}
