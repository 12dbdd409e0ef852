"""One warning of Spark's is about this package alone: that `register` replaces the statically registered class.

Spark finds `format("channel")` by itself; what `register` puts there is the same, and knows the session.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["without_warning"]

_log = logging.getLogger(__name__)
_LOGGER = "org.apache.spark.sql.execution.datasources.DataSourceManager"


@contextmanager
def without_warning(context: Any) -> Iterator[None]:
    """Spark logs errors alone of data sources that are registered; of `context`, None: no session here has a JVM."""
    before = None
    try:
        if context is not None:
            log4j = context._jvm.org.apache.logging.log4j  # noqa: SLF001 - no public road
            before = log4j.LogManager.getLogger(_LOGGER).getLevel()
            log4j.core.config.Configurator.setLevel(_LOGGER, log4j.Level.ERROR)
    except Exception as error:  # another logger, or a gateway that refuses access
        _log.debug("Spark may warn that 'channel' was replaced: %s", error)
    try:
        yield
    finally:
        if before is not None:
            context._jvm.org.apache.logging.log4j.core.config.Configurator.setLevel(  # noqa: SLF001
                _LOGGER, before
            )
