"""Tables' files through pyarrow, also in Azure's usual locations."""

from typing import Any
from urllib.parse import urlsplit

from pyiceberg.io.pyarrow import PyArrowFileIO

__all__ = ["ArrowFileIO"]

_AZURE = ("abfs", "abfss", "wasb", "wasbs")


class ArrowFileIO(PyArrowFileIO):
    """pyiceberg 0.12 takes the account in `abfss://container@account.dfs.core.windows.net/path` for a folder."""

    @staticmethod
    def parse_location(location: str, properties: dict[str, Any] | None = None) -> tuple[str, str, str]:
        """(scheme, netloc, path as pyarrow takes it)."""
        uri = urlsplit(location)
        if uri.scheme in _AZURE and uri.username:
            return uri.scheme, uri.netloc, f"{uri.username}{uri.path}"
        return PyArrowFileIO.parse_location(location, properties or {})
