"""Makes docs/options.md from the option models: `python -m tests.options_page` writes it anew."""

from pathlib import Path
from typing import Any

from spark_channel.connectors.registry import all_connectors
from spark_channel.options import Options, ReadOptions, WriteOptions
from spark_channel.tunnel.options import TunnelOptions

PAGE = Path(__file__).resolve().parents[1] / "docs" / "options.md"

HEAD = """# Options

Made from the option models by `python -m tests.options_page`; a test keeps it true.

Names are Spark's camelCase, in any case of letters. Rows are whole numbers or `50k`, `1.5M`; bytes are
Arrow bytes, `64MB` or `64MiB`. A name that no connector knows is an error that shows the nearest one; so are
options that contradict each other.

Spark's own `.schema(...)`, `.mode("append")` and `.mode("overwrite")` work as everywhere; a plain `.save()`
without a mode is refused by Spark itself. Values that are secret are never shown, and may be `${env:NAME}`
or `${file:PATH}`.

"""


def spelling(model: type[Options], name: str) -> str:
    return model.model_fields[name].alias or name


def default(model: type[Options], name: str) -> str:
    field = model.model_fields[name]
    if field.is_required():
        return "required"
    value: Any = field.default
    if value is None or value == () or value == "":
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def rows(model: type[Options], names: list[str]) -> list[str]:
    aliases: dict[str, list[str]] = {}
    for alias, target in model.aliases.items():
        aliases.setdefault(target.lower(), []).append(alias)
    made = []
    for name in names:
        shown = spelling(model, name)
        also = "".join(f", `{alias}`" for alias in aliases.get(shown.lower(), []))
        about = (model.model_fields[name].description or "").replace("|", "\\|")
        made.append(f"| `{shown}`{also} | {about} | {default(model, name)} |")
    return made


def table(model: type[Options], without: type[Options] | None = None) -> list[str]:
    names = [name for name in model.model_fields if without is None or name not in without.model_fields]
    lines = ["| option | meaning | default |", "|---|---|---|", *rows(model, names)] if names else []
    for title, reasons in (("Ignored, with a warning", model.ignored), ("Refused", model.refused)):
        if reasons and without is not None:
            listed = "; ".join(f"`{name}`: {reason}" for name, reason in sorted(reasons.items()))
            lines += ["", f"{title} - {listed}."]
    return lines


def page() -> str:
    parts = [HEAD, "## Every read\n\n", "\n".join(table(ReadOptions)), "\n\n## Every write\n\n"]
    parts.append("\n".join(table(WriteOptions)))
    parts += ["\n\n## Every stream\n\n", "\n".join(table(TunnelOptions))]
    for connector in all_connectors():
        for half, base in (("reader", ReadOptions), ("writer", WriteOptions)):
            if getattr(connector, half) is None:
                continue
            found = connector.reader_class() if half == "reader" else connector.writer_class()
            if not found.__module__.startswith("spark_channel."):
                continue  # a stranger's connector, which other tests have put on Python's path
            model = found.Options
            lines = table(model, base)
            if lines:
                parts.append(f"\n\n## {connector.name}: {half}\n\n" + "\n".join(lines).strip())
    return "".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
