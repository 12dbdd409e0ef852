"""An Iceberg REST catalog whose tables are in an S3 emulator, with temporary credentials per table."""

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog

from tests.servers.iceberg_rest import TOKEN, RestCatalogServer, serve
from tests.servers.stores import BUCKET, TemporaryKeys, start_checked_s3

__all__ = ["VendingCatalog", "vending_catalog"]

_names = itertools.count(1)


@dataclass
class VendingCatalog:
    """`catalog` is the server's own, with keys that hold forever. `prefixed`: by the list `storage-credentials`."""

    server: RestCatalogServer
    catalog: Catalog
    keys: TemporaryKeys
    life: float = 3600.0
    prefixed: bool = False
    secrets: list[str] = field(default_factory=list)

    def options(self, table: str) -> dict[str, str]:
        """The client has a token for the catalog, and no credentials of the store."""
        login = {"type": "rest", "uri": self.server.uri, "token": TOKEN}
        return {"dbtable": table, "catalogProperties": json.dumps(login)}

    def vend(self) -> dict[str, Any]:
        number = next(_names)
        name, secret, token = f"ASIAV{number}", f"s3cret-v{number}", f"session-v{number}"
        self.keys.issue(name, token, expires=time.time() + self.life, writes=True)
        self.secrets += [secret, token]
        login = {
            "s3.access-key-id": name,
            "s3.secret-access-key": secret,
            "s3.session-token": token,
        }
        place = {"s3.endpoint": f"http://127.0.0.1:{self.keys.port}", "s3.region": "us-east-1"}
        if self.prefixed:
            return {
                "config": place,
                "storage-credentials": [{"prefix": f"s3://{BUCKET}", "config": {**place, **login}}],
            }
        return {"config": {**place, **login}}


@contextmanager
def vending_catalog(path: Path) -> Iterator[VendingCatalog]:
    with start_checked_s3() as keys:
        keys.issue("AKIAserver", "", expires=time.time() + 86_400, writes=True)
        own = {
            "s3.endpoint": f"http://127.0.0.1:{keys.port}",
            "s3.region": "us-east-1",
            "s3.access-key-id": "AKIAserver",
            "s3.secret-access-key": "x",
        }
        place = {"uri": f"sqlite:///{path}/catalog.db", "warehouse": f"s3://{BUCKET}/warehouse"}
        catalog = load_catalog("server", type="sql", **place, **own)
        catalog.create_namespace("shop")
        try:
            with serve(catalog) as server:
                found = VendingCatalog(server, catalog, keys)
                server.vend = found.vend
                yield found
        finally:
            catalog.close()
