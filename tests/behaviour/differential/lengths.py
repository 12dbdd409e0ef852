"""How many inputs a comparison tries: few in `make test`, many in `make soak`."""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings

__all__ = ["either_length", "examples"]

_QUICK = settings(suppress_health_check=list(HealthCheck), deadline=None)
_LONG = settings(max_examples=1000, suppress_health_check=list(HealthCheck), deadline=None)


def either_length(test: Any) -> Any:
    long = pytest.param("long", marks=[pytest.mark.soak, pytest.mark.timeout(7200)])
    return pytest.mark.parametrize("length", ["quick", long])(test)


def examples(length: str, *, quick: int = 6) -> settings:
    return settings(_QUICK, max_examples=quick) if length == "quick" else _LONG
