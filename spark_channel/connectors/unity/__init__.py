"""Tables of Unity Catalog: the location that a `uc://` address names, and credentials that the catalog vends for it."""

from spark_channel.connectors.unity.table import UnityTable, is_unity, resolve

__all__ = ["UnityTable", "is_unity", "resolve"]
