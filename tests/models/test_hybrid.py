import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from oracle import google_logits, random_google
from torch.testing import assert_close

from saccade.errors import UsageError
from saccade.models.hybrid import Hybrid, HybridConfig, Unit
from saccade.models.vit import ViTConfig
from saccade.nn.block import BlockStyle

SIZES = {"width": 24, "depth": 2, "heads": 3, "hidden": 48, "classes": 10}


def config(layers=(1, 1), patch=16, image=(64, 64), **changes):
    vit = ViTConfig(patch=patch, image=image, block=BlockStyle(gelu="tanh"), **SIZES | changes)
    return HybridConfig(layers=layers, vit=vit)


def pictures(height=64, width=64, batch=2):
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(0))


def awake(model):
    """Give the head and the silent ends of the units something to say."""
    torch.manual_seed(0)
    torch.nn.init.normal_(model.head.weight)
    for unit in (m for m in model.modules() if isinstance(m, Unit)):
        torch.nn.init.normal_(unit.norm3.weight)
    return model.eval()


PLACES = {  # Google's name: ours, and how the array is laid out
    "conv_root": ("patches.root", "p q i o -> o i p q"),
    "gn_root": ("patches.norm", "1 1 1 o -> o"),
    **{f"conv{i}": (f"conv{i}", "p q i o -> o i p q") for i in (1, 2, 3)},
    **{f"gn{i}": (f"norm{i}", "1 1 1 o -> o") for i in (1, 2, 3)},
    "conv_proj": ("project", "p q i o -> o i p q"),
    "gn_proj": ("norm_project", "1 1 1 o -> o"),
    "embedding": ("patches.embedding", "p q i o -> o i p q"),
    "LayerNorm_0": ("norm1", ""),
    "query": ("attention.q", "i h o -> (h o) i"),
    "key": ("attention.k", "i h o -> (h o) i"),
    "value": ("attention.v", "i h o -> (h o) i"),
    "out": ("attention.out", "h i o -> o (h i)"),
    "LayerNorm_2": ("norm2", ""),
    "Dense_0": ("mlp.up", "i o -> o i"),
    "Dense_1": ("mlp.down", "i o -> o i"),
    "encoder_norm": ("norm", ""),
    "head": ("head", "i o -> o i"),
}


def ours(arrays, grid):
    """Google's arrays under the names of `Hybrid`, by hand."""
    state = {}
    for name, array in arrays.items():
        *path, layer, kind = name.split("/") if "/" in name else ("", name)
        if layer not in PLACES:
            continue
        place, layout = PLACES[layer]
        if path and path[0].startswith("block"):
            b, u = int(path[0].removeprefix("block")), int(path[1].removeprefix("unit"))
            place = f"patches.stages.{b - 1}.{u - 1}.{place}"
        elif len(path) > 1:
            place = f"blocks.{path[1].removeprefix('encoderblock_')}.{place}"
        if kind == "bias":
            array = array.reshape(-1)
        elif layout:
            array = rearrange(array, layout)
        state[f"{place}.{'bias' if kind == 'bias' else 'weight'}"] = torch.tensor(array)
    position = torch.tensor(arrays["Transformer/posembed_input/pos_embedding"][0])
    state["front"] = torch.tensor(arrays["cls"][0]) + position[:1]
    state["position.table"] = rearrange(position[1:], "(r c) d -> r c d", r=grid[0])
    return state


@pytest.mark.parametrize(
    ("layers", "patch", "image"),
    [((), 32, (64, 96)), ((1, 1, 1), 16, (64, 64)), ((2, 1), 16, (96, 64))],
    ids=["bare root", "three stages", "patches of two"],
)
def test_logits_equal_those_of_the_papers_equations(layers, patch, image):
    arrays = random_google(image=image, patch=patch, layers=layers, **SIZES)
    model = Hybrid(config(layers, patch, image)).double().eval()
    model.load_state_dict(ours(arrays, model.config.grid))
    x = pictures(*image).double()
    expected = google_logits(arrays, rearrange(x, "b c h w -> b h w c").numpy())
    assert np.std(expected) > 0.1
    assert_close(model(x), torch.tensor(expected), atol=1e-6, rtol=0)  # 1e-6: the weights are float32
    assert_close(model.float()(x.float()), torch.tensor(expected).float(), atol=1e-4, rtol=0)


PUBLISHED = {  # layers, patch, width and heads; millions of parameters in timm's tables, with 1000 classes
    "R50+B/16": ((3, 4, 9), 16, 768, 12, 98.66),
    "R26+S/32": ((2, 2, 2, 2), 32, 384, 6, 36.43),
    "R+Ti/16": ((), 32, 192, 3, 6.34),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_it_has_as_many_parameters_as_published(name):
    layers, patch, width, heads, millions = PUBLISHED[name]
    vit = ViTConfig(patch=patch, width=width, heads=heads, hidden=4 * width)
    with torch.device("meta"):
        model = Hybrid(HybridConfig(layers=layers, vit=vit))
    count = sum(p.numel() for p in model.parameters()) + width  # ours has no position for the class token
    assert round(count / 1e6, 2) == millions


def test_the_bare_root_gives_49_tokens_at_224_pixels():
    hybrid = config((), 32, (224, 224))
    assert (hybrid.stride, hybrid.patch) == (4, 8)
    assert Hybrid(hybrid).embed(pictures(224, 224, batch=1)).shape == (1, 1 + 49, 24)


@pytest.mark.parametrize("size", [(64, 64), (32, 80), (96, 48)])
def test_any_whole_number_of_patches_runs(size):
    assert Hybrid(config()).eval()(pictures(*size)).shape == (2, 10)


def test_the_first_loss_is_the_logarithm_of_the_classes():
    loss = F.cross_entropy(Hybrid(config())(pictures()), torch.tensor([3, 7]))
    assert loss.item() == pytest.approx(math.log(10), abs=1e-6)


def test_units_start_as_their_residual_path():
    unit = Hybrid(config((2,))).patches.stages[0][1]
    x = torch.rand(2, 256, 4, 4)
    assert_close(unit(x), x)


def test_eps_reaches_every_group_norm():
    hybrid = HybridConfig(layers=(1, 2), vit=config().vit, eps=1e-3)
    norms = [m for m in Hybrid(hybrid).modules() if isinstance(m, torch.nn.GroupNorm)]
    assert {norm.eps for norm in norms} == {1e-3}
    assert config().eps == 1e-6


def test_batch_order_does_not_matter():
    model, x = awake(Hybrid(config())), pictures(batch=3)
    assert_close(model(x.flip(0)), model(x).flip(0), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(model(x)[0], model(x)[1], atol=1e-2)


def test_eval_is_deterministic():
    model = awake(Hybrid(config()))
    assert torch.equal(model(pictures()), model(pictures()))


def test_two_pictures_can_be_learnt_by_heart():
    torch.manual_seed(0)
    model, x, y = Hybrid(config((1,), image=(32, 32))), pictures(32, 32), torch.tensor([3, 7])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(25):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    assert loss < 0.1


def test_every_parameter_gets_a_gradient():
    model = awake(Hybrid(config()))
    model(pictures()).square().sum().backward()
    assert [
        name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()
    ] == []
    assert model.patches.root.weight.grad.abs().sum() > 0


def test_a_patch_that_the_stages_cannot_reach_is_refused_in_words():
    with pytest.raises(ValueError, match=r"vit.patch is 16 pixels, but 4 stages shrink an image 32 times"):
        config((2, 2, 2, 2), patch=16)


def test_stages_without_units_are_refused_in_words():
    with pytest.raises(ValueError, match="units in a stage of layers is 0; expected a number from 1"):
        config((2, 0))


def test_a_picture_of_an_odd_size_is_refused_in_words():
    with pytest.raises(ValueError, match="72x64 pixels is not a whole number of 16-pixel patches"):
        Hybrid(config())(pictures(72, 64))


@pytest.mark.parametrize(("factor", "channels"), [(0.75, 48), (0.6, 38.4), (1.25, 80)])
def test_a_width_that_groups_do_not_divide_is_refused_in_words(factor, channels):
    words = rf"factor is {factor}, which gives {channels} channels; expected a multiple of 32 channels"
    with pytest.raises(UsageError, match=words):
        replace(config(), factor=factor)


def test_a_factor_of_less_than_half_is_refused_in_words():
    with pytest.raises(UsageError, match=r"factor is 0\.25"):
        replace(config(), factor=0.25)
