"""What a model has learnt, as one page: complete, self-contained, and honest about what it cannot show."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import saccade
from saccade import values
from saccade.data.image.preprocess import Preprocess
from saccade.errors import UsageError
from saccade.explain.inside import filters
from saccade.explain.inside.filters import Filters, components, kernels
from saccade.explain.inside.inside import (
    CNN,
    HEADLESS,
    NEEDS,
    SHORTENED,
    inside,
    picture_name,
    write_inside,
)
from saccade.explain.inside.sections import section_plots
from saccade.models.build import Vision
from saccade.models.vit import ViT
from saccade.nn.block import BlockStyle
from saccade.nn.conv import standardize
from saccade.report.plots import LIGHT, render

PREPROCESS = Preprocess(size=(8, 8), fit="squash")
LABELS = ["<script>alert(1)</script>", "كلب", "$\\frac{1}{0}$"]


def made(name: str = "vit_xs2_8", **changes: object) -> Vision:
    torch.manual_seed(0)
    module = saccade.create(name, classes=changes.pop("classes", 3), **changes)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return module


def scenes(count: int) -> list[np.ndarray]:
    return list(np.random.default_rng(0).integers(0, 255, (count, 8, 8, 3), dtype=np.uint8))


def files(folder: Path, count: int) -> list[Path]:
    paths = [folder / f"{i}<b>&.png" for i in range(count)]
    for path, scene in zip(paths, scenes(count), strict=True):
        Image.fromarray(scene).save(path)
    return paths


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("inside")
    return write_inside(folder / "new" / "out", made(), PREPROCESS, LABELS, files(folder, 2))


def test_the_page_holds_every_plot_in_light_and_dark_with_its_numbers(written: list[Path]) -> None:
    out = written[0].parent
    assert written[0] == out / "inside.html"
    assert all(path.is_file() for path in written)
    told = {path.stem for path in written if path.suffix == ".png"}
    assert told == {
        "positions",
        "positions-by-distance",
        "filters",
        "attention-distance",
        "attention-entropy",
        "head-contribution",
        "head-ablation",
        "lens",
        *(f"lens-patches-{i}" for i in (1, 2)),
        "norms",
        "norms-last",
    }
    page = written[0].read_text()
    found = json.loads((out / "inside.json").read_text())
    assert set(found) == {"model", "pictures", "answers", "positions", "filters", "heads", "lens", "norms"}
    for name in told:
        numbers = json.loads((out / "plots" / f"{name}.json").read_text())
        assert numbers["rows"]
        assert f'id="{name}-numbers"' in page
    assert page.count("prefers-color-scheme: dark)") >= len(told)
    assert len(re.findall(r'alt="[^"]{20,}"', page)) >= len(told)


def test_the_page_asks_for_nothing_and_runs_nothing(written: list[Path]) -> None:
    page = written[0].read_text()
    assert "<script" not in page
    assert "default-src &#x27;none&#x27;" in page
    assert not re.findall(r'(?:src|srcset|href)="(?!data:image/|#)', page)
    assert "<b>&.png" not in page


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    pages = [write_inside(tmp_path / name, made(position="none"), PREPROCESS, (), [])[0] for name in "ab"]
    assert pages[0].read_bytes() == pages[1].read_bytes()


def test_without_pictures_only_what_needs_none_is_shown_and_said(tmp_path: Path) -> None:
    written = write_inside(tmp_path / "out", made(), PREPROCESS, LABELS, [])
    assert {path.stem for path in written if path.suffix == ".png"} == {
        "positions",
        "positions-by-distance",
        "filters",
    }
    page = written[0].read_text()
    assert "No images were given" in page
    assert page.count(NEEDS) == 3


def test_of_many_pictures_some_are_chosen_evenly(tmp_path: Path) -> None:
    module = made("resnet18_small_w4_8")
    written = write_inside(
        tmp_path / "out", module, PREPROCESS, LABELS, [Path(p) for p in files(tmp_path, 40)]
    )
    found = json.loads(written[1].read_text())
    assert len(found["pictures"]) == 32
    assert (found["pictures"][0], found["pictures"][-1]) == ("0<b>&.png", "39<b>&.png")
    assert "32 of 40 images" in written[0].read_text()


def test_the_model_is_left_as_it_was() -> None:
    module = made(registers=1).train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    image = torch.randn(2, 3, 8, 8)
    first = inside(module, image, ["a", "b"], LABELS)
    assert module.training
    assert all(part.training for part in module.modules())
    assert all(parameter.grad is None for parameter in module.parameters())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    with torch.inference_mode():
        assert inside(module.eval(), image, ["a", "b"], LABELS) == first


@pytest.mark.parametrize(
    ("name", "changes", "absent"),
    [
        (
            "resnet18_small_w4_8",
            {},
            {"positions": "A ResNet has no", "heads": CNN, "lens": CNN, "norms": CNN},
        ),
        ("vit_xs2_8", {"classes": 0}, {"lens": HEADLESS}),
        ("vit_xs2_8", {"position": "rope2d", "pool": "map"}, {"positions": "rotary"}),
        ("vit_xs2_8", {"block": BlockStyle(placement="post"), "position": "none"}, {"positions": "a set"}),
        ("conv_vit_xs2_8", {}, {}),
        ("deit_xs2_distilled_8", {}, {}),
        ("dinov2_xs2_reg_8", {}, {}),
    ],
)
def test_every_kind_of_model_is_shown(name: str, changes: dict, absent: dict) -> None:
    found = inside(made(name, **changes), torch.randn(1, 3, 8, 8), ["a"])
    json.dumps(found.to_json(), allow_nan=False)
    drawn = section_plots(found)
    for part in ("positions", "heads", "lens", "norms"):
        value = getattr(found, part)
        assert isinstance(value, str) == (part in absent)
        if part in absent:
            assert absent[part] in value
            assert [value] == drawn[part]
        else:
            assert drawn[part]


class Shortened(ViT):
    """A ViT that goes on with half of its tokens."""

    def encode(self, image: torch.Tensor) -> torch.Tensor:
        z = self.embed(image)
        for block in self.blocks:
            z = block(z)[:, : 1 + z.shape[1] // 2]
        return z


def test_a_model_that_drops_tokens_is_not_shown_as_if_it_kept_them() -> None:
    module = made()
    found = inside(Shortened(module.config), torch.randn(1, 3, 8, 8), ["a"])
    assert found.heads == found.lens == found.norms == SHORTENED
    assert len(found.answers) == 1
    assert not isinstance(found.positions, str)


def test_a_folder_that_cannot_be_made_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be created"):
        write_inside(tmp_path / "file" / "out", made(depth=1), PREPROCESS, (), [])


def test_pictures_are_called_by_their_file(tmp_path: Path) -> None:
    (path,) = files(tmp_path, 1)
    with path.open("rb") as stream:
        assert picture_name(stream, 3) == path.name
    assert [picture_name(each, 3) for each in (path, str(path), scenes(1)[0], b"")] == [path.name] * 2 + [
        "image 3"
    ] * 2


def test_components_are_orthogonal_and_hold_all_the_variance() -> None:
    _, weight = kernels(made("vit_xs2_8"))
    found, shares = components(weight)
    flat = found.flatten(1)
    assert (flat @ flat.mT - torch.eye(12, dtype=torch.float64)).abs().max() <= 1e-10
    assert shares.sum().item() == pytest.approx(1)
    centred = (weight - weight.mean(0)).double().flatten(1)
    held = (centred @ flat.mT).square().sum(0) / centred.square().sum()
    assert (held - shares).abs().max() <= 1e-8
    again, _ = components(-weight)
    assert torch.allclose(again, found, atol=1e-8)


@pytest.mark.parametrize(
    ("name", "layer", "side", "shown"),
    [
        ("vit_xs8_32", "patch projection", (8, 8), 28),
        ("resnet18_32", "first convolution", (7, 7), 64),
        ("resnet18_small_w4_32", "first convolution", (3, 3), 4),
        ("conv_vit_xs4_32", "first convolution", (3, 3), 32),
        ("r_vit_ti16_32", "first convolution", (7, 7), 64),
    ],
)
def test_the_first_layer_of_every_kind_of_model(name: str, layer: str, side: tuple, shown: int) -> None:
    module = saccade.create(name)
    found = filters.filters(module)
    assert (found.layer, found.side, len(found.pictures)) == (layer, side, shown)
    assert list(found.shares) == sorted(found.shares, reverse=True)
    assert all(max(map(abs, picture)) == 1.0 for picture in found.pictures)
    assert values.from_json(Filters, json.loads(json.dumps(values.to_json(found)))) == found
    (plot,) = filters.plots(found)
    assert render(plot, LIGHT).startswith(b"\x89PNG")
    if name.startswith("r_"):
        assert torch.equal(kernels(module)[1], standardize(module.patches.root.weight.detach()))


def test_filters_that_see_nothing_are_counted() -> None:
    module = saccade.create("resnet18_small_w4_32")
    with torch.no_grad():
        module.root.weight[1] = 0
    found = filters.filters(module)
    assert (found.dead, found.numbers[-1]) == (1, 2)
    assert "1 filter of 4" in filters.plots(found)[0].message
