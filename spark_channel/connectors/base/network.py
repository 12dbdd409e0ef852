"""Shared code of connectors over the network: TLS options, HTTP connections, answers of bounded size, parts of urls."""

import base64
import http.client
import ssl
from typing import Annotated, ClassVar

from pydantic import Field

from spark_channel.errors import OptionError
from spark_channel.masking import hide
from spark_channel.options import CertificateFile, Options, Trait

__all__ = [
    "BUSY",
    "AnswerTooLargeError",
    "Busy",
    "Login",
    "Seconds",
    "TlsOptions",
    "basic",
    "check_tls",
    "connection_to",
    "untrusted",
    "whole",
]


BUSY = (429, 502, 503, 504)
"""The HTTP statuses of a server that may carry out the same request later."""
_BLOCK = 1 << 20
_SHOWN, _READ = 200, 2_000


class Busy(Exception):  # noqa: N818 - a state of the server
    """The server does not answer now; it may have carried out the request."""


class AnswerTooLargeError(http.client.HTTPException):
    """An answer has more bytes than may be held in memory."""


class Login:
    """Header `Authorization`, if there is a login, and the texts that no message may show."""

    def __init__(self, header: str = "", *secrets: str) -> None:
        self.headers = {"Authorization": header} if header else {}
        self._secrets = secrets

    def shown(self, text: str) -> str:
        """Return a server's text without the credentials, which it may repeat."""
        return hide(text, self._secrets)

    def beginning(self, answer: bytes) -> str:
        """The first characters of an answer, for messages."""
        return self.shown(answer[:_READ].decode(errors="replace"))[:_SHOWN]


def basic(user: str, password: str, *secrets: str) -> Login:
    token = base64.b64encode(f"{user}:{password}".encode()).decode()
    return Login(f"Basic {token}", token, password, *secrets)


def connection_to(
    scheme: str, host: str, port: int, *, timeout: float, sslrootcert: str | None
) -> http.client.HTTPConnection:
    """Not yet open. `sslrootcert`: the file of the CA certificates; None = the system's.

    Raises:
        OptionError: that file cannot be read.
    """
    if scheme != "https":
        return http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        context = ssl.create_default_context(cafile=sslrootcert)
    except OSError as error:
        raise OptionError(
            f"option 'sslrootcert' got {sslrootcert!r}, which cannot be read: {error}",
            option="sslrootcert",
        ) from None
    return http.client.HTTPSConnection(host, port, timeout=timeout, context=context)


def untrusted(error: ssl.SSLCertVerificationError) -> str:
    """Why nothing was sent, and what to do."""
    reason = error.verify_message
    return f"the server's certificate is not trusted: {reason}; name the CA's file in option 'sslrootcert'"


def whole(response: http.client.HTTPResponse, most: int) -> bytes:
    """The answer's body.

    Raises:
        AnswerTooLargeError: it has more than `most` bytes. HTTPException: it ends before its announced end.
    """
    parts: list[bytes] = []
    size = 0
    while part := response.read(_BLOCK):
        parts.append(part)
        size += len(part)
        if size > most:
            if most < 1 << 20:
                raise AnswerTooLargeError(
                    f"an answer has more than {most} bytes, and is held in memory"
                )
            raise AnswerTooLargeError(
                f"an answer has more than {most >> 20} MiB, and is held in memory"
            )
    if response.length:  # `read` of some bytes does not say that more were announced
        raise http.client.IncompleteRead(b"", response.length)
    return b"".join(parts)


Seconds = Annotated[float, Field(gt=0, le=86_400)]


def check_tls(options: Options, *, is_secure: bool, how: str) -> None:
    """Check that certificate files are only given with TLS. `how`: the text that explains how a url enables TLS.

    Raises:
        OptionError: a certificate file is given, and the url does not enable TLS.
    """
    named = next(
        (name for name in ("sslrootcert", "sslcert", "sslkey") if getattr(options, name, None)),
        None,
    )
    if named is not None and not is_secure:
        raise OptionError(
            f"option {named!r} is for TLS, and 'url' asks for none: {how}", option=named
        )


class TlsOptions(Options):
    """A server whose url says whether it has TLS."""

    tls_url: ClassVar[str] = "use https://"

    sslrootcert: Annotated[CertificateFile | None, Trait.SAME_ROWS] = Field(
        None,
        description="file of the CA certificates that verify the server's; default: the system's",
    )

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        check_tls(self, is_secure=self.is_secure, how=self.tls_url)

    @property
    def is_secure(self) -> bool:
        """Whether TLS is asked for."""
        raise NotImplementedError
