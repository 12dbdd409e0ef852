"""The command line. `main` is what the `spark-channel` script runs."""

import atexit
import gc
import logging
import os
import re
import sys
from collections.abc import Sequence
from io import TextIOWrapper

__all__ = ["main"]

_COLLECTED = 200_000
"""New objects after which Python looks for garbage. Its default of 700 is met 70 times by the imports of a copy."""
_LOGGERS_OF_PY4J = ("root", "py4j.java_gateway", "py4j.clientserver")
"""A filter of the root logger sees only what is logged by that logger itself."""


def main() -> None:
    """Run the command in `sys.argv`; for an error of spark-channel, print its message without a traceback.

    Exit codes: 0 done, 1 failed, 2 bad input, 3 more rows were refused than allowed, 130 interrupted,
    143 ended by SIGTERM.
    """
    gc.set_threshold(_COLLECTED)
    # Python ends with three looks for garbage, which took a fifth of a small copy.
    atexit.register(gc.freeze)
    # pydantic looks for plugins in the metadata of every library that is installed.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from spark_channel.requirements import check_versions

    try:
        check_versions()  # before a library of the command line is used
    except ImportError as error:
        _end(error, 1)
    from spark_channel.cli.app import complete
    from spark_channel.cli.exit_codes import INTERRUPTED, exit_code
    from spark_channel.errors import ChannelError
    from spark_channel.signals import TERMINATED

    # By default Spark starts its Python workers with `python3` from PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    for name in _LOGGERS_OF_PY4J:
        logging.getLogger(name).addFilter(_no_trace_of_interrupt)
    if isinstance(sys.stdout, TextIOWrapper):  # the result of a command is printed in any locale
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        complete(sys.argv[1:])()
    except ChannelError as error:
        _end(error, exit_code(error))
    except ModuleNotFoundError as error:
        if error.name != "pyspark":
            raise
        _end(_without_pyspark(error), 1)
    except SystemExit as end:
        if end.code == TERMINATED:
            _end("terminated", TERMINATED)
        if end.code != INTERRUPTED:
            raise
        _end("interrupted", INTERRUPTED)


def _without_pyspark(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The error that says what to install."""
    try:
        import spark_channel.spark  # noqa: F401 - for what it raises
    except ModuleNotFoundError as clear:
        return clear
    return error


def _no_trace_of_interrupt(record: logging.LogRecord) -> bool:
    """py4j logs where in its sockets Ctrl-C interrupted it, and that the JVM, which hears Ctrl-C too, was gone first.

    It raises the same, so that nothing is lost but pages of text.
    """
    error = record.exc_info[1] if record.exc_info else None
    while error is not None:
        is_py4js = type(error).__module__.partition(".")[0] == "py4j"
        if is_py4js or isinstance(error, KeyboardInterrupt | SystemExit):
            return False
        error = error.__context__  # closing the socket that was interrupted may fail, too
    return True


def _as_typed(text: str, words: Sequence[str]) -> str:
    """An error's text in one line, which names options as they were typed."""

    def typed(match: re.Match[str]) -> str:
        flag = "--" + re.sub("([A-Z])", lambda letter: f"-{letter[1].lower()}", match[1])
        is_typed = any(word.partition("=")[0] == flag for word in words)
        return f"option '{flag}'" if is_typed else match[0]

    return re.sub(r"\boption '([a-z]\w*)'", typed, re.sub(r"\s*\n\s*", " ", text))


def _end(reason: object, code: int) -> None:
    from spark_channel.plain_text import one_line

    text = _as_typed(str(reason), sys.argv[1:])
    print(f"spark-channel: {one_line(text)}", file=sys.stderr)  # noqa: T201 - the command line talks
    sys.exit(code)
