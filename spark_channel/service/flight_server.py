"""The Flight shell of the service: authentication, bounds, errors. Imports `pyarrow.flight`."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.service import wire
from spark_channel.service.tokens import Tokens

__all__ = ["Caller", "Endpoint", "FlightShell"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: the scope of the token, and the address as the transport tells it."""

    scope: str
    peer: str


Endpoint = Callable[[bytes, Caller], bytes | Iterator[bytes]]
"""Answers one action, at once or bit by bit; what is iterated raises nothing. `ValueError` = a request that
makes no sense; `PermissionError` = not with this token; the texts travel to the caller. Bodies are at most
`wire.LARGEST_BODY`."""


class _Refusals:
    """Logs refused calls at most once in ten seconds, with their number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._next = 0.0

    def note(self, why: str) -> None:
        with self._lock:
            self._count += 1
            now = SYSTEM_CLOCK.now()
            if now < self._next:
                return
            self._next = now + 10.0
            count, self._count = self._count, 0
        _log.warning("refused %d call%s, last: %s", count, "" if count == 1 else "s", why)


class _Scope(fl.ServerMiddleware):  # type: ignore[misc] # pyarrow is untyped
    def __init__(self, scope: str) -> None:
        super().__init__()
        self.scope = scope


class _Gate(fl.ServerMiddlewareFactory):  # type: ignore[misc] # pyarrow is untyped
    def __init__(self, tokens: Tokens, refusals: _Refusals) -> None:
        super().__init__()
        self._tokens = tokens
        self._refusals = refusals

    def start_call(self, _info: Any, headers: Mapping[str, list[str]]) -> _Scope:
        given = headers.get("authorization", [])
        scope = self._tokens.scope_of(given[0]) if len(given) == 1 and isinstance(given[0], str) else None
        if scope is None:
            why = "the token is wrong" if given else "there is no token"
            self._refusals.note(why)
            raise fl.FlightUnauthenticatedError(why)
        return _Scope(scope)


class FlightShell(fl.FlightServerBase):  # type: ignore[misc] # pyarrow is untyped
    """Listens from the moment it is made. `serve()` is not needed, and would take over SIGINT."""

    def __init__(
        self,
        location: str,
        endpoints: Mapping[str, Endpoint],
        tokens: Tokens,
        tls: tuple[bytes, bytes] | None = None,
    ) -> None:
        self._endpoints = endpoints
        self._refusals = _Refusals()
        super().__init__(
            location,
            middleware={"gate": _Gate(tokens, self._refusals)},
            tls_certificates=[tls] if tls else None,
        )

    def do_action(self, context: Any, action: Any) -> Iterable[bytes]:
        endpoint = self._endpoints.get(action.type)
        caller = Caller(context.get_middleware("gate").scope, context.peer())
        try:
            if endpoint is None:
                raise wire.RequestError("there is no such action")
            if action.body.size > wire.LARGEST_BODY:
                raise wire.RequestError(f"a body has at most {wire.LARGEST_BODY} bytes")
            answer = endpoint(action.body.to_pybytes(), caller)
            return (answer,) if isinstance(answer, bytes) else answer
        except PermissionError as error:
            self._refusals.note(f"{error} ({caller.peer})")
            raise fl.FlightUnauthorizedError(str(error)) from None
        except ValueError as error:
            why = str(error.args[0]) if error.args else "the request makes no sense"
            self._refusals.note(f"{why} ({caller.peer})")
            raise pa.ArrowInvalid(why) from None
        except Exception:
            _log.exception("action %r failed", action.type)
            raise fl.FlightInternalError("the service failed on this action; see its log") from None

    def list_actions(self, _context: Any) -> list[tuple[str, str]]:
        return [(name, "") for name in self._endpoints]
