"""Says in a few words what a connector's options point at, without any secret."""

import json
import re
from typing import Any

from spark_channel.working_directory import shorten

__all__ = ["describe"]


def describe(options: Any) -> str:
    """ "flights.db#flights", "/data/*.csv", "postgresql://db:5432/shop#orders". For people, not programs."""
    url, path, paths = (getattr(options, name, None) for name in ("url", "path", "paths"))
    place = ""
    if url:
        # user info and query parameters are where passwords live
        place = re.sub(r"//[^/@]*@", "//", str(url)).split("?", 1)[0].split(";", 1)[0]
        scheme, mark, rest = place.rpartition(":")
        place = scheme + mark + shorten(rest)
    elif path:
        place = shorten(str(path))
    elif paths:
        listed = json.loads(paths) if isinstance(paths, str) else list(paths)
        place = shorten(str(listed[0])) + (f" and {len(listed) - 1} more" if len(listed) > 1 else "")
    table = getattr(options, "dbtable", None)
    if table:
        return f"{place}#{table}"
    return f"{place}#(query)" if getattr(options, "query", None) else place
