"""Two requests of Unity Catalog's REST API: a table's location, and temporary credentials for its files."""

import http.client
import json
import ssl
from typing import Any
from urllib.parse import quote, urlsplit

from spark_channel.connectors.base.network import BUSY, Busy, Login, connection_to, whole
from spark_channel.connectors.unity.workspace import TOKEN_ADVICE, Workspace
from spark_channel.errors import ChannelError
from spark_channel.retry import Retry

__all__ = ["UnityClient"]

_TIMEOUT, _RETRY_SECONDS = 30.0, 30.0
_MOST_BYTES = 16 << 20
_OWN_LOCATION = "or use the table's own cloud path with credentials of your own"


class _Refused(Exception):  # noqa: N818 - a state of the request
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class UnityClient:
    """`failure` is the class of its errors, `shown` the table's address in them."""

    def __init__(self, workspace: Workspace, shown: str, failure: type[ChannelError]) -> None:
        self._workspace, self._shown, self._failure = workspace, shown, failure
        self._login = Login(f"Bearer {workspace.token}", workspace.token)

    def table(self, name: str) -> dict[str, Any]:
        """What the catalog says of the table `catalog.schema.table`."""
        try:
            return self._ask("GET", f"/tables/{quote(name, safe='.')}")
        except _Refused as error:
            raise self._failure(f"{self._shown}: {self._explained_table(error)}") from None

    def _explained_table(self, error: _Refused) -> str:
        at = self._workspace.url
        if error.status == 404:
            return (
                f"Unity Catalog at {at} has no such table ({error.reason}); create it in the catalog first, or check "
                "option 'path'"
            )
        return self._explained(
            error, "the catalog shows the table to logins with USE CATALOG, USE SCHEMA and SELECT"
        )

    def credentials(self, table_id: str, operation: str) -> dict[str, Any]:
        """The answer with credentials for the table's files; `operation` is READ or READ_WRITE."""
        try:
            return self._ask(
                "POST",
                "/temporary-table-credentials",
                {"table_id": table_id, "operation": operation},
            )
        except _Refused as error:
            raise self._failure(
                f"{self._shown}: {self._explained_credentials(error, operation)}"
            ) from None

    def _explained_credentials(self, error: _Refused, operation: str) -> str:
        hint = (
            f"the catalog vends no {operation} credentials for this table. External data access must be enabled "
            f"for the metastore, and the login needs EXTERNAL USE SCHEMA"
            f"{' and MODIFY' if operation == 'READ_WRITE' else ''}; {_OWN_LOCATION}"
        )
        if error.status == 401:
            return self._explained(error, hint)
        return f"{hint} ({self._workspace.url}: HTTP {error.status}: {error.reason})"

    def _explained(self, error: _Refused, forbidden: str) -> str:
        said = f"{self._workspace.url}: HTTP {error.status}: {error.reason}"
        if error.status == 401:
            return f"Unity Catalog refuses the token ({said}); check {TOKEN_ADVICE}"
        if error.status == 403:
            return f"Unity Catalog refuses the request ({said}); {forbidden}"
        return f"Unity Catalog answers with an error ({said}); check unity_workspace_url in option 'storageOptions'"

    def _ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        retry = Retry(_RETRY_SECONDS, what=f"asking {self._workspace.url}")
        try:
            return retry.call(lambda: self._once(method, path, body), lambda e: isinstance(e, Busy))
        except Busy as error:
            raise self._failure(
                f"{self._shown}: {error}; check unity_workspace_url in option 'storageOptions', or DATABRICKS_HOST"
            ) from error

    def _once(self, method: str, path: str, body: Any) -> dict[str, Any]:
        at = urlsplit(self._workspace.url)
        headers = {"Accept": "application/json", **self._login.headers}
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            headers["Content-Type"] = "application/json"
        opened = connection_to(
            at.scheme,
            at.hostname or "",
            at.port or (443 if at.scheme == "https" else 80),
            timeout=_TIMEOUT,
            sslrootcert=None,
        )
        try:
            opened.request(method, at.path + path, data, headers)
            response = opened.getresponse()
            text = whole(response, _MOST_BYTES)
        except ssl.SSLCertVerificationError as error:
            raise self._failure(
                f"{self._shown}: the certificate of {self._workspace.url} is not trusted: {error.verify_message}; name "
                "the CA's file in the environment variable SSL_CERT_FILE"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            why = f"{type(error).__name__} {self._login.shown(str(error))[:200]}"
            raise Busy(f"Unity Catalog at {self._workspace.url} does not answer: {why}") from error
        finally:
            opened.close()
        if response.status in BUSY:
            raise Busy(
                f"Unity Catalog at {self._workspace.url} is busy: HTTP {response.status} {self._login.beginning(text)}"
            )
        if response.status != 200:
            raise _Refused(response.status, self._reason(text))
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._failure(
                f"{self._shown}: the answer of {self._workspace.url} is not a JSON object, so this is not Unity "
                "Catalog; check unity_workspace_url in option 'storageOptions'"
            )
        return found

    def _reason(self, text: bytes) -> str:
        try:
            found = json.loads(text)
            said = str(found["message"])
        except (ValueError, RecursionError, KeyError, TypeError):
            return self._login.beginning(text)
        return self._login.shown(said)[:200]
