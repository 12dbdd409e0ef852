"""The reports that a notebook's cell has shown: the live display and the cell's value do not repeat each other."""

import threading

__all__ = ["begin_cell", "claim"]

_lock = threading.Lock()
_cells: list[set[str]] = []
"""What the last cell has shown; empty where no cells are told of: then each display shows."""


def begin_cell() -> None:
    """Another cell runs: it shows each report once."""
    with _lock:
        _cells[:] = [set()]


def claim(job: str) -> bool:
    """Whether the report of `job` is still to be shown in this cell; from now on it is not."""
    with _lock:
        new = not _cells or job not in _cells[0]
        for shown in _cells:
            shown.add(job)
        return new
