"""Project Nessie, a catalog of Iceberg tables with branches, whose tables are on SeaweedFS."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from tests.servers.installed import EVERY, installed
from tests.servers.ports import free_port
from tests.servers.process import process_at_port
from tests.servers.seaweedfs import start_seaweedfs

__all__ = ["Nessie", "start_nessie"]

_BUCKET = "lake"
_KEYS = "tests.keys"


@dataclass(frozen=True)
class Nessie:
    """`properties` are those of a client, with the login of the store."""

    uri: str
    properties: Mapping[str, str]


@contextmanager
def start_nessie() -> Iterator[Nessie]:
    """Nessie with the branch `main`, in memory; it takes ten seconds."""
    home = installed("nessie", "org.projectnessie.nessie:nessie-quarkus of Maven", by=EVERY)
    (jar,) = home.glob("nessie-quarkus-*-runner.jar")
    with start_seaweedfs(_BUCKET) as store:
        port, endpoint = free_port(), f"http://127.0.0.1:{store.port}"
        user, secret = (
            store.environment[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        )
        s3 = "nessie.catalog.service.s3.default-options"
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": port,
            "quarkus.management.host": "127.0.0.1",
            "quarkus.management.port": free_port(),
            "quarkus.log.level": "ERROR",
            "quarkus.otel.sdk.disabled": "true",
            "nessie.version.store.type": "IN_MEMORY",
            "nessie.catalog.default-warehouse": "shop",
            "nessie.catalog.warehouses.shop.location": f"s3://{_BUCKET}/warehouse",
            f"{s3}.endpoint": endpoint,
            f"{s3}.path-style-access": "true",
            f"{s3}.region": "us-east-1",
            f"{s3}.request-signing-enabled": "false",
            f"{s3}.access-key": f"urn:nessie-secret:quarkus:{_KEYS}",
            f"{_KEYS}.name": user,
            f"{_KEYS}.secret": secret,
        }
        command = [
            str(home / "java/bin/java"),
            "-Xmx512m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            *(f"-D{name}={value}" for name, value in settings.items()),
            "-jar",
            str(jar),
        ]
        with process_at_port(command, port, seconds=240):
            yield Nessie(
                f"http://127.0.0.1:{port}/iceberg/main",
                {
                    "s3.endpoint": endpoint,
                    "s3.access-key-id": user,
                    "s3.secret-access-key": secret,
                    "s3.region": "us-east-1",
                },
            )
