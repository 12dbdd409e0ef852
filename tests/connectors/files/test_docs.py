"""`docs/files.md` goes through every option that is taken, `docs/options.md` also through those that are not."""

import re
from pathlib import Path

import pytest

from spark_channel.connectors.files import options
from spark_channel.options import Options, ReadOptions, WriteOptions

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "files.md").read_text(encoding="utf-8")
ALL = (DOCS / "options.md").read_text(encoding="utf-8")
MODELS = [getattr(options, name) for name in options.__all__]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_option_is_on_the_page(model: type[Options]) -> None:
    base = ReadOptions if issubclass(model, ReadOptions) else WriteOptions
    own = {
        field.alias or name
        for name, field in model.model_fields.items()
        if name not in base.model_fields
    }
    names = own | set(model.aliases) - set(base.aliases)
    assert [name for name in sorted(names) if f"`{name}`" not in PAGE] == []
    not_taken = {*model.ignored, *model.refused}
    assert [name for name in sorted(not_taken) if f"`{name}`" not in ALL] == []


def test_the_page_names_no_option_that_is_not_there() -> None:
    known = {"path"}
    for model in MODELS:
        known |= {field.alias or name for name, field in model.model_fields.items()}
        known |= {*model.aliases, *model.ignored, *model.refused}
    rows = [
        line.split("|")[1]
        for line in PAGE.split("## Options for reading")[1].split("## Internals")[0].splitlines()
        if line.startswith("| `")
    ]
    assert [name for row in rows for name in re.findall(r"`(\w+)`", row) if name not in known] == []
