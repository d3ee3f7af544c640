"""Models that the tests share: each is made once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

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


@pytest.fixture(autouse=True)
def one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tiny models lose more time to threads waiting for each other than they gain."""
    threads = torch.get_num_threads()
    if request.node.get_closest_marker("real") is None:
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
