"""Options of servers that are reached over the network."""

from typing import Annotated, Any, ClassVar

from pydantic import Field

from spark_channel.errors import OptionError
from spark_channel.options import CertificateFile, Options, Trait

__all__ = ["Seconds", "TlsOptions", "check_tls"]

Seconds = Annotated[float, Field(gt=0, le=86_400)]


def check_tls(options: Options, *, is_secure: bool, how: str) -> None:
    """Hold the files of certificates to be used: `how` tells how a url asks for TLS.

    Raises:
        OptionError: one is given, and the url asks for no TLS.
    """
    named = next(
        (name for name in ("sslrootcert", "sslcert", "sslkey") if getattr(options, name, None)), None
    )
    if named is not None and not is_secure:
        raise OptionError(f"option {named!r} is for TLS, and 'url' asks for none: {how}", option=named)


class TlsOptions(Options):
    """A server whose url says whether it has TLS."""

    tls_url: ClassVar[str] = "use https://"

    sslrootcert: Annotated[CertificateFile | None, Trait.SAME_ROWS] = Field(
        None, description="file of the CA certificates that verify the server's; default: the system's"
    )

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        check_tls(self, is_secure=self.is_secure, how=self.tls_url)

    @property
    def is_secure(self) -> bool:
        """Whether TLS is asked for."""
        raise NotImplementedError
