"""A model folder and a picture that the tests of the command line share."""

from pathlib import Path

import pytest
from terminal import picture, small


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    """A model folder of ours; nobody may change it."""
    return small().save(tmp_path_factory.mktemp("model") / "small")


@pytest.fixture
def photo(tmp_path) -> Path:
    return picture(tmp_path / "photo.png")
