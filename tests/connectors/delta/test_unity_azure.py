"""Delta tables of Unity Catalog on Azure: a signed url, which the emulator checks, with its rights and its end."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("obstore")

from spark_channel.connectors import WriteContext
from spark_channel.errors import ChannelError
from tests.connectors.delta.helpers import numbers, read, stage, write, writer_of
from tests.servers.stores import BUCKET, TemporaryKeys, azure_key, start_azure
from tests.servers.unity import TOKEN, UnityServer
from tests.servers.web import web_server

ACCOUNT = "devstoreaccount1"


def signed(operation: str, expires: float) -> dict[str, Any]:
    """A signature of the account: the emulator knows no user's."""
    rights = "rwdlac" if operation == "READ_WRITE" else "rl"
    end = datetime.fromtimestamp(expires, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    given = {
        "sp": rights,
        "ss": "b",
        "srt": "sco",
        "se": end,
        "spr": "https,http",
        "sv": "2018-11-09",
    }
    text = "\n".join([ACCOUNT, rights, "b", "sco", "", end, "", "https,http", "2018-11-09", ""])
    proof = hmac.new(base64.b64decode(azure_key()), text.encode(), hashlib.sha256).digest()
    sas = urlencode({**given, "sig": base64.b64encode(proof).decode()})
    return {"azure_user_delegation_sas": {"sas_token": sas}}


@pytest.fixture(scope="module")
def unity() -> Iterator[UnityServer]:
    with start_azure() as azure, web_server() as web, pytest.MonkeyPatch.context() as patch:
        patch.delenv("AZURE_STORAGE_ACCOUNT_KEY", raising=False)
        patch.setenv("AZURITE_BLOB_STORAGE_URL", azure.environment["AZURITE_BLOB_STORAGE_URL"])
        found = UnityServer(web, TemporaryKeys(0), azure.port, vend=signed)
        web.answer = found.answer
        yield found


def _table(unity: UnityServer, name: str) -> tuple[str, dict[str, Any]]:
    place = f"abfss://{BUCKET}@{ACCOUNT}.dfs.core.windows.net/unity/{name}"
    settings = {
        "unity_workspace_url": unity.url,
        "unity_access_token": TOKEN,
        "unity_allow_http_url": "true",
        "azure_storage_endpoint": f"http://127.0.0.1:{unity.s3_port}/{ACCOUNT}",
        "allow_http": "true",
        "azure_storage_use_emulator": "true",  # it lists in another way
    }
    return unity.add(name, storage_location=place), {"storageOptions": json.dumps(settings)}


def test_a_table_is_written_and_read(unity: UnityServer) -> None:
    uri, more = _table(unity, "main.azure.one")
    unity.vended.clear()
    write(uri, pa.table({"p": ["a", "b"], "id": [1, 2]}), partitionBy="p", **more)
    write(uri, pa.table({"p": ["b"], "id": [3]}), overwrite=True, replaceWhere="p = 'b'", **more)
    assert set(unity.vended) == {"READ_WRITE"}
    assert sorted(read(uri, **more)["id"].to_pylist()) == [1, 3]
    assert unity.vended[-1] == "READ"
    lake: Any = writer_of(uri, **more)
    lake = lake.lake()
    notes = lake.store.entries(f"{lake.base}/_spark_channel", recursive=True)
    assert [each.path for each in notes if each.is_file] == []


def test_rights_and_ends_are_checked(unity: UnityServer) -> None:
    """By the emulator, for the log and for the files: the other tests would prove little if it took any signature."""
    uri, more = _table(unity, "main.azure.checked")
    write(uri, numbers(1), **more)
    place = unity.tables["main.azure.checked"]["storage_location"]
    try:
        unity.vend = lambda _, expires: signed("READ", expires)
        with pytest.raises(ChannelError):
            write(unity.add("main.azure.other", storage_location=place), numbers(2), **more)
        unity.vend = lambda _, __: signed("READ", time.time() - 60)
        with pytest.raises((ChannelError, OSError)):
            read(unity.add("main.azure.late", storage_location=place), **more)
    finally:
        unity.vend = signed
    assert read(uri, **more).to_pydict() == {"id": [1]}


def test_signatures_are_renewed(unity: UnityServer) -> None:
    uri, more = _table(unity, "main.azure.renewed")
    unity.life = 4.0
    try:
        unity.vended.clear()
        out = writer_of(uri, **more)
        plan, receipts = stage(out, [numbers(1)], WriteContext("slow"))
        time.sleep(5)
        out.commit(plan, receipts)
        assert len(unity.vended) >= 2
    finally:
        unity.life = 3600.0
    assert read(uri, **more).to_pydict() == {"id": [1]}
