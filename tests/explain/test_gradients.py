"""Gradient x input and integrated gradients: the gradient is right, the parts sum to the whole."""

from pathlib import Path as File

import numpy as np
import pytest
import torch
from subjects import pictures, subject

import saccade
from saccade.explain.methods import gradients
from saccade.explain.methods.gradients import NOISE, Path, attributions, input_gradient, mean_colour
from saccade.explain.methods.table import METHODS
from saccade.models.build import Vision
from saccade.models.resnet import ResNet

SMOOTH = ["token", "pair", "mean", "map", "relative", "post-norm"]
TARGET = torch.tensor([1, 2])


def score(module: Vision, image: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return module(image)[torch.arange(image.shape[0]), TARGET[: image.shape[0]]]


@pytest.mark.parametrize("kind", ["token", "map", "hybrid", "cnn"])
def test_the_gradient_is_how_the_score_moves_with_a_sample(kind: str) -> None:
    module = subject(kind).double()
    image, step = pictures(module).double(), 1e-6
    found = input_gradient(module, image, TARGET)
    for place in ((0, 0, 3, 5), (1, 2, 7, 1), (0, 1, 22, 15)):
        more, less = image.clone(), image.clone()
        more[place] += step
        less[place] -= step
        expected = (score(module, more) - score(module, less))[place[0]] / (2 * step)
        assert float(found[place]) == pytest.approx(float(expected), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("kind", ["token", "hybrid", "cnn"])
def test_gradient_times_input_is_added_up_in_every_place(kind: str) -> None:
    module = subject(kind)
    image = pictures(module)
    parts = (image * input_gradient(module, image, TARGET)).double().numpy()
    maps = METHODS["gradient"].function(module, image, TARGET).numpy()
    side = 1 if kind == "cnn" else module.config.patch
    expected = np.zeros(maps.shape)
    for (b, _, y, x), value in np.ndenumerate(parts):
        expected[b, y // side, x // side] += value
    assert np.allclose(maps, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("kind", SMOOTH)
def test_integrated_gradients_are_complete(kind: str) -> None:
    module = subject(kind)
    image = pictures(module)
    change = score(module, image) - score(module, mean_colour(image))
    assert change.abs().min() > 0.01
    maps = METHODS["integrated"].function(module, image, TARGET)
    assert ((maps.sum((1, 2)) - change).abs() <= 1e-3 * change.abs()).all()


def test_they_are_the_sum_of_many_small_steps() -> None:
    module = subject("token").double()
    image, steps = pictures(module, 1).double(), 2000
    start = mean_colour(image)
    shares = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    way = start + shares[:, None, None, None] * (image - start)
    mean = input_gradient(module, way, TARGET[:1].expand(steps)).numpy().mean(0)
    expected = (image - start)[0].numpy() * mean
    found = attributions(module, image, TARGET[:1])[0].numpy()
    assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", [*SMOOTH, "hybrid", "cnn"])
@pytest.mark.parametrize("nodes", [8, 50])
def test_the_same_rule_gives_what_captum_gives(kind: str, nodes: int) -> None:
    captum = pytest.importorskip("captum.attr")
    module = subject(kind)
    image, start = pictures(module), torch.full_like(pictures(module), 0.25)
    expected = captum.IntegratedGradients(module).attribute(image, start, target=TARGET, n_steps=nodes)
    for i in range(2):
        found = Path(module, start[i], image[i], TARGET[i : i + 1]).integral(0.0, 1.0, nodes)
        assert (found - expected[i]).abs().max() <= 1e-4 * expected[i].abs().max()


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", ["token", "map", "relative"])
def test_ours_are_captums_with_many_steps(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    captum = pytest.importorskip("captum.attr")
    monkeypatch.setattr(gradients, "COMPLETE", 1e-5)
    module = subject(kind).double()
    image = pictures(module).double()
    start = mean_colour(image)
    expected = captum.IntegratedGradients(module).attribute(image, start, target=TARGET, n_steps=400)
    found = attributions(module, image, TARGET)
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_a_path_is_cut_only_where_the_gradient_turns_quickly() -> None:
    class Step(ResNet):
        """A score that jumps, smoothly, a tenth of the way along."""

        def __init__(self) -> None:
            torch.nn.Module.__init__(self)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            share = image.mean((1, 2, 3))
            return torch.stack([torch.sigmoid(400 * (share - 0.1)), share], 1)

    made: list[tuple[float, float]] = []

    class Watched(Path):
        def piece(self, low: float, high: float) -> gradients.Piece:
            made.append((low, high))
            return super().piece(low, high)

    path = Watched(Step(), torch.zeros(3, 2, 2), torch.ones(3, 2, 2), torch.tensor([0]))
    assert float(path.integrate().sum()) == pytest.approx(1, abs=1e-3)
    assert all(low < 0.26 for low, high in made if high - low < 0.25)
    assert len(made) * gradients.NODES < 200
    made.clear()
    path.target = torch.tensor([1])
    assert float(path.integrate().sum()) == pytest.approx(1, abs=1e-6)
    assert len(made) <= gradients.PIECES // 8


def test_a_score_that_does_not_change_ends_the_search() -> None:
    module = subject("token")
    image = mean_colour(pictures(module))
    maps = METHODS["integrated"].function(module, image, TARGET)
    assert maps.abs().max() <= NOISE


@pytest.mark.slow
def test_a_real_model_is_complete_too(data: File) -> None:
    model = saccade.load(data / "vit_tiny_patch16_224.fp16.safetensors")
    image = torch.from_numpy(model.preprocess.batch([data / "samples" / "catdog.png"]))
    with torch.no_grad():
        target = model.module(image).argmax(-1)
        change = (model.module(image) - model.module(mean_colour(image)))[0, target]
    maps = METHODS["integrated"].function(model.module, image, target)
    assert abs(float(maps.sum() - change)) <= 1e-3 * abs(float(change))
