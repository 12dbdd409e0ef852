"""Flags of datax.py: what they set, and that those without an effect are explained."""

import pytest

from spark_channel.cli.datax_flags import note_datax_flags, set_log_level
from spark_channel.errors import OptionError


def test_flags_without_an_effect_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    note_datax_flags(jvm="-Xmx4g", mode="standalone")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" has no effect")[0] for line in lines] == [
        "note: --jvm",
        "note: --mode standalone",
    ]


def test_flags_that_are_not_given_are_not_mentioned(capsys: pytest.CaptureFixture[str]) -> None:
    note_datax_flags(jvm=None, mode=None)
    assert capsys.readouterr().err == ""


def test_a_level_that_there_is_not_is_refused() -> None:
    with pytest.raises(OptionError, match="'--loglevel' got 'loud'"):
        set_log_level("loud")
