"""Models that the tests share: each is made once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

import bridge
from tests.bridge.families import tiny_module


@pytest.fixture(scope="session")
def modules() -> Callable[[str], Any]:
    """Returns the tiny module of a name in `families.FAMILIES`, in evaluation mode."""
    return functools.cache(tiny_module)


@pytest.fixture(scope="session")
def models(modules: Callable[[str], Any]) -> Callable[[str], bridge.HFModel]:
    """Returns the bridged tiny model of a name in `families.FAMILIES`."""
    return functools.cache(lambda name: bridge.load(modules(name)))
