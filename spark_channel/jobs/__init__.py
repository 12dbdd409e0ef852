"""DataX's job.json, read as the transfers that it asks for."""

from spark_channel.jobs.load import LoadedJob, load_job
from spark_channel.jobs.references import resolve_references
from spark_channel.jobs.variables import parse_parameters

__all__ = ["LoadedJob", "load_job", "parse_parameters", "resolve_references"]
