"""Where a service's certificate and key are. Light to import: planners know of them, and serve nothing."""

from typing import NamedTuple

__all__ = ["TlsFiles"]


class TlsFiles(NamedTuple):
    """Paths of a PEM certificate (with its chain) and of its private key.

    Clients trust `root`, by default the certificate itself, as fits a self-signed one.
    """

    certificate: str
    key: str
    root: str | None = None
