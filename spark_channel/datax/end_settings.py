"""What the options of a reader and a writer say of the whole job, beside the job's own settings."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic.alias_generators import to_camel

from spark_channel.datax.plugin_context import ParsedPlugin
from spark_channel.datax.sections import refused

__all__ = ["dirty_limit", "with_end"]


_UNSET = {"channels_per_task": 1}
"""The value of a setting that the job does not give, unless None."""


def with_end(settings: dict[str, Any], end: ParsedPlugin, path: str) -> dict[str, Any]:
    """`settings` of the job with those that the options of one end have; `path` is that of its parameter.

    Raises:
        JobFileError: the job says something else.
    """
    for name, value in end.of_job.items():
        if settings.get(name) not in (None, _UNSET.get(name), value):
            raise refused(
                f"{path}.{to_camel(name)}",
                str(value),
                f"{settings[name]}, as the job's settings or its other end say, or nothing",
            )
    return {**settings, **end.of_job}


def dirty_limit(
    settings: Mapping[str, Any], ends: Iterable[tuple[str, ParsedPlugin]], warnings: list[str]
) -> dict[str, Any]:
    """The settings of refused rows that change for these writers, by the paths of their parameters.

    Raises:
        JobFileError: the job allows refused rows, and a target cannot leave one out; or both have a limit.
    """
    has_limit = (
        settings["max_dirty_rows"] is not None or settings.get("max_dirty_fraction") is not None
    )
    allows = settings["max_dirty_rows"] or settings.get("max_dirty_fraction")
    changed: dict[str, Any] = {}
    for path, end in ends:
        if end.own_dirty_limit and has_limit:
            raise refused(
                "job.setting.errorLimit",
                f"a limit, and {path} has another",
                "one limit of refused rows: omit errorLimit, or the writer's maxDirtyRows and maxDirtyFraction",
            )
        if end.no_dirty_rows and allows:
            raise refused(
                "job.setting.errorLimit",
                "a number of rows that may be refused",
                f"record 0, or none: {end.endpoint.name} cannot leave rows out: {end.no_dirty_rows}",
            )
        if end.no_dirty_rows and not has_limit:
            warnings.append(f"{path}: one row that is refused ends the job, and nothing is written")
        if end.own_dirty_limit or end.no_dirty_rows:
            changed = {"max_dirty_rows": 0}  # which an option of the writer may change
    return changed
