"""Checks of a database that is one file, before any task runs."""

import os
from pathlib import Path

from spark_channel.errors import TargetError

__all__ = ["hold_writable"]


def hold_writable(path: Path, product: str, beside: str) -> None:
    """Hold this user to be able to write the file, which may not be there yet, and its directory.

    `beside` is what `product` keeps in the directory while it writes.

    Raises:
        TargetError: no directory, or no right; says what to do.
    """
    directory = path.absolute().parent
    if not directory.is_dir():
        raise TargetError(f"there is no directory {directory}; make it, or name the database in another one")
    for each in (directory, *([path] if path.exists() else [])):
        if not os.access(each, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
            raise TargetError(
                f"this user may not write {each}; {product} needs the file and its directory, where it keeps its "
                f"{beside}, to be writable"
            )
