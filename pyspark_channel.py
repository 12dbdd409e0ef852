"""Spark imports every top-level module named `pyspark_*` and registers its `DefaultSource`.

It is also the name under which Spark's pickles know the classes that pass from process to process. Spark puts what
`--py-files` names into one folder, and of that only the folder on the path of the processes that look for data
sources, plan and commit: this file is found there, and finds the wheel or zip that lies beside it.
"""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_HOMES = {
    "DefaultSource": "source",
    "ChannelDataSource": "source",
    "ChannelReader": "read",
    "ChannelWriter": "write",
    "AlreadyPublishedWriter": "already_published",
    "ChannelStreamReader": "stream_read",
    "AdmittingStreamReader": "stream_admission",
    "ChannelStreamWriter": "stream_write",
    "check_version": "worker",
    "unpickled": "worker",
}


def _find_package() -> None:
    if find_spec("spark_channel") is not None:
        return
    beside = Path(__file__).resolve().parent.glob("spark_channel*")
    archives = sorted(str(path) for path in beside if path.suffix in (".whl", ".zip"))
    if not archives:
        raise ImportError(
            "pyspark_channel.py is here without spark-channel: name its wheel or zip in --py-files, too"
        )
    sys.path += archives


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from spark_channel import lazy

    home = lazy.load(f"spark_channel.spark.{_HOMES[name]}")
    return getattr(home, "ChannelDataSource" if name == "DefaultSource" else name)


_find_package()
