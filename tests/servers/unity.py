"""A Unity Catalog of the tests' own: two requests of its REST API over real HTTP, for tables in an S3 emulator.

The credentials that it vends hold for `life` seconds, and the emulator checks them: see `stores.TemporaryKeys`.
"""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.servers.stores import BUCKET, TemporaryKeys, start_s3
from tests.servers.web import Answer, Asked, WebServer, as_json, web_server

__all__ = ["TOKEN", "UnityServer", "unity_server"]

TOKEN = "dapi-t0ken-of-ann"
_API = "/api/2.1/unity-catalog"
_names = itertools.count(1)


@dataclass
class UnityServer:
    """`tables`: what the catalog says of each. `vended`: the operation of each request for credentials."""

    web: WebServer
    keys: TemporaryKeys
    s3_port: int
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    vended: list[str] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    vend: Callable[[str, float], dict[str, Any]] = lambda operation, expires: {}
    """(operation, the end of their life) -> the part of the answer with credentials."""
    life: float = 3600.0
    refuses: Answer | None = None
    """The answer to requests for credentials, in place of them."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.web.port}"

    def add(self, name: str, **more: Any) -> str:
        """Register a Delta table; gives its address."""
        place = f"s3://{BUCKET}/unity/{name}"
        found = {
            "table_id": f"id-of-{name}",
            "storage_location": place,
            "data_source_format": "DELTA",
        }
        self.tables[name] = {
            **found,
            "table_type": "EXTERNAL",
            "name": name.rpartition(".")[2],
            **more,
        }
        return f"uc://{name}"

    def settings(self, **more: str) -> dict[str, str]:
        return {
            "unity_workspace_url": self.url,
            "unity_access_token": TOKEN,
            "unity_allow_http_url": "true",
            "aws_endpoint": f"http://127.0.0.1:{self.s3_port}",
            "allow_http": "true",
            **more,
        }

    def options(self, **more: str) -> dict[str, Any]:
        return {"storageOptions": json.dumps(self.settings(**more))}

    def answer(self, asked: Asked) -> Answer:
        if asked.headers.get("authorization") != f"Bearer {TOKEN}":
            return as_json(
                {"error_code": "UNAUTHENTICATED", "message": "the token is not known"}, 401
            )
        if asked.method == "GET" and asked.path.startswith(f"{_API}/tables/"):
            name = asked.path.rpartition("/")[2]
            found = self.tables.get(name)
            missing = {
                "error_code": "TABLE_DOES_NOT_EXIST",
                "message": f"Table '{name}' does not exist.",
            }
            return as_json(missing, 404) if found is None else as_json(found)
        if asked.method == "POST" and asked.path == f"{_API}/temporary-table-credentials":
            return self.refuses or self._vend(json.loads(asked.body))
        return as_json({"error_code": "ENDPOINT_NOT_FOUND", "message": asked.path}, 404)

    def _vend(self, body: dict[str, str]) -> Answer:
        if body["table_id"] not in {each["table_id"] for each in self.tables.values()}:
            return as_json({"error_code": "TABLE_DOES_NOT_EXIST", "message": body["table_id"]}, 404)
        expires = time.time() + self.life
        self.vended.append(body["operation"])
        vended = self.vend(body["operation"], expires)
        return as_json({**vended, "expiration_time": int(expires * 1000), "url": "s3://"})

    def vend_keys(self, operation: str, expires: float) -> dict[str, Any]:
        """Of S3."""
        number = next(_names)
        name, secret, token = f"ASIA{number}", f"s3cret-{number}", f"session-t0ken-{number}"
        self.keys.issue(name, token, expires=expires, writes=operation == "READ_WRITE")
        self.secrets += [secret, token]
        return {
            "aws_temp_credentials": {
                "access_key_id": name,
                "secret_access_key": secret,
                "session_token": token,
            }
        }


@contextmanager
def unity_server() -> Iterator[UnityServer]:
    with start_s3(checked=True) as s3, web_server() as web:
        found = UnityServer(web, TemporaryKeys(s3.port), s3.port)
        found.vend, web.answer = found.vend_keys, found.answer
        yield found
