"""The ends that arguments name: urls and paths with options behind a '?', and options that -o gives."""

import difflib
import re
from collections.abc import Sequence
from typing import Any, Literal
from urllib.parse import unquote

from pydantic import TypeAdapter

from spark_channel.connectors.base.connector import Connector
from spark_channel.connectors.base.registry import all_connectors, find_connector, named_first
from spark_channel.errors import OptionError
from spark_channel.masking import is_clear, mask_text, scheme_of
from spark_channel.option_types import ColumnList
from spark_channel.planning import Endpoint

__all__ = ["Half", "add_option", "column_list", "parse_options", "parse_place"]


Half = Literal["reader", "writer"]
_ARGUMENTS = {"reader": "SOURCE", "writer": "TARGET"}
_PREFIX = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(.*)", re.DOTALL)
"""At least two letters: one letter and a colon is a disk of Windows."""
_OPTIONS = re.compile(r"(?P<place>.*?)\?(?P<options>\w+=.*)", re.DOTALL)
_TABLE = frozenset({"dbtable", "query"})
"""A parameter of a url that resembles one of these is a slip, and no parameter of a driver."""
_FILE_STORES = frozenset({"file", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "hdfs", "sftp", "ftp"})


def parse_place(
    half: Half, text: str, typed_options: dict[str, Any], argument: str | None = None
) -> Endpoint:
    """The end of a transfer that an argument names: a url or a path, and options behind a `?`.

    `typed_options` are options that were given apart, `argument` is what messages call the place. The place is one of

    - a url of a connector: `postgresql://db/shop?dbtable=orders`. A parameter that is an option of the connector is
      taken as that option; the others stay in the url.
    - the name of a connector and a place: `csv:flights.csv`, `parquet:s3://lake/orders`, `kafka:?topic=orders`.
    - a path whose ending names the connector: `s3://lake/orders.parquet`, `flights.csv?delimiter=;`. All parameters
      are options.

    Values are percent-decoded.

    Raises:
        OptionError: nothing is known of that name, or an option is unknown or given twice.
    """
    argument = argument or _ARGUMENTS[half]
    if not text.strip():
        raise OptionError(f"{argument} is empty; it takes a url or a path", option=argument)
    connector, key, location = _connector_of(half, text, argument)
    if key == "url" and not is_clear(location):
        raise OptionError(
            f"{argument} has an '@' after the first '/', '?' or '#', so it is not clear where its login ends. In a "
            "login and in parameters, write / ? # @ : as %2F %3F %23 %40 %3A",
            option=argument,
        )
    match = _OPTIONS.fullmatch(location)
    options: dict[str, Any] = {}
    if match is not None:
        location = match["place"]
        url_parameters = _take_options(
            connector, half, match["options"], options, argument, in_url=key == "url"
        )
        if url_parameters:
            location = f"{location}?{url_parameters}"
    if location and not key:
        raise OptionError(
            f"{argument} has {mask_text(location)!r} behind {connector.name + ':'!r}, which takes options alone, as in "
            f"{connector.name}:?name=value",
            option=argument,
        )
    if location:
        add_option(options, key, location)
    for name, value in typed_options.items():
        add_option(options, name, value)
    return Endpoint(connector.name, options)


def _connector_of(half: Half, text: str, argument: str) -> tuple[Connector, str, str]:
    """The connector, the option that holds the place, and the place."""
    match = _PREFIX.fullmatch(text)
    prefix = match[1].lower() if match is not None else ""
    if match is not None and prefix not in _FILE_STORES:
        for connector in named_first(prefix):
            schemes = {*connector.schemes, *(("http", "https") if connector.name == "http" else ())}
            of_url = scheme_of(text) in schemes
            if not of_url and prefix != connector.name:
                continue
            names = connector.options_class(half).names()  # an error, if it has no such half
            if of_url and "url" in names:
                return connector, "url", text
            key = next((option for option in ("path", "url", "dbtable") if option in names), "")
            return connector, key, _without_slashes(match[2]) if key == "path" else match[2]
        raise _unknown(half, prefix, text, argument)
    with_options = _OPTIONS.fullmatch(text)
    location = with_options["place"] if with_options is not None else text
    try:
        return find_connector({"path": location}, half), "path", text
    except OptionError:
        raise _unknown(half, prefix, location, argument) from None


def _unknown(half: Half, prefix: str, location: str, argument: str) -> OptionError:
    names = [connector.name for connector in all_connectors() if getattr(connector, half)]
    schemes = {
        scheme
        for connector in all_connectors()
        if getattr(connector, half)
        for scheme in connector.schemes
    }
    if prefix and prefix not in _FILE_STORES:
        near = difflib.get_close_matches(prefix, sorted({*names, *schemes}), n=1)
        problem = f"begins with {prefix + ':'!r}, which names no {half}"
        hint = (
            f"; did you mean {near[0] + ':'!r}?"
            if near
            else "; write ./ before a path that has a colon."
        )
    else:
        problem = f"{mask_text(location)!r} does not say its format by its ending"
        hint = f": put a name in front of it, as in parquet:{mask_text(location)}."
    return OptionError(
        f"{argument} {problem}{hint} Names: {', '.join(names)}; urls: {', '.join(sorted(schemes))}",
        option=argument,
        got=prefix or mask_text(location),
    )


def _without_slashes(path: str) -> str:
    """`///lake/orders` is `/lake/orders`, as in a `file` url."""
    return path[2:] if path.startswith("///") else path


def _take_options(
    connector: Connector,
    half: Half,
    text: str,
    options: dict[str, Any],
    argument: str,
    *,
    in_url: bool,
) -> str:
    """Put parameters that are options into `options`; returns the others, unchanged, if they may stay `in_url`."""
    model = connector.options_class(half)
    option_names = {*model.names(), *(name.lower() for name in model.aliases)}
    option_names |= {name.lower() for name in (*model.ignored, *model.refused)}
    remaining = []
    for part in text.split("&"):
        name, _, value = part.partition("=")
        name = unquote(name)
        if name.lower() in option_names:
            add_option(options, name, unquote(value))
        elif in_url and not difflib.get_close_matches(
            name.lower(), option_names & _TABLE, cutoff=0.8
        ):
            remaining.append(part)
        else:
            near = difflib.get_close_matches(
                name, [_spelled(model, option_name) for option_name in option_names], n=1
            )
            path = "" if in_url else f" A path that has a '?' itself is given by -o {half}.path=..."
            raise OptionError(
                f"{argument} has parameter {name!r}, which is not an option of {connector.name}"
                f"{f'; did you mean {near[0]!r}?' if near else '.'}{path}",
                option=name,
            )
    return "&".join(remaining)


def _spelled(model: Any, lowered: str) -> str:
    field = model.names().get(lowered)
    return lowered if field is None else model.model_fields[field].alias or field


def add_option(options: dict[str, Any], name: str, value: object) -> None:
    if any(name.lower() == option.lower() for option in options):
        raise OptionError(f"option {name!r} is given twice: give it once", option=name)
    options[name] = value


def parse_options(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`reader.X=...` and `writer.X=...` by half.

    Raises:
        OptionError: another text.
    """
    by_half: dict[str, dict[str, Any]] = {"reader": {}, "writer": {}}
    for text in texts:
        key, equals, value = text.partition("=")
        half, dot, name = key.partition(".")
        if half not in by_half or not dot or not equals or not name.strip():
            takes = "reader.NAME=VALUE or writer.NAME=VALUE"
            raise OptionError(
                f"option '-o' got {key!r}; it takes {takes}", option="-o", got=key, takes=takes
            )
        add_option(by_half[half], name.strip(), value)
    return by_half


def column_list(option: str, text: str | None) -> tuple[str, ...] | None:
    """The columns that an option lists, as option `columns` of a reader does; None = it is not given.

    Raises:
        OptionError: it lists none.
    """
    if text is None:
        return None
    try:
        return TypeAdapter(ColumnList).validate_python(text)
    except ValueError:
        takes = "columns, separated by commas"
        raise OptionError(
            f"option {option!r} got {text!r}; it takes {takes}",
            option=option,
            got=text,
            takes=takes,
        ) from None
