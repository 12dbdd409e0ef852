"""DataX's plugins for servers that speak the protocol of MySQL or PostgreSQL."""

import re
from collections.abc import Callable
from typing import Any

from spark_channel.jobs.place import End, Place
from spark_channel.jobs.plugins.databases import database_reader, database_writer, known_databases

__all__ = ["ALIASES", "alias_reader", "alias_writer"]

ALIASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "drds": ("mysql", ()),
    "oceanbasev10": ("mysql", ("oceanbase",)),
    "adbmysql": ("mysql", ()),
    "gaussdb": ("postgresql", ("opengauss", "gaussdb")),
    "adbpg": ("postgresql", ()),
    "kingbasees": ("postgresql", ("kingbase8", "kingbase")),
}
"""DataX's name -> the plugin whose protocol the server speaks, and the schemes of its JDBC driver."""
_TENANT = re.compile(r"\|\|_dsc_ob10_dsc_\|\|(?P<tenant>.*?)\|\|_dsc_ob10_dsc_\|\|(?P<url>.*)", re.DOTALL)
"""How oceanbasev10 writes `cluster:tenant` in front of a url: as a part of the user's name."""


def alias_reader(name: str, parameter: dict[str, Any], place: Place) -> End:
    protocol, _ = ALIASES[name]
    return database_reader(known_databases()[protocol], _translated(name, parameter, place), place)


def alias_writer(name: str, parameter: dict[str, Any], place: Place) -> End:
    protocol, _ = ALIASES[name]
    return database_writer(known_databases()[protocol], _translated(name, parameter, place), place)


def _translated(name: str, parameter: dict[str, Any], place: Place) -> dict[str, Any]:
    """The parameter with urls of the protocol. What is malformed stays, and is refused where it is read."""
    protocol, schemes = ALIASES[name]
    place.warnings.append(
        f"{place.path}: {place.plugin} is read and written by the protocol of {protocol}; it was not tested "
        "against this kind of server"
    )
    users: set[str] = set()

    def url(text: Any) -> Any:
        if not isinstance(text, str):
            return text
        found = _TENANT.fullmatch(text.strip())
        if found is not None:
            text = found["url"]
            cluster, _, tenant = found["tenant"].partition(":")
            users.add(f"@{tenant}#{cluster}" if tenant else f"@{cluster}")
        for scheme in schemes:
            text = re.sub(rf"^\s*jdbc:{scheme}:", f"jdbc:{protocol}:", text, flags=re.IGNORECASE)
        return text

    made = _with_urls(parameter, url)
    user = made.get("username")
    if len(users) == 1 and isinstance(user, str) and "@" not in user:
        made["username"] = user + users.pop()
    return made


def _with_urls(parameter: dict[str, Any], url: Callable[[Any], Any]) -> dict[str, Any]:
    given = parameter.get("connection")
    listed = given if isinstance(given, list) else [given]
    made = []
    for connection in listed:
        if isinstance(connection, dict) and "jdbcUrl" in connection:
            urls = connection["jdbcUrl"]
            connection = {
                **connection,
                "jdbcUrl": [url(each) for each in urls] if isinstance(urls, list) else url(urls),
            }
        made.append(connection)
    return (
        {**parameter, "connection": made if isinstance(given, list) else made[0]}
        if given is not None
        else dict(parameter)
    )
