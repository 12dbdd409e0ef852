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


def _section(text: str, section_name: str, topic: str) -> str:
    """A heading's lines, up to the next one of its level."""
    section_lines: list[str] = []
    level, names, is_code = 0, [], False
    for line in text.split("\n"):
        is_code ^= line.startswith("```")
        heading = None if is_code else _HEADING.match(line)
        if heading is not None:
            name = anchor(heading[2])
            names.append(name)
            if level and len(heading[1]) <= level:
                break
            if not level and name == section_name.lower():
                level = len(heading[1])
        if level:
            section_lines.append(line)
    if not section_lines:
        raise _unknown(topic, "section", section_name, names)
    return "\n".join(section_lines).rstrip() + "\n"


def anchor(heading: str) -> str:
    """A heading as links name it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def _unknown(topic: str, kind: str, name: str, candidates: object) -> OptionError:
    names = (
        [str(candidate) for candidate in candidates] if isinstance(candidates, (list, dict)) else []
    )
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(names)}"
    return OptionError(
        f"help got {topic!r}, which names no {kind}{hint}", option="TOPIC", got=topic
    )


def show(topic: str | None) -> None:
    """Print a page, or the list of them."""
    if topic is not None:
        for line in page(topic).rstrip("\n").split("\n"):
            say(line)
        return
    pages = list_pages()
    width = max(len(name) for name, _ in pages)
    for name, title in pages:
        say(f"{name:<{width}}  {title}")
    say("`spark-channel help TOPIC` shows a page, `help TOPIC#section` a section of it.")
