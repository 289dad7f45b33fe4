"""Evaluation mode is a loan: the module comes back as it was."""

import pytest
import torch
from torch import nn

from saccade.models.modules import bare, depth_of, device_of, evaluating


def frozen_in_part():
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.5)).train()
    module[1].eval()
    return module


def fail_in_evaluation_mode(module):
    with evaluating(module):
        assert not any(part.training for part in module.modules())
        raise RuntimeError("halfway")


def test_every_submodule_gets_its_mode_back_even_after_an_error():
    module = frozen_in_part()
    with pytest.raises(RuntimeError, match="halfway"):
        fail_in_evaluation_mode(module)
    assert [part.training for part in module.modules()] == [True, True, False, True]


def test_gradients_are_off_unless_asked_for_and_then_on_whatever_the_caller_did():
    module = frozen_in_part()
    x = torch.ones(3, 2)
    with evaluating(module):
        assert module(x).is_inference()
    with torch.inference_mode(), evaluating(module, gradients=True):
        module(x.clone()).sum().backward()
    assert module[0].weight.grad is not None
    with evaluating(module, gradients=True), torch.no_grad():
        assert not module(x).requires_grad


def test_wrappers_come_off_and_the_device_is_that_of_the_weights():
    module = frozen_in_part()
    assert bare(torch.compile(module, backend="eager")) is module
    assert bare(nn.DataParallel(module)) is module
    assert device_of(module) == torch.device("cpu")
    assert device_of(nn.Linear(2, 2, device="meta")).type == "meta"


@pytest.mark.parametrize(
    ("name", "depth"),
    [("patches.weight", 0), ("front", 0), ("blocks.3.mlp.up.weight", 4), ("stages.1.0.conv1.weight", 2),
     ("norm.weight", 13), ("head.bias", 13)],
)  # fmt: skip
def test_depth_counts_from_the_input(name, depth):
    assert depth_of(name, 12) == depth
