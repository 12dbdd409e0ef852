"""Options of the generator."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from spark_channel.errors import OptionError
from spark_channel.options import Amount, ByteAmount, ReadOptions, parse_amount

__all__ = ["GeneratorOptions"]

_SCHEMA = "id BIGINT, value DOUBLE, name STRING"


def _count(value: object) -> int:
    return 0 if str(value).strip() == "0" else parse_amount(value)


class GeneratorOptions(ReadOptions):
    """Options of the generator."""

    url: str | None = Field(None, description="`generator:`; default: none")
    rows: Annotated[int, BeforeValidator(_count)] = Field(
        1_000_000, description="number of rows; 0: an empty source"
    )
    generator_schema: str = Field(
        _SCHEMA,
        alias="schema",
        description="columns in Spark's syntax; an integer column `id` contains the row's number",
    )
    row_bytes: ByteAmount | None = Field(
        None,
        description="Arrow bytes per row, filled up by a column `padding` of at most 1 MiB; default: no padding",
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(0, description="seed of the values")
    rows_per_batch: Amount = Field(65_536, description="most rows per batch")
    skew: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(
        0.0, description="share of the rows in the first split, 0 to 1; 0: equal splits"
    )
    null_every: Amount | None = Field(
        None, description="every nth row is NULL in all columns but `id`; default: never"
    )
    fail_at_row: Annotated[int, Field(ge=0)] | None = Field(
        None, description="the row, counted from 0, at which reading fails; default: never"
    )

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        if self.where is not None:
            raise OptionError(
                "option 'where' is not supported by the generator: omit it",
                option="where",
                got=self.where,
            )
        if (
            self.url is not None
            and self.url.lower().removeprefix("jdbc:").rstrip("/") != "generator:"
        ):
            raise OptionError(
                f"option 'url' got {self.url!r}; it takes generator:",
                option="url",
                got=self.url,
                takes="generator:",
            )
