"""The objects of a job file: how one is read, and the error for a value that is refused."""

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from spark_channel.errors import JobFileError
from spark_channel.masking import MASK, is_secret_name, mask_text
from spark_channel.plain_text import shortened

__all__ = [
    "JobSection",
    "ineffective_keys",
    "json_path",
    "parse_section",
    "refusal",
    "refuse_twice",
    "refused",
]

_WORD = re.compile(r"[A-Za-z0-9_-]*")

ONE, MANY = "$one", "$many"
"""Tags of a value that is an object or a list of them."""


class JobSection(BaseModel):
    """One object of a job file. Keys it does not know are kept aside, for one warning.

    `ignored` maps keys that DataX knows and that have no effect here to the reason; `refused` those
    whose meaning cannot be kept.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="allow",
        frozen=True,
        hide_input_in_errors=True,
        arbitrary_types_allowed=True,
    )

    ignored: ClassVar[dict[str, str]] = {}
    refused: ClassVar[dict[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _object_without_nulls(cls, data: object) -> object:
        if isinstance(data, JobSection):
            return data
        if not isinstance(data, dict):
            raise ValueError("an object")
        return {key: value for key, value in data.items() if value is not None}


def json_path(location: tuple[Any, ...], root: str = "") -> str:
    """("job", "content", 0) -> job.content[0]"""
    path = root
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else str(part)
    return path


_S = TypeVar("_S", bound=JobSection)


def parse_section(model: type[_S], data: object, root: str) -> _S:
    """Validate `data` as the object at JSON path `root`.

    Raises:
        JobFileError: names the JSON path, what it got and what it takes.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False)
    first, *others = (_refusal_of(detail, root) for detail in details)
    first.others = tuple(dict.fromkeys(str(other) for other in others))
    raise first


def _refusal_of(detail: Any, root: str) -> JobFileError:
    # The tag of a shape is not part of the path.
    path = (
        json_path(tuple(step for step in detail["loc"] if step not in (ONE, MANY)), root) or "job"
    )
    if detail["type"] == "missing":
        return JobFileError(f"{path} is missing")
    takes = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else _standard(detail)
    got = detail["input"]
    if takes.startswith("an object") and isinstance(got, str) and not _WORD.fullmatch(got):
        # The settings in another form, and a login among them.
        return refused(path, "a text", takes)
    return refusal(path, got, takes)


def _standard(detail: Any) -> str:
    if detail["type"] in ("list_type", "tuple_type"):
        return "a list"
    if detail["type"] in ("dict_type", "model_type"):
        return "an object"
    if detail["type"] == "literal_error":
        return f"one of {detail['ctx']['expected']}"
    message = str(detail["msg"])
    return message[0].lower() + message[1:]


def refusal(path: str, got: object, takes: str) -> JobFileError:
    """`path` got something else than it takes. Secrets, and what is inside objects, are not shown."""
    if isinstance(got, dict):
        got_text = "an object"
    elif isinstance(got, (list, tuple)):
        got_text = "a list" if got else "an empty list"
    elif got is None:
        got_text = "null"
    else:
        # The keys of other tools' job files are typed nowhere: a name that sounds like a secret's is taken for one.
        text = MASK if is_secret_name(path.rsplit(".", 1)[-1]) else mask_text(str(got))
        text = shortened(text, 60)
        got_text = repr(text) if isinstance(got, str) else text
    return refused(path, got_text, takes)


def refuse_twice(path: str, names: Sequence[str]) -> None:
    """A column can be named once.

    Raises:
        JobFileError: names the column, and its path.
    """
    for number, name in enumerate(names):
        first = names.index(name)
        if first != number:
            raise refused(path, f"{name!r} twice, at [{first}] and [{number}]", "each name once")


def refused(path: str, got_text: str, takes: str) -> JobFileError:
    """`path` got what `got_text` describes."""
    return JobFileError(f"{path} got {got_text}; it takes {takes}")


def ineffective_keys(section: JobSection, path: str = "") -> Iterator[str]:
    """Every key below `section` that is not used, with the reason.

    Raises:
        JobFileError: a key whose meaning cannot be kept.
    """
    sections = {
        field.alias or name: getattr(section, name)
        for name, field in type(section).model_fields.items()
    }
    for key in section.model_extra or {}:
        key_path = f"{path}.{key}" if path else key
        if key in section.refused:
            raise JobFileError(f"{key_path} is not supported: {section.refused[key]}")
        if key.startswith("*"):
            raise JobFileError(
                f"{key_path} is encrypted by DataX and cannot be read here; "
                f"give {key[1:]!r} as ${{env:NAME}} or ${{file:PATH}}"
            )
        yield f"{key_path} ({section.ignored.get(key) or _unknown(key, [*sections, *section.ignored])})"
    for key, value in sections.items():
        key_path = f"{path}.{key}" if path else key
        if isinstance(value, JobSection):
            yield from ineffective_keys(value, key_path)
        elif isinstance(value, tuple):
            for number, one in enumerate(value):
                if isinstance(one, JobSection):
                    yield from ineffective_keys(one, f"{key_path}[{number}]")


def _unknown(key: str, known_keys: list[str]) -> str:
    near = difflib.get_close_matches(key, known_keys, n=1, cutoff=0.75)
    return f"unknown; did you mean {near[0]!r}?" if near else "unknown"
