"""What of a job file has no effect: refused where that would change the result, else listed once."""

import difflib
from collections.abc import Iterator

from spark_channel.errors import JobFileError
from spark_channel.jobs.values import Section

__all__ = ["leftovers"]


def leftovers(section: Section, path: str = "") -> Iterator[str]:
    """Every key below `section` that is not used, with the reason.

    Raises:
        JobFileError: a key whose meaning cannot be kept.
    """
    known = {
        field.alias or name: getattr(section, name) for name, field in type(section).model_fields.items()
    }
    for key in section.model_extra or {}:
        place = f"{path}.{key}" if path else key
        if key in section.refused:
            raise JobFileError(f"{place} is not supported: {section.refused[key]}")
        if key.startswith("*"):
            raise JobFileError(
                f"{place} is encrypted by DataX and cannot be read here; "
                f"give {key[1:]!r} as ${{env:NAME}} or ${{file:PATH}}"
            )
        yield f"{place} ({section.ignored.get(key) or _unknown(key, [*known, *section.ignored])})"
    for key, value in known.items():
        place = f"{path}.{key}" if path else key
        if isinstance(value, Section):
            yield from leftovers(value, place)
        elif isinstance(value, tuple):
            for number, one in enumerate(value):
                if isinstance(one, Section):
                    yield from leftovers(one, f"{place}[{number}]")


def _unknown(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    return f"unknown; did you mean {near[0]!r}?" if near else "unknown"
