"""The shape checker knows no traced sizes, so it rests while a model is traced."""

import contextlib

import pytest
from jaxtyping import config

from saccade.engine.graph import trace


@pytest.fixture(autouse=True, scope="session")
def unchecked_while_traced():
    traced = trace.free

    @contextlib.contextmanager
    def free():
        before = config.jaxtyping_disable
        config.update("jaxtyping_disable", True)
        try:
            with traced():
                yield
        finally:
            config.update("jaxtyping_disable", before)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "free", free)
        yield
