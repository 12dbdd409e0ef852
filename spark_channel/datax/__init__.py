"""DataX's job.json, read as the transfers that it asks for."""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.datax.load import load_job
    from spark_channel.datax.loaded_job import LoadedJob
    from spark_channel.datax.variables import parse_parameters
else:
    __getattr__, __dir__ = lazy.exports(
        __name__,
        {"variables": ["parse_parameters"], "load": ["load_job"], "loaded_job": ["LoadedJob"]},
    )

__all__ = ["LoadedJob", "load_job", "parse_parameters"]
