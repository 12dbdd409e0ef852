"""Removes one blob: `obstore` asks the container to remove, which a signature for a directory does not allow."""

import http.client
from typing import Any
from urllib.parse import quote, urlsplit

from spark_channel.connectors.base.network import BUSY, Busy, connection_to, whole
from spark_channel.connectors.unity.credentials import Credentials
from spark_channel.retry import Retry

__all__ = ["remove_blob"]

_TIMEOUT, _RETRY_SECONDS = 30.0, 60.0
_VERSION = "2021-08-06"
_MOST_BYTES = 1 << 20


def remove_blob(container: str, key: str, credentials: Credentials) -> None:
    """`container`: its address. A blob that does not exist counts as removed.

    Raises:
        OSError: the store does not answer, or refuses.
    """
    try:
        Retry(_RETRY_SECONDS, what=f"removing {key}").call(
            lambda: _remove(container, key, credentials), lambda e: isinstance(e, Busy)
        )
    except Busy as error:
        raise OSError(str(error)) from error


def _remove(container: str, key: str, credentials: Credentials) -> None:
    at = urlsplit(container)
    headers: dict[str, Any] = {"x-ms-version": _VERSION, "Content-Length": "0"}
    sas, token = credentials.get("azure_storage_sas_key"), credentials.get("azure_storage_token")
    if token:
        headers["Authorization"] = f"Bearer {token}"
    query = f"?{sas.lstrip('?')}" if sas else ""
    opened = connection_to(
        at.scheme,
        at.hostname or "",
        at.port or (443 if at.scheme == "https" else 80),
        timeout=_TIMEOUT,
        sslrootcert=None,
    )
    try:
        opened.request("DELETE", f"{at.path}/{quote(key)}{query}", headers=headers)
        response = opened.getresponse()
        whole(response, _MOST_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise Busy(f"{at.netloc} does not answer: {type(error).__name__}") from error
    finally:
        opened.close()
    if response.status in (*BUSY, 500):
        raise Busy(f"{at.netloc} is busy: HTTP {response.status}")
    if response.status not in (200, 202, 404):
        raise OSError(f"{at.netloc} refuses to remove {key}: HTTP {response.status}")
