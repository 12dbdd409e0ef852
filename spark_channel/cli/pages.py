"""help: the documentation's pages, which the wheel has with it."""

import difflib
import re
from pathlib import Path

from spark_channel.cli.text import say
from spark_channel.errors import OptionError

__all__ = ["anchor", "list_pages", "page", "show"]

_PACKED = Path(__file__).resolve().parents[1] / "docs"
"""Where a wheel has the pages; a source tree has them beside the package."""
_HEADING = re.compile(r"^(#+) (.*)$")


def page(topic: str) -> str:
    """The page `topic`, such as `limits`, or one section of it, such as `limits#windows`.

    Raises:
        OptionError: there is no such page or section; names the nearest.
    """
    name, _, section = topic.removeprefix("docs/").partition("#")
    pages = _pages()
    name = name.removesuffix(".md").rpartition("/")[2].lower()
    if name not in pages:
        raise _unknown(topic, "topic", name, pages)
    text = pages[name].read_text("utf-8")
    return _section(text, section, topic) if section else text


def list_pages() -> list[tuple[str, str]]:
    """The topics, each with the title of its page."""
    titles = ((name, path.read_text("utf-8").partition("\n")[0]) for name, path in _pages().items())
    return [(name, title.lstrip("# ")) for name, title in titles]


def _pages() -> dict[str, Path]:
    folder = _PACKED if _PACKED.is_dir() else _PACKED.parents[1] / "docs"
    return {path.stem.lower(): path for path in sorted(folder.rglob("*.md"))}


def _section(text: str, wanted: str, topic: str) -> str:
    """A heading's lines, up to the next one of its level."""
    kept: list[str] = []
    level, names, is_code = 0, [], False
    for line in text.split("\n"):
        is_code ^= line.startswith("```")
        found = None if is_code else _HEADING.match(line)
        if found is not None:
            name = anchor(found[2])
            names.append(name)
            if level and len(found[1]) <= level:
                break
            if not level and name == wanted.lower():
                level = len(found[1])
        if level:
            kept.append(line)
    if not kept:
        raise _unknown(topic, "section", wanted, names)
    return "\n".join(kept).rstrip() + "\n"


def anchor(heading: str) -> str:
    """A heading as links name it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def _unknown(topic: str, what: str, name: str, known: object) -> OptionError:
    names = [str(each) for each in known] if isinstance(known, (list, dict)) else []
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(names)}"
    return OptionError(
        f"help got {topic!r}, which names no {what}{hint}", option="TOPIC", got=topic
    )


def show(topic: str | None) -> None:
    """Print a page, or the list of them."""
    if topic is not None:
        for line in page(topic).rstrip("\n").split("\n"):
            say(line)
        return
    known = list_pages()
    width = max(len(name) for name, _ in known)
    for name, title in known:
        say(f"{name:<{width}}  {title}")
    say("`spark-channel help TOPIC` shows a page, `help TOPIC#section` a section of it.")
