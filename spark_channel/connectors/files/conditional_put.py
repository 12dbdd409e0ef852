"""Conditional puts: an object is written only if no object has its name, which the store decides in one step.

`pyarrow.fs` has none, so S3 (`If-None-Match`), GCS (`x-goog-if-generation-match`) and Azure (`If-None-Match`) are asked
through obstore, with the same environment, roles and settings as the rest.
"""

import os
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from spark_channel.connectors.files.credentials import StorageCredentials
from spark_channel.connectors.files.filesystem import Location, azure_account, azure_key
from spark_channel.errors import MissingPackageError, UnsupportedError
from spark_channel.requirements import check_versions
from spark_channel.retry import Retry

if TYPE_CHECKING:
    from obstore.store import AzureStore, GCSStore, S3Store

__all__ = ["check_conditional", "put", "put_new", "remove_many"]

_CUT_OFF = "HTTP error:"
"""What obstore says of a request without an answer, where it does not send it again by itself."""
_CUT_OFF_SECONDS = 60.0
_INSTEAD = (
    "Write to a local or shared disk with hard links, to S3, GCS or Azure, or let Spark write the files: "
    'df.write.parquet(...) of spark.read.format("channel")'
)
_NOT_IMPLEMENTED = re.compile(r"status code: 501\b|<Code>NotImplemented</Code>")
"""As a server says it. An error's text has the object's name, too, where 501 may be a number of the log."""


def put_new(location: Location, path: str, data: bytes) -> bool:
    """Write the object `path` unless there is one; False = there is one.

    After a connection that ends before the answer the same bytes are sent again, by obstore or here: the object that is
    there may be the one of the first request (findings/obstore-create-after-a-lost-answer.sh).

    Raises:
        UnsupportedError: the filesystem cannot. OSError: the store did not answer, or refused; it may be written.
    """
    found_store = _store_of(location)
    if found_store is None:
        raise UnsupportedError(
            f"{location.show()}: {location.root.split(':', 1)[0]} cannot create a file only if it is absent, "
            f"so that two jobs could lose each other's rows. {_INSTEAD}"
        )
    import obstore
    from obstore.exceptions import (
        AlreadyExistsError,
        BaseError,
        NotSupportedError,
        PreconditionError,
    )

    store, key = found_store, _key(path)

    def create() -> bool:
        try:
            obstore.put(store, key, data, mode="create", use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            return False
        return True

    def is_cut_off(error: Exception) -> bool:
        return isinstance(error, BaseError) and _CUT_OFF in str(error)

    try:
        return Retry(_CUT_OFF_SECONDS, what=f"creating {path}").call(create, is_cut_off)
    except (NotSupportedError, NotImplementedError) as error:
        raise UnsupportedError(
            f"{location.show()}: the store refuses conditional puts ({_first_line(error)}). {_INSTEAD}"
        ) from error
    except BaseError as error:
        if _NOT_IMPLEMENTED.search(str(error)):
            raise UnsupportedError(
                f"{location.show()}: the store refuses conditional puts ({_first_line(error)}). {_INSTEAD}"
            ) from error
        raise OSError(_first_line(error)) from error


def put(location: Location, path: str, data: bytes) -> bool:
    """Write the object `path` in one request; False = the filesystem is not one of an object store.

    `pyarrow.fs` makes an empty blob first on Azure, which a reader may see.

    Raises:
        OSError: the store did not answer, or refused.
    """
    store = _store_of(location)
    if store is None:
        return False
    import obstore
    from obstore.exceptions import BaseError

    try:
        obstore.put(store, _key(path), data, use_multipart=False)
    except BaseError as error:
        raise OSError(_first_line(error)) from error
    return True


def check_conditional(location: Location, path: str) -> None:
    """Check that the store rejects the second of two conditional puts of one name. Leaves the object `path`.

    Raises:
        UnsupportedError: it accepted both.
    """
    put_new(location, path, b"\n")
    if put_new(location, path, b"\n"):
        raise UnsupportedError(
            f"{location.show()}: the store ignores the condition of a conditional put, so that two jobs could lose "
            f"each other's rows. {_INSTEAD}"
        )


def remove_many(location: Location, paths: Sequence[str]) -> None:
    """Delete objects, a thousand in one request where the store can."""
    store = _store_of(location)
    if store is None:
        for path in paths:
            location.fs.delete_file(path)
        return
    import obstore
    from obstore.exceptions import BaseError

    try:
        obstore.delete(store, [_key(path) for path in paths])
    except FileNotFoundError:
        pass  # another job has removed the same object
    except BaseError as error:
        raise OSError(_first_line(error)) from error


def _key(path: str) -> str:
    """Without the bucket or container."""
    return path.split("/", 1)[1]


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0][:300] if str(error) else type(error).__name__


def _store_of(location: Location) -> "S3Store | GCSStore | AzureStore | None":
    scheme = location.root.split(":", 1)[0]
    if scheme not in ("s3", "gs", "abfs", "abfss"):
        return None
    try:
        import obstore  # noqa: F401 - whether it is installed
    except ImportError as error:
        raise MissingPackageError(
            f"writing to {scheme}:// needs obstore: pip install 'spark-channel[objects]'",
            name="obstore",
        ) from error
    check_versions("objects")
    region = str(getattr(location.fs, "region", "") or "") if scheme == "s3" else ""
    return _opened(location.root, location.path.split("/", 1)[0], region, location.login)


@lru_cache(maxsize=32)
def _opened(
    root: str, bucket: str, region: str, login: StorageCredentials | None
) -> "S3Store | GCSStore | AzureStore":
    parts = urlsplit(root)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    plain = query.get("scheme") == "http" or query.get("enable_tls") == "false"
    client: Any = {"allow_http": True} if plain else {}
    if parts.scheme == "s3":
        return _s3(bucket, region, query, client, login, plain=plain)
    if parts.scheme == "gs":
        return _gcs(bucket, query, client, anonymous=parts.username == "anonymous", plain=plain)
    return _azure(root, bucket, query, client, login, plain=plain)


def _s3(
    bucket: str,
    region: str,
    query: dict[str, str],
    client: Any,
    login: StorageCredentials | None,
    *,
    plain: bool,
) -> "S3Store":
    from obstore.store import S3Store

    config: dict[str, Any] = {"region": region or "us-east-1"}
    if "endpoint_override" in query:
        address = query["endpoint_override"]
        config["endpoint"] = (
            address if "://" in address else f"http{'' if plain else 's'}://{address}"
        )
    key_id = None if login is None else login.get("aws_access_key_id")
    if login is not None and key_id is not None:
        config |= {"access_key_id": key_id, "secret_access_key": login.get("aws_secret_access_key")}
        if token := login.get("aws_session_token"):
            config["session_token"] = token
    if login is not None and login.virtual_hosted:
        config["virtual_hosted_style_request"] = True
        if "endpoint" in config:  # object_store wants the bucket in it
            config["endpoint"] = config["endpoint"].replace("://", f"://{bucket}.", 1)
    provider = None
    if key_id is None and "AWS_ACCESS_KEY_ID" not in os.environ and _has_profile():
        # The AWS libraries look into profiles, obstore by itself does not.
        try:
            from obstore.auth.boto3 import Boto3CredentialProvider

            provider = Boto3CredentialProvider()
        except ImportError as error:
            raise MissingPackageError(
                "the credentials of a profile in ~/.aws need boto3: "
                "pip install boto3, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
                name="boto3",
            ) from error
    return S3Store(bucket, client_options=client, credential_provider=provider, **config)


def _has_profile() -> bool:
    named = os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or Path("~/.aws/credentials").expanduser()
    return "AWS_PROFILE" in os.environ or Path(named).is_file()


def _gcs(
    bucket: str, query: dict[str, str], client: Any, *, anonymous: bool, plain: bool
) -> "GCSStore":
    import json

    from obstore.store import GCSStore

    config: dict[str, Any] = {}
    if "endpoint_override" in query:
        address = query["endpoint_override"]
        base = address if "://" in address else f"http{'' if plain else 's'}://{address}"
        # obstore takes the address of an emulator as a part of a service account's key.
        key = {
            "gcs_base_url": base,
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        config["service_account_key"] = json.dumps(key)
    elif anonymous:
        config["skip_signature"] = True
    return GCSStore(bucket, client_options=client, **config)


def _azure(
    root: str,
    container: str,
    query: dict[str, str],
    client: Any,
    login: StorageCredentials | None,
    *,
    plain: bool,
) -> "AzureStore":
    from obstore.store import AzureStore

    account = azure_account(root)
    config: dict[str, Any] = {"account_name": account}
    if "blob_storage_authority" in query and not query["blob_storage_authority"].startswith("."):
        config["endpoint"] = (
            f"http{'' if plain else 's'}://{query['blob_storage_authority']}/{account}"
        )
    key = azure_key(login)
    if key:
        config["account_key"] = key
    return AzureStore(container, client_options=client, **config)
