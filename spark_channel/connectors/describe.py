"""Says in a few words what a connector's options point at, without any secret."""

import json
from typing import Any

from spark_channel.masking import mask_url, without_login

__all__ = ["describe"]


def describe(options: Any) -> str:
    """ "flights.db#flights", "/data/*.csv", "postgresql://db:5432/shop#orders". For people, not programs."""
    url, path, paths = (getattr(options, name, None) for name in ("url", "path", "paths"))
    place = ""
    if url:
        place = without_login(str(url))
    elif path:
        place = mask_url(str(path))
    elif paths:
        listed = json.loads(paths) if isinstance(paths, str) else list(paths)
        place = mask_url(str(listed[0])) + (f" and {len(listed) - 1} more" if len(listed) > 1 else "")
    table = getattr(options, "dbtable", None)
    if table:
        return f"{place}#{table}"
    return f"{place}#(query)" if getattr(options, "query", None) else place
