"""DataX's transformer list: dx_substr, dx_pad, dx_replace, dx_filter, dx_digest, and Addax's dx_map."""

from collections.abc import Callable
from typing import Any

from spark_channel.datax.document import Step
from spark_channel.datax.plugin_context import at
from spark_channel.datax.sections import JobSection, parse_section, refusal, refused
from spark_channel.datax.value_types import NotNegative, Text
from spark_channel.errors import JobFileError
from spark_channel.transform import (
    Calculate,
    Digest,
    DropRows,
    Labelled,
    Pad,
    Replace,
    Substr,
    Transformer,
)
from spark_channel.transform.convert import local_zone

__all__ = ["job_transformers"]


_GROOVY = (
    "its Groovy code would need a JVM and run row by row; "
    "pass a Python function on Arrow batches to spark_channel.transfer(transformers=[...])"
)


class StepParameter(JobSection):
    column_index: NotNegative
    paras: tuple[Text, ...] = ()


def _substr(column: int, start: str, length: str) -> Transformer:
    return Substr(column, _number(start), _number(length))


def _pad(column: int, side: str, length: str, fill: str) -> Transformer:
    return Pad(column, side.lower(), _number(length), fill)  # type: ignore[arg-type]  # Pad checks it


def _replace(column: int, start: str, length: str, text: str) -> Transformer:
    return Replace(column, _number(start), _number(length), text)


def _filter(column: int, operator: str, value: str) -> Transformer:
    name = " ".join(operator.lower().split())
    return DropRows(column, "=" if name == "==" else name, value, local_zone())  # type: ignore[arg-type]  # DropRows checks it


def _digest(column: int, algorithm: str, case: str) -> Transformer:
    cases = {"touppercase": True, "tolowercase": False}
    if case.lower() not in cases:
        raise ValueError(f"case {case!r}; it takes 'toUpperCase' or 'toLowerCase'")
    return Digest(column, algorithm.lower(), cases[case.lower()])  # type: ignore[arg-type]  # Digest checks it


def _map(column: int, operation: str, number: str) -> Transformer:
    return Calculate(column, operation, number)  # type: ignore[arg-type]  # Calculate checks it


_STEPS: dict[str, tuple[Callable[..., Transformer], tuple[str, ...]]] = {
    "dx_substr": (_substr, ("start", "length")),
    "dx_pad": (_pad, ("l or r", "length", "fill")),
    "dx_replace": (_replace, ("start", "length", "text")),
    "dx_filter": (_filter, ("operator", "value")),
    "dx_digest": (_digest, ("md5 or sha1", "toUpperCase or toLowerCase")),
    "dx_map": (_map, ("+, -, *, /, % or ^", "number")),
}


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r}; it takes a whole number") from None


def job_transformers(
    steps: tuple[Step, ...], root: str, ineffective: list[str]
) -> tuple[Transformer, ...]:
    """The steps of one content; their errors carry their place in the job file.

    Raises:
        JobFileError: an unknown transformer, a missing column number, or parameters that make no sense.
    """
    transformers = []
    for number, step in enumerate(steps):
        path = f"{root}[{number}]"
        if step.name in ("dx_groovy", "dx_fackGroovy"):
            raise JobFileError(f"{path}: {step.name} is not supported: {_GROOVY}")
        if step.name not in _STEPS:
            raise refusal(f"{path}.name", step.name, "one of " + ", ".join(_STEPS))
        parameter = parse_section(StepParameter, _spread(step.parameter), f"{path}.parameter")
        ineffective.extend(
            f"{path}.parameter.{key} (unknown)" for key in parameter.model_extra or {}
        )
        build, takes = _STEPS[step.name]
        paras = f"{path}.parameter.paras"
        if len(parameter.paras) != len(takes):
            raise refused(
                paras, f"{len(parameter.paras)} values", f"{len(takes)}: {', '.join(takes)}"
            )
        with at(path):
            try:
                inner = build(parameter.column_index, *parameter.paras)
            except ValueError as error:
                raise JobFileError(f"{paras} got {error}") from None
        transformers.append(Labelled(inner, f"{path} ({step.name})"))
    return tuple(transformers)


def _spread(parameter: dict[str, Any]) -> dict[str, Any]:
    """One value without a list around it is a list of one, as DataX reads it."""
    paras = parameter.get("paras")
    return (
        parameter if paras is None or isinstance(paras, list) else {**parameter, "paras": [paras]}
    )
