"""Google's .npz files: logits equal a NumPy implementation of the equations, under all their names."""

import numpy as np
import pytest
import torch
from oracle import google_logits, random_google
from torch.testing import assert_close

from saccade.data.image.preprocess import Preprocess
from saccade.errors import ModelError, UsageError
from saccade.models.build import build
from saccade.models.hybrid import Hybrid
from saccade.models.vit import ViTConfig
from saccade.weights.load import load
from saccade.weights.save import save_folder

KINDS = {
    "class token": {},
    "mean of the patches": {"token": False},
    "pre-logits": {"prelogits": 20},
    "no head": {"classes": 0},
    "bare root of a hybrid": {"layers": (), "image": 64, "patch": 32},
    "hybrid": {"layers": (1, 1, 1), "image": 64, "patch": 16},
    "hybrid of half the width": {"layers": (1, 1, 1), "image": 64, "patch": 16, "factor": 0.5},
    "bare root of half the width": {"layers": (), "image": 64, "patch": 32, "factor": 0.5},
    "hybrid of one and a half widths": {"layers": (1, 1), "image": 32, "patch": 8, "factor": 1.5},
}


def answer(path, image, size=None):
    with torch.inference_mode():
        return load(path, size).module(torch.from_numpy(image.transpose(0, 3, 1, 2).copy()))


def picture(*sides):
    return np.random.default_rng(1).uniform(-1, 1, (2, *sides, 3)).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_the_papers_equations(kind, tmp_path):
    arrays = random_google(**KINDS[kind])
    np.savez(tmp_path / "vit.npz", **arrays)
    side = KINDS[kind].get("image", 32)
    image = picture(side, side)
    expected = torch.from_numpy(google_logits(arrays, image)).float()
    assert expected.std() > 0.05
    assert_close(answer(tmp_path / "vit.npz", image), expected, atol=1e-4, rtol=0)


def per_class(name):
    for ours, later in (
        ("MultiHeadDotProductAttention_1", "MultiHeadDotProductAttention_0"),
        ("LayerNorm_2", "LayerNorm_1"),
        ("MlpBlock_3", "MlpBlock_0"),
    ):
        name = name.replace(ours, later)
    return name


VARIANTS = {
    "prefix params": lambda arrays: {f"params/{k}": v for k, v in arrays.items()},
    "prefix opt/target": lambda arrays: {
        **{f"opt/target/{k}": v for k, v in arrays.items()},
        "opt/state/step": np.array(3),
    },
    "numbered per class": lambda arrays: {per_class(k): v for k, v in arrays.items()},
    "flat norms": lambda arrays: {k: v.reshape(-1) if "/gn" in f"/{k}" else v for k, v in arrays.items()},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", ["class token", "hybrid"])
def test_every_way_to_name_the_arrays_gives_the_same_model(variant, kind, tmp_path):
    arrays = random_google(**KINDS[kind])
    np.savez(tmp_path / "a.npz", **arrays)
    np.savez(tmp_path / "b.npz", **VARIANTS[variant](arrays))
    first, second = (load(tmp_path / name).module.state_dict() for name in ("a.npz", "b.npz"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_big_visions_positions_leave_out_the_class_token(tmp_path):
    arrays = random_google()
    table = arrays.pop("Transformer/posembed_input/pos_embedding")
    np.savez(tmp_path / "google.npz", **arrays, **{"Transformer/posembed_input/pos_embedding": table})
    moved = {**arrays, "cls": arrays["cls"] + table[:, :1], "pos_embedding": table[:, 1:]}
    np.savez(tmp_path / "bv.npz", **{f"params/{per_class(k)}": v for k, v in moved.items()})
    image = picture(32, 32)
    assert_close(answer(tmp_path / "bv.npz", image), answer(tmp_path / "google.npz", image))


def test_big_visions_attention_pool_loads_and_is_written_back_bit_for_bit(tmp_path):
    config = ViTConfig(
        image=(32, 32), patch=8, width=24, depth=2, heads=3, hidden=48, classes=5, pool="map",
        resample="bilinear", block=load_style(),
    )  # fmt: skip
    module = build(config)
    save_folder(tmp_path / "map", module, Preprocess(size=(32, 32)), [], "google")
    assert "MAPHead_0/probe" in np.load(tmp_path / "map" / "model.npz")
    back = load(tmp_path / "map").module
    assert back.config == config
    assert all(
        torch.equal(a, b)
        for a, b in zip(module.state_dict().values(), back.state_dict().values(), strict=True)
    )


def load_style():
    from saccade.weights.layouts.google import STYLE

    return STYLE


def test_files_of_google_are_computed_with_tanh_gelu_and_its_epsilon(tmp_path):
    np.savez(tmp_path / "vit.npz", **random_google())
    style = load(tmp_path / "vit.npz").module.config.block
    assert (style.gelu, style.eps) == ("tanh", 1e-6)


def test_a_model_of_another_gelu_is_not_written_in_googles_layout(tmp_path):
    config = ViTConfig(image=(32, 32), patch=8, width=24, depth=1, heads=3, hidden=48, classes=5)
    with pytest.raises(UsageError, match=r"GELU tanh; this model has layer, pre, 1e-06, erf"):
        save_folder(tmp_path / "no", build(config), Preprocess(size=(32, 32)), [], "google")


def test_a_hybrid_is_recognised_with_its_layers(tmp_path):
    np.savez(tmp_path / "h.npz", **random_google(layers=(2, 1), image=64, patch=8))
    module = load(tmp_path / "h.npz").module
    assert isinstance(module, Hybrid)
    assert module.hybrid.layers == (2, 1)


def test_a_grid_that_is_not_square_needs_its_size_and_says_so(tmp_path):
    arrays = random_google(image=(32, 56))
    np.savez(tmp_path / "wide.npz", **arrays)
    with pytest.raises(ModelError, match="do not fit a square grid; give the size of the training images"):
        load(tmp_path / "wide.npz")
    image = picture(32, 56)
    expected = torch.from_numpy(google_logits(arrays, image)).float()
    assert_close(answer(tmp_path / "wide.npz", image, (32, 56)), expected, atol=1e-4, rtol=0)
