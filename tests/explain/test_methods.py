"""Every method on every kind of model, and each against a computation that shares nothing with it."""

import numpy as np
import pytest
import torch
from subjects import KINDS, asked, pictures, subject

import saccade
from saccade.data.image.preprocess import HALF, IMAGENET, Preprocess
from saccade.errors import UsageError
from saccade.explain.methods.gradients import mean_colour
from saccade.explain.methods.table import METHODS, find_method, fitting_methods
from saccade.explain.target import map_grid
from saccade.models.modules import evaluating
from saccade.models.resnet import ResNet

NAMES = ["relevance", "generic", "attention", "rollout", "gradient_rollout", "gradcam", "gradient",
         "integrated", "occlusion", "random"]  # fmt: skip
PAIRS = [(kind, name) for kind in KINDS for name in fitting_methods(subject(kind))]


@pytest.fixture(autouse=True)
def _coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Integrated gradients in two pieces; how many make them complete is the matter of test_gradients."""
    monkeypatch.setattr("saccade.explain.methods.gradients.CUTS", (0.0, 0.25, 1.0))
    monkeypatch.setattr("saccade.explain.methods.gradients.PIECES", 2)


def test_the_names() -> None:
    assert sorted(METHODS) == sorted(NAMES)
    assert all(found.name == name and found.source for name, found in METHODS.items())
    assert [name for name, found in METHODS.items() if not found.by_class] == [
        "attention",
        "rollout",
        "random",
    ]


@pytest.mark.parametrize(("kind", "name"), PAIRS)
def test_a_map_for_every_model(kind: str, name: str) -> None:
    module = subject(kind)
    image = pictures(module)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    maps = asked(name, module, image)
    pixels, cells, own = image.shape[-2:], map_grid(module, image), tuple(maps.shape[-2:])
    assert maps.shape[0] == 2
    assert own in ({tuple(pixels), cells, (8, 8)} if isinstance(module, ResNet) else {cells})
    assert maps.dtype == torch.float32
    assert maps.isfinite().all()
    assert maps.std() > 0 or name == "gradcam"
    assert not maps.requires_grad
    assert all(p.grad is None and p.requires_grad for p in module.parameters())
    assert all(torch.equal(before[key], value) for key, value in module.state_dict().items())


@pytest.mark.parametrize(("kind", "name"), [p for p in PAIRS if p[0] in ("token", "map", "cnn")])
def test_pictures_do_not_influence_one_another(kind: str, name: str) -> None:
    module = subject(kind)
    image = pictures(module, 3)
    together = asked(name, module, image, [2, 0, 1])
    for i, target in enumerate([2, 0, 1]):
        alone = asked(name, module, image[i : i + 1], [target])[0]
        assert torch.allclose(together[i], alone, rtol=1e-3, atol=2e-4 * float(alone.abs().max()))


@pytest.mark.parametrize(("kind", "name"), [p for p in PAIRS if p[0] in ("token", "mean", "cnn")])
def test_a_method_by_class_tells_classes_apart_and_the_others_do_not(kind: str, name: str) -> None:
    module = subject(kind)
    image = pictures(module, 1)
    same = torch.equal(asked(name, module, image, [0]), asked(name, module, image, [1]))
    assert same is not METHODS[name].by_class


@pytest.mark.parametrize("name", NAMES)
def test_the_caller_may_have_switched_gradients_off(name: str) -> None:
    module = subject("rms").requires_grad_(False)
    image = pictures(module)
    expected = asked(name, module, image)
    with torch.no_grad():
        assert torch.equal(asked(name, module, image), expected)
    with torch.inference_mode():
        assert torch.equal(asked(name, module, image.clone()), expected)
    assert not image.requires_grad


@pytest.mark.parametrize(("kind", "name"), [p for p in PAIRS if p[0] in ("rms", "cnn")])
def test_a_model_in_training_is_asked_at_rest_and_goes_on_training(kind: str, name: str) -> None:
    module = subject(kind)
    image = pictures(module)
    expected = asked(name, module, image)
    module.train()
    part = next(iter(module.children())).eval()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    assert torch.equal(asked(name, module, image), expected)
    assert [m.training for m in module.modules()] == [m not in set(part.modules()) for m in module.modules()]
    assert all(torch.equal(before[key], value) for key, value in module.state_dict().items())


def test_a_model_goes_on_training_after_an_error_too() -> None:
    module = subject("token").train()
    with pytest.raises(UsageError, match="not a whole number of 4-pixel patches"):
        asked("rollout", module, torch.zeros(1, 3, 17, 16))
    assert all(m.training for m in module.modules())


@pytest.mark.parametrize("name", ["resnet18_small_w4_16", "resnet18_w4_64", "resnet50_w4_64"])
@pytest.mark.parametrize("size", [(16, 16), (33, 65), (47, 31), (1, 1)])
@torch.no_grad()
def test_the_grid_of_a_cnn_is_that_of_its_last_map(name: str, size: tuple[int, int]) -> None:
    module, image = saccade.create(name, classes=3).eval(), torch.zeros(1, 3, *size)
    assert map_grid(module, image) == tuple(module.encode(image).shape[-2:])


def test_gradcam_of_a_cnn_is_the_map_of_its_linear_head() -> None:
    """With a mean and a linear head, Eq. 1 gives the head's own weights (Selvaraju et al. 2017, 3.1)."""
    module = subject("cnn")
    image = pictures(module)
    with torch.no_grad():
        x, w = module.encode(image).double().numpy(), module.head.weight.double().numpy()
    rows, columns = x.shape[-2:]
    expected = np.stack([np.tensordot(w[target], x[i], 1) for i, target in enumerate([1, 0])])
    expected = np.maximum(expected, 0) / (rows * columns)
    assert expected.max() > 0
    assert np.allclose(asked("gradcam", module, image), expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["token", "pair", "relative", "mean_norm", "map", "post-norm", "one block"])
def test_gradcam_of_a_vit_weighs_channels_by_their_mean_gradient(kind: str) -> None:
    """Of the patches that the answer is read from; a class token reads those in its last attention."""
    module = subject(kind)
    image, kept = pictures(module), []
    watched = module.blocks[-1].attention if kind not in ("mean_norm", "map") else module.pool

    def keep(_: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        kept.append(given[0].detach().requires_grad_())
        return (kept[0], *given[1:])

    with_hook = watched.register_forward_pre_hook(keep)
    logits = module(image)
    with_hook.remove()
    (found,) = torch.autograd.grad(logits[0, 1] + logits[1, 0], kept)
    patches, slopes = (t.detach().double().numpy()[:, module.config.front :] for t in (kept[0], found))
    expected = np.maximum((patches * slopes.mean(1, keepdims=True)).sum(-1), 0).reshape(2, 6, 4)
    assert expected.max() > 0
    assert np.allclose(asked("gradcam", module, image), expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["token", "hybrid", "cnn"])
@torch.no_grad()
def test_occlusion_is_the_fall_of_the_score_under_a_square_of_the_mean_colour(kind: str) -> None:
    module = subject(kind).double()
    image = pictures(module).double()
    maps = asked("occlusion", module, image)
    (height, width), (rows, columns) = image.shape[-2:], maps.shape[1:]
    for i, target in enumerate([1, 0]):
        whole = float(module(image[i : i + 1])[0, target])
        for row, column in np.ndindex(rows, columns):
            ys = [y for y in range(height) if y * rows // height == row]
            xs = [x for x in range(width) if x * columns // width == column]
            changed = image[i].clone()
            for y in ys:
                changed[:, y, xs] = image[i].mean((1, 2))[:, None]
            fall = whole - float(module(changed[None])[0, target])
            assert float(maps[i, row, column]) == pytest.approx(fall, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("numbers", [1, 5000, 10**9])
def test_occlusion_does_not_depend_on_how_many_go_together(
    numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = subject("token")
    image = pictures(module, 3)
    expected = asked("occlusion", module, image)
    monkeypatch.setattr("saccade.explain.methods.occlusion.AT_ONCE", numbers)
    assert torch.allclose(asked("occlusion", module, image), expected, atol=1e-5)


def test_the_mean_colour_is_the_same_colour_in_every_preprocessing() -> None:
    photo = np.random.default_rng(0).integers(120, 256, (16, 16, 3)).astype(np.uint8)
    expected = np.rint(photo.mean((0, 1)))
    greys = set()
    for mean, std in (HALF, IMAGENET, ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))):
        ready = Preprocess(size=(16, 16), fit="squash", mean=mean, std=std)
        image = torch.from_numpy(ready.batch([photo]))
        assert np.abs(ready.undo(mean_colour(image)[0].numpy()).astype(int) - expected).max() <= 1
        greys.add(tuple(ready.undo(np.zeros((3, 1, 1), dtype=np.float32))[0, 0].tolist()))
    assert len(greys) == 3


def test_noise_belongs_to_the_picture() -> None:
    module = subject("token")
    image = pictures(module, 3)
    maps = asked("random", module, image)
    assert torch.equal(asked("random", module, image.flip(0)).flip(0), maps)
    assert torch.equal(asked("random", subject("token", seed=1), image[1:2])[0], maps[1])
    assert not torch.equal(maps[0], maps[1])
    assert maps.min() >= 0
    assert maps.max() < 1


def test_a_method_that_does_not_exist_or_does_not_fit_is_told_in_words() -> None:
    vit, cnn = subject("token"), subject("cnn")
    assert find_method("rollout", vit) is METHODS["rollout"]
    assert find_method("gradcam", cnn) is METHODS["gradcam"]
    with pytest.raises(
        UsageError, match="the method is 'relevnace', which is not known; did you mean 'relevance'"
    ):
        find_method("relevnace", vit)
    with pytest.raises(
        UsageError,
        match="the method is 'rollout', and this model is a CNN, which has no attention; "
        "use gradcam, gradient, integrated, occlusion or random",
    ):
        find_method("rollout", cnn)
    assert fitting_methods(vit) == list(METHODS)


def test_held_gives_gradients_inside_of_inference_mode() -> None:
    module = subject("token")
    with torch.inference_mode(), evaluating(module, gradients=True):
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
