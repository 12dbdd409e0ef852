"""Describes the source or target of a connector's options in a few words, without secrets."""

import json
from typing import Any

from spark_channel.masking import mask_url, without_login
from spark_channel.working_directory import shorten

__all__ = ["describe"]


def describe(options: Any) -> str:
    """ "flights.db#flights", "/data/*.csv", "postgresql://db:5432/shop#orders". For people, not programs."""
    url, path, paths = (getattr(options, name, None) for name in ("url", "path", "paths"))
    place = ""
    if url:
        place = without_login(str(url))
        scheme, mark, rest = place.rpartition(":")
        place = scheme + mark + shorten(rest)
    elif path:
        place = mask_url(shorten(str(path)))
    elif paths:
        listed = json.loads(paths) if isinstance(paths, str) else list(paths)
        more = f" and {len(listed) - 1} more" if len(listed) > 1 else ""
        place = mask_url(shorten(str(listed[0]))) + more
    table = getattr(options, "dbtable", None)
    if table:
        return f"{place}#{table}"
    return f"{place}#(query)" if getattr(options, "query", None) else place
