"""Who may call: bearer tokens, compared in constant time."""

import hmac
import secrets
import threading

__all__ = ["SERVICE_SCOPE", "Tokens"]

SERVICE_SCOPE = ""
"""The scope of the service's own token, which may do everything."""


class Tokens:
    """Random tokens, each for one scope. Thread-safe; no token is ever in a message."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._scopes: dict[str, str] = {}

    def add(self, scope: str, token: str | None = None) -> str:
        """Accept `token`, or a new random one, for `scope`; an earlier one of the scope is void."""
        token = token or secrets.token_urlsafe(32)
        with self._lock:
            self._scopes[scope] = token
        return token

    def remove(self, scope: str) -> None:
        with self._lock:
            self._scopes.pop(scope, None)

    def scope_of(self, authorization: str) -> str | None:
        """The scope of an `Authorization` header; None when it opens nothing."""
        given = authorization.encode("utf-8", "surrogateescape")
        with self._lock:
            accepted = list(self._scopes.items())
        found = None
        for scope, token in accepted:
            if hmac.compare_digest(given, b"Bearer " + token.encode()):
                found = scope
        return found

    def __repr__(self) -> str:
        return f"Tokens({len(self._scopes)})"
