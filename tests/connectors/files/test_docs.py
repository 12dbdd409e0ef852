"""`docs/files.md` and `docs/options.md` go through every option, taken or not."""

from pathlib import Path

import pytest

from spark_channel.connectors.files import options
from spark_channel.options import Options, ReadOptions, WriteOptions

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "files.md").read_text(encoding="utf-8")
ALL = (DOCS / "options.md").read_text(encoding="utf-8")
MODELS = [getattr(options, name) for name in options.__all__]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_option_is_on_a_page(model: type[Options]) -> None:
    base = ReadOptions if issubclass(model, ReadOptions) else WriteOptions
    own = {
        field.alias or name
        for name, field in model.model_fields.items()
        if name not in base.model_fields
    }
    names = own | set(model.aliases) - set(base.aliases)
    assert [name for name in sorted(names) if f"`{name}`" not in PAGE + ALL] == []
    not_taken = {*model.ignored, *model.refused}
    assert [name for name in sorted(not_taken) if f"`{name}`" not in PAGE + ALL] == []
