"""`docs/files.md` and the shared tables of `docs/options.md` name every option, taken or not."""

from pathlib import Path

import pytest

from spark_channel.connectors.files import options
from spark_channel.options import Options, ReadOptions, WriteOptions

DOCS = Path(__file__).parents[1] / "docs"
TEXT = "".join((DOCS / name).read_text(encoding="utf-8") for name in ("files.md", "options.md"))
MODELS = [getattr(options, name) for name in options.__all__]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_option_is_on_a_page(model: type[Options]) -> None:
    base = ReadOptions if issubclass(model, ReadOptions) else WriteOptions
    own = {
        field.alias or name
        for name, field in model.model_fields.items()
        if name not in base.model_fields
    }
    names = own | {*model.ignored, *model.refused}  # aliases are silent
    assert [name for name in sorted(names) if f"`{name}`" not in TEXT] == []
