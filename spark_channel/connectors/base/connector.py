"""What a connector declares, before any of its classes is loaded."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, cast

from spark_channel import lazy
from spark_channel.connectors.base.contract import Reader, Writer
from spark_channel.errors import MissingPackageError, OptionError
from spark_channel.options import CommitMode, Options
from spark_channel.requirements import check_versions

if TYPE_CHECKING:
    from spark_channel.connectors.base.small_tables import Together

__all__ = [
    "AT_LEAST_ONCE",
    "CURSOR",
    "LENIENT",
    "LOCAL_TEXTS",
    "ONCE",
    "ONCE_BY_JOB",
    "S3",
    "AlsoReaches",
    "Connector",
    "DataxCompatibility",
    "Delivery",
    "Maturity",
]

Maturity = Literal["stable", "preview", "experimental"]
"""The system that the tests ran against. "stable": the system itself. "preview": a substitute (an emulator, an old
release, its engine without its server, another product with its protocol), or a part of what the connector reaches.
"experimental": only servers written for the tests, or nothing."""

Delivery = Literal["once", "once in a run", "at least once"]
"""How often the target gets a row. "once": however often a task runs, and a job with a transaction id. "once in a run":
however often a task runs; a job that runs again adds its rows again. "at least once": also a task that runs again."""

ONCE: Mapping[CommitMode, Delivery] = {"job": "once", "task": "once"}
ONCE_BY_JOB: Mapping[CommitMode, Delivery] = {"job": "once"}
AT_LEAST_ONCE: Mapping[CommitMode, Delivery] = {"task": "at least once"}
CURSOR = "cursorColumn"
S3 = "SeaweedFS 4.48; Amazon's store was not run"
LOCAL_TEXTS = {"timestampsAs": "local", "floatsAs": "text"}
LENIENT = {"convert": "lenient", "ledger": "optional"}

_FOUND: set[str] = set()


@dataclass(frozen=True, slots=True)
class DataxCompatibility:
    """Options of a database's connector, for jobs of DataX's plugin for it.

    `reader`: of every read; `writer`: of every write. `texts`: of a read whose rows become texts in files. `own_mode`:
    of a session that sets its SQL mode itself. `modes`: of a write, by DataX's `writeMode`, if the database has it.
    `zone`: the option for the zone of the machine, which the driver of DataX gives to its sessions; "" = it gives none.
    `short_decimals`: DataX's plugin drops zeros at the end of decimals.
    """

    reader: Mapping[str, str] = field(default_factory=dict)
    writer: Mapping[str, str] = field(default_factory=lambda: {"convert": "lenient"})
    texts: Mapping[str, str] = field(default_factory=dict)
    own_mode: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    zone: str = ""
    short_decimals: bool = False


@dataclass(frozen=True, slots=True)
class AlsoReaches:
    """A system or a place that a connector reaches as well, with less proof or another delivery.

    `delivery` {} = that of the connector.
    """

    system: str
    maturity: Maturity
    tested: str
    delivery: Mapping[CommitMode, Delivery] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Connector:
    """One connector: where its classes are (`module:Class`), and which urls and paths select it.

    `SqlWriter`, as the `writer`, is given the `database`, whose class has the options.

    `schemes` are url schemes (`sqlite` for `sqlite:...` and `jdbc:sqlite:...`), `suffixes` path
    endings (`.csv`), `needs` the libraries that the extra of its name installs.

    Known before any class is loaded: `port`, the port of its server when the url has none; None = its url names no
    server. `dialect`, sqlglot's name of its SQL; "" = none. `datax`, its names as a DataX plugin, without `reader` and
    `writer`: with a `dialect` it takes the parameters of DataX's databases, else its own options. `as_datax`, the
    options with which it behaves as DataX does. `secrets`, the options that are `Secret`, and `Url`s except paths:
    Spark's plans and event logs hide them. `feed`, the option of its change feed, or a text; () = it has none.
    `keeps`: the target exists after a write, so that `errorIfExists` checks it. `together`: where its function is
    (`module:function`) for `copied_together`.

    `maturity`, and what it was `tested` against, in a few words; "" = not declared. `delivery`: what each commit mode
    that the writer takes promises. `also`: what else it reaches. `untested`: whether options reach an experiment.
    """

    name: str
    reader: str | None
    writer: str | None
    schemes: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    about: str = ""
    needs: tuple[str, ...] = ()
    port: int | None = None
    dialect: str = ""
    datax: tuple[str, ...] = ()
    as_datax: DataxCompatibility = DataxCompatibility()
    secrets: tuple[str, ...] = ()
    feed: tuple[str, ...] = ()
    keeps: bool = True
    maturity: Maturity = "experimental"
    tested: str = ""
    delivery: Mapping[CommitMode, Delivery] = field(default_factory=dict)
    also: tuple[AlsoReaches, ...] = ()
    untested: Callable[[Mapping[str, Any]], bool] | None = None
    together: str | None = None
    database: str | None = None

    def _load(self, target: str | None, half: str) -> Any:
        if target is None:
            raise OptionError(f"connector {self.name!r} has no {half}", option=half, got=self.name)
        if missing := ", ".join(name for name in self.needs if not _is_installed(name)):
            raise MissingPackageError(
                f"connector {self.name!r} needs {missing}, which {sys.executable} does not have: "
                f"pip install 'spark-channel[{self.name}]', on the driver's host and on the workers",
                name=missing,
            )
        check_versions(self.name)
        module, _, name = target.partition(":")
        return getattr(lazy.load(module), name)

    def reader_class(self) -> type[Reader]:
        """Load the reader. Raises OptionError if it has none, MissingPackageError if it lacks a library."""
        return cast(type[Reader], self._load(self.reader, "reader"))

    def writer_class(self) -> type[Writer]:
        """Load the writer. Raises the errors of `reader_class`."""
        return cast(type[Writer], self._load(self.writer, "writer"))

    def options_class(self, half: str) -> type[Options]:
        """The options of its reader or its writer; `half` is "reader" or "writer"."""
        if half == "reader":
            return self.reader_class().Options
        return cast(type[Options], self._load(self.database or self.writer, half).Options)

    def reader_with(self, options: Mapping[str, Any]) -> tuple[Reader, list[str]]:
        """See `load_reader`."""
        cls = self.reader_class()
        parsed, warnings = cls.Options.parse(options, connector=self.name)
        return cls(parsed), warnings

    def writer_with(self, options: Mapping[str, Any]) -> tuple[Writer, list[str]]:
        """See `load_writer`."""
        cls: Any = self.writer_class()
        parsed, warnings = self.options_class("writer").parse(options, connector=self.name)
        if self.database is None:
            return cls(parsed), warnings
        return cls(self._load(self.database, "writer")(parsed)), warnings

    def copied_together(self, reader: Reader, writer: Writer) -> "Together | None":
        """Return how small tables go from `reader`'s source to the target of `writer`, its own; None = one by one."""
        if self.together is None:
            return None
        return cast("Together | None", self._load(self.together, "writer")(reader, writer))


def _is_installed(module: str) -> bool:
    """Whether `module` can be imported. Found modules are cached: `check` may read a thousand files."""
    if module not in _FOUND and find_spec(module) is not None:
        _FOUND.add(module)
    return module in _FOUND
