"""The frame of a job file: settings, contents, and DataX's core and common sections."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from spark_channel.datax.sections import MANY, ONE, JobSection
from spark_channel.datax.value_types import Fraction, NotNegative, Positive, Speed, Text, Texts

__all__ = ["ColumnFormats", "Content", "JobFile", "Plugin", "Setting", "Step"]


_ARROW = "batches of Arrow rows go through the channel, not records"
_SERVER = "no DataX server exists; progress goes to Spark's driver"


class SpeedSetting(JobSection):
    """`job.setting.speed`: the whole job's limits, and how many channels."""

    byte: Speed = None
    record: Speed = None
    channel: Positive | None = None


def _speed_setting(value: object) -> object:
    """DataX's older examples give the bytes alone: `"speed": 1048576`."""
    return (
        {"byte": value} if isinstance(value, (int, str)) and not isinstance(value, bool) else value
    )


class ErrorLimit(JobSection):
    record: NotNegative | None = None
    percentage: Fraction | None = None


def _word(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


class Setting(JobSection):
    ignored: ClassVar[dict[str, str]] = {
        "dryRun": "use `spark-channel run --dry-run`, or `plan`",
    }
    refused: ClassVar[dict[str, str]] = {
        "keyVersion": "DataX's encrypted values are not read; write ${env:NAME} or ${file:PATH} instead",
        "transaction": 'write it as "txn", as the option --txn: "NAME:VERSION"',
    }

    speed: Annotated[SpeedSetting, BeforeValidator(_speed_setting)] = SpeedSetting()
    error_limit: ErrorLimit | None = None
    commit: Annotated[Literal["job", "task"] | None, BeforeValidator(_word)] = None
    txn: Text | None = None


class Plugin(JobSection):
    name: Text
    parameter: dict[str, Any] = Field(default_factory=dict)


class WriterPlugin(Plugin):
    """A writer; in a list of them, with what happens when it fails."""

    on_slow: Literal["block"] = "block"
    on_failure: Literal["fail", "leave"] = "fail"


class Step(JobSection):
    name: Text
    parameter: dict[str, Any] = Field(default_factory=dict)


def _shape(value: object) -> str:
    return MANY if isinstance(value, list) else ONE


class Content(JobSection):
    """One reader, and the writers that each get all rows: an object, as in DataX, or a list of them."""

    reader: Plugin
    writer: Annotated[
        Annotated[WriterPlugin, Tag(ONE)] | Annotated[tuple[WriterPlugin, ...], Tag(MANY)],
        Discriminator(_shape),
    ]
    transformer: tuple[Step, ...] = ()

    @property
    def writers(self) -> tuple[WriterPlugin, ...]:
        return self.writer if isinstance(self.writer, tuple) else (self.writer,)


def _contents(value: object) -> object:
    if isinstance(value, dict):
        return [value]
    if not isinstance(value, list) or not value:
        raise ValueError("an object with reader and writer, or a list of them")
    return value


class Job(JobSection):
    ignored: ClassVar[dict[str, str]] = {
        "preHandler": "Java handlers are not run",
        "postHandler": "Java handlers are not run",
        "jobInfo": "it only names the job in DataX's own reports",
    }

    setting: Setting = Setting()
    content: Annotated[tuple[Content, ...], BeforeValidator(_contents)]


class ChannelSpeed(JobSection):
    byte: Speed = None
    record: Speed = None


class ChannelSection(JobSection):
    ignored: ClassVar[dict[str, str]] = {
        "class": "there is one channel, the in-memory one",
        "flowControlInterval": "the limit is kept continuously, not by sleeps at an interval",
    }

    speed: ChannelSpeed = ChannelSpeed()
    capacity: Positive | None = None
    byte_capacity: Positive | None = None


class Transport(JobSection):
    ignored: ClassVar[dict[str, str]] = {"exchanger": _ARROW, "record": _ARROW}

    channel: ChannelSection = ChannelSection()


class TaskGroupSection(JobSection):
    ignored: ClassVar[dict[str, str]] = {
        "id": "Spark numbers its tasks",
        "sleepInterval": "nothing polls",
        "reportInterval": "progress is reported every second",
    }

    channel: Positive | None = None


class ContainerJob(JobSection):
    ignored: ClassVar[dict[str, str]] = {
        "mode": "the job runs on Spark",
        "reportInterval": "progress is reported every second",
        "sleepInterval": "nothing polls",
        "log": "see Spark's logging",
    }

    id: Text | None = None


class Container(JobSection):
    ignored: ClassVar[dict[str, str]] = {
        "trace": "see Spark's UI",
        "model": "the job runs on Spark",
        "task": "Spark retries tasks: spark.task.maxFailures",
    }

    task_group: TaskGroupSection = TaskGroupSection()
    job: ContainerJob = ContainerJob()


class Core(JobSection):
    ignored: ClassVar[dict[str, str]] = {
        "dataXServer": _SERVER,
        "dsc": _SERVER,
        "statistics": "dirty rows are kept by the option dirtyRowsPath",
    }

    transport: Transport = Transport()
    container: Container = Container()


class ColumnFormats(JobSection):
    """`common.column`: Java date patterns, tried in this order when text becomes a time."""

    ignored: ClassVar[dict[str, str]] = {
        "timeZone": "times without zone stay as they are written, in every zone",
        "encoding": "text is UTF-8 inside; readers and writers have their own encoding",
    }

    datetime_format: Text | None = None
    date_format: Text | None = None
    time_format: Text | None = None
    extra_formats: Texts = ()


class Common(JobSection):
    column: ColumnFormats = ColumnFormats()


class JobFile(JobSection):
    ignored: ClassVar[dict[str, str]] = {
        "entry": "it sets the JVM of DataX; see --conf",
        "setting": "DataX reads job.setting alone",
        "plugin": "plugins are connectors here",
    }

    job: Job
    core: Core = Core()
    common: Common = Common()
