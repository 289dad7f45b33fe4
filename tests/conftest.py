"""What all tests share: one thread each (the suite runs on all cores), and the real data if it is there."""

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"  # no test looks for pretrained weights on a network; those of the hub
os.environ["HF_HOME"] = "/nonexistent/hub"  # isolate themselves from both

import pytest
import torch
from hypothesis import settings

# the same cases each time, so that a run says something about the code; SACCADE_FUZZ looks for new ones
settings.register_profile("same", derandomize="SACCADE_FUZZ" not in os.environ)
settings.load_profile("same")

DATA = Path(os.environ.get("SACCADE_DATA", Path(__file__).parents[2] / "shared" / "data"))


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real pictures and weights; tests that need it skip where it is not."""
    if not DATA.is_dir():
        pytest.skip(f"no folder of real data at {DATA}; set SACCADE_DATA to its place")
    return DATA
