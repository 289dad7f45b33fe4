"""The published costs of pruned DeiT-S, and what is counted when fewer tokens go on."""

from itertools import pairwise

import pytest
import torch

from saccade.models.names import config
from saccade.models.vit import ViTConfig
from saccade.tokens.cost import lengths, macs
from saccade.tokens.merge import MergedConfig, constant
from saccade.tokens.prune import PrunedConfig

SMALL = ViTConfig(image=(32, 32), patch=4, width=24, depth=4, heads=2, hidden=48, classes=5)


@pytest.mark.parametrize(
    ("keep", "published"), [(1.0, 4.60), (0.9, 4.04), (0.8, 3.46), (0.7, 2.98), (0.6, 2.57), (0.5, 2.23)]
)
def test_deit_s_costs_what_was_published(keep, published):
    found = macs(PrunedConfig(vit=config("deit_s16"), keep=keep, places=(3, 6, 9)))
    assert found / 1e9 == pytest.approx(published, rel=0.01)


def test_tokens_before_each_block():
    small = config("deit_s16")
    pruned = PrunedConfig(vit=small, keep=0.7, places=(3, 6, 9))
    assert lengths(pruned) == (197,) * 3 + (138,) * 3 + (97,) * 3 + (68,) * 3
    assert lengths(MergedConfig(vit=SMALL, rates=(8, 8, 0, 40))) == (65, 57, 49, 49)
    assert lengths(SMALL) == (65,) * 4
    assert lengths(SMALL, (16, 64)) == (65,) * 4
    assert lengths(PrunedConfig(vit=SMALL, keep=0.5, places=(1,)), (16, 32)) == (33, 17, 17, 17)


def test_the_count_is_that_of_the_equations():
    def block(n, m):
        return 4 * n * 24**2 + 2 * n * n * 24 + 2 * m * 24 * 48

    rates = (8, 8, 0, 4)
    found = macs(MergedConfig(vit=SMALL, rates=rates)) - macs(MergedConfig(vit=SMALL, rates=constant(4, 0)))
    n = [65, 57, 49, 49, 45]
    pairs = list(pairwise(n))
    matching = sum((-(-(a - 1) // 2)) * ((a - 1) // 2) * 24 for (a, b) in pairs if a != b)
    assert found == sum(block(a, b) for a, b in pairs) - 4 * block(65, 65) + matching
    assert macs(MergedConfig(vit=SMALL, rates=constant(4, 0))) == macs(SMALL)


def test_counting_takes_no_memory_for_numbers():
    assert not torch.is_inference_mode_enabled()
    huge = PrunedConfig(vit=config("vit_G14"), keep=0.5, places=(1,))
    assert lengths(huge)[-1] == 129
