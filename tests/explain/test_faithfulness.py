"""The faithfulness meter: it measures what it says, and calls what knows nothing uninformative."""

import json

import numpy as np
import planted
import pytest
import torch
from einops import rearrange, reduce
from subjects import KINDS, pictures, subject

import saccade
from saccade import values
from saccade.errors import ModelError, UsageError
from saccade.explain.faithfulness.controls import image_seed, random_maps, randomise
from saccade.explain.faithfulness.evidence import Evidence, find_evidence
from saccade.explain.faithfulness.fills import BLUR, DROP, MEAN, blur, cell_grid, fitting_fills, perturbed
from saccade.explain.faithfulness.meter import (
    BETTER,
    UNINFORMATIVE,
    UNJUDGED,
    map_verdicts,
    measure,
    p_value,
    verdict,
)
from saccade.explain.faithfulness.perturbation import perturbation_curves, rank_cells, resize_maps
from saccade.explain.faithfulness.ranking import RANDOM, Ranking, rank, ranking_plot
from saccade.explain.methods.attention import attention
from saccade.explain.methods.table import METHODS
from saccade.metrics.localisation import hits
from saccade.report.plots import LIGHT, cells, render
from saccade.tokens.prune import prune


def slope(module, image, target):
    """A tiny method of our own: gradient x what differs from the mean."""
    with torch.enable_grad():
        image = image.detach().requires_grad_()
        score = module(image).gather(1, target[:, None]).sum()
        (gradient,) = torch.autograd.grad(score, image)
    parts = (gradient * (image - image.mean((2, 3), keepdim=True))).detach()
    return reduce(parts, "b ch (r p) (c q) -> b r c", "sum", p=8, q=8)


def stripes(module, image, target):
    """A method that looks at nothing."""
    return torch.arange(6.0).repeat(image.shape[0], 6, 1)


def brightness(module, image, target):
    """A method that looks at the picture and not at the model."""
    return reduce(image, "b ch (r p) (c q) -> b r c", "mean", p=8, q=8)


def brightness_of_pixels(module, image, target):
    return image.mean(1)


@pytest.fixture(scope="module")
def vit():
    return planted.by_hand()


@pytest.fixture(scope="module")
def some():
    return planted.inputs(list(planted.pictures(4, start=500)))


def test_the_vit_by_hand_knows_the_pictures(vit, some):
    image, target, _ = some
    assert torch.equal(vit(image).argmax(-1), target)


def test_curves_are_those_of_a_plain_loop(vit, some):
    image, target, _ = (part[:2] for part in some)
    maps = torch.rand(2, 3, 6, 6)
    found = perturbation_curves(vit, image, target, maps)
    blank = blur(image, (6, 6))
    for i in range(2):
        for m in range(3):
            ranked = maps[i, m].flatten().argsort(descending=True)
            for t, gone in enumerate((4, 7, 11, 14, 18, 22, 25, 29, 32)):
                first = torch.zeros(36, dtype=torch.bool)
                first[ranked[:gone]] = True
                cover = rearrange(first, "(r c) -> r c", r=6).repeat_interleave(8, 0).repeat_interleave(8, 1)
                for away, p, kept in (
                    (cover, found.deleted, found.kept_positive[i, m, t]),
                    (~cover, found.inserted, found.kept_negative[i, m, 8 - t]),
                ):
                    with torch.no_grad():
                        answer = vit(torch.where(away, blank[i], image[i])[None]).softmax(-1)[0]
                    assert p[i, m, t] == pytest.approx(answer[target[i]].item(), abs=1e-5)
                    assert kept == (answer.argmax() == target[i])
                assert found.shares[t] == pytest.approx(gone / 36)
    x = np.concatenate([[0], found.shares.numpy(), [1]])
    ends = found.whole[0].item(), found.blank[0].item()
    assert found.deletion[0, 1] == pytest.approx(np.trapezoid([ends[0], *found.deleted[0, 1], ends[1]], x))
    assert found.insertion[0, 1] == pytest.approx(np.trapezoid([ends[1], *found.inserted[0, 1], ends[0]], x))
    assert found.positive[0, 1] == pytest.approx(found.kept_positive[0, 1].mean())


def test_the_object_first_is_best_and_last_is_worst(vit, some):
    image, target, mask = some
    true = reduce(torch.from_numpy(mask).float(), "b (r p) (c q) -> b 1 r c", "mean", p=8, q=8)
    found = perturbation_curves(vit, image, target, torch.cat([true, -true, torch.rand(16, 5, 6, 6)], 1))
    gain = found.insertion - found.deletion
    assert (gain[:, :1] >= gain[:, 2:]).float().mean() > 0.8
    assert (gain[:, 1:2] <= gain[:, 2:]).float().mean() > 0.8
    assert gain[:, 0].mean() > 0.5
    assert gain[:, 1].mean() < -0.5
    assert found.positive[:, 0].mean() < 0.5 < found.negative[:, 0].mean()


def test_a_picture_is_judged_alike_alone_and_among_others(vit, some):
    image, target, _ = some
    flat = torch.zeros(16, 1, 6, 6)  # all cells are equal, so that their order is drawn
    whole = perturbation_curves(vit, image, target, flat)
    alone = perturbation_curves(vit, image[3:4], target[3:4], flat[3:4])
    assert torch.allclose(whole.deleted[3], alone.deleted[0], atol=1e-6)
    assert torch.equal(random_maps(image, (6, 6), 4)[3], random_maps(image[3:4], (6, 6), 4)[0])
    assert image_seed(image[0]) != image_seed(image[1])


def test_equal_cells_are_in_no_order_of_the_raster():
    places = rank_cells(torch.zeros(2, 1, 10, 10), [1, 2])
    assert sorted(places[0].flatten().tolist()) == list(range(100))
    assert not torch.equal(places[0], places[1])
    assert abs(np.corrcoef(places[0].flatten(), np.arange(100))[0, 1]) < 0.3


def test_a_blurred_picture_keeps_its_mean_and_loses_its_detail(some):
    image = some[0]
    made = blur(image, (6, 6))
    assert made.std() < 0.5 * image.std()
    assert torch.allclose(blur(torch.full_like(image, 0.3), (6, 6)), torch.tensor(0.3), atol=1e-5)
    flipped = blur(image.flip(-1), (6, 6)).flip(-1)
    assert torch.allclose(flipped, made, atol=1e-4)


def test_maps_of_any_size_fit_the_cells():
    pixels = torch.rand(2, 1, 48, 48)
    means = reduce(pixels, "b m (r p) (c q) -> b m r c", "mean", p=8, q=8)
    assert torch.allclose(resize_maps(pixels, (6, 6)), means, atol=1e-6)
    assert resize_maps(torch.rand(2, 1, 3, 3), (6, 6)).shape == (2, 1, 6, 6)
    cnn = saccade.create("resnet18_small_w8_32", classes=3)
    assert cell_grid(cnn, torch.rand(1, 3, 32, 32)) == (8, 8)
    assert cell_grid(cnn, torch.rand(1, 3, 224, 160)) == (14, 10)


def test_randomised_is_a_copy_with_the_same_numbers_in_other_places():
    module = saccade.create("resnet18_small_w8_32", classes=3).eval()
    torch.nn.init.normal_(module.head.weight)
    module.norm.running_var.uniform_(0.5, 2)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    made, other = randomise(module, 1), randomise(module, 2)
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    for name in ("root.weight", "head.weight", "norm.running_var"):
        tensor = made.state_dict()[name]
        assert not torch.equal(tensor, before[name])
        assert not torch.equal(tensor, other.state_dict()[name])
        assert torch.equal(tensor.flatten().sort().values, before[name].flatten().sort().values)
    assert torch.equal(randomise(module, 1).root.weight, made.root.weight)


def test_random_maps_are_rough_and_smooth_in_turn(some):
    maps = random_maps(some[0], (14, 14), 8)
    steps = (maps.diff(dim=-1).std((0, 2, 3)) / maps.std((0, 2, 3))).tolist()
    assert min(steps[::2]) > 1.2
    assert max(steps[1::2]) < 1.0


def test_what_knows_nothing_is_called_better_as_often_as_is_told():
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(2000, 41))
    found = [p_value(row[:1], row[None, 1:]) <= 0.05 for row in drawn]
    assert 0.03 < np.mean(found) < 0.065
    sets = rng.normal(size=(400, 12, 5))
    assert np.mean([p_value(one[:, 0], one[:, 1:]) <= 0.05 for one in sets]) < 0.12


def evidence(whole=0.95, blurred=0.2, blank=None, fill=BLUR, others=0.4):
    """Of one image, with 19 randomised models that depend on theirs from -1 to `others`."""
    p = (np.array([each], np.float32) for each in (whole, blurred, blurred if blank is None else blank))
    names = ("whole", "blurred", "blank")
    return Evidence(
        fill=fill,
        **dict(zip(names, p, strict=True)),
        recognised=np.array([blurred > 0.5]),
        others=np.linspace(-1, others, 19, dtype=np.float32)[None],
    )


def test_a_verdict_says_why():
    own, drawn, low = np.array([0.5]), np.linspace(-0.4, 0.4, 40)[None], np.array([0.1])
    good = verdict(own, drawn, low, evidence())
    assert (good.word, good.p, good.fill) == (BETTER, 1 / 41, BLUR)
    assert str(good) == "better than random: 0 of 40 random maps score as well"
    poor = verdict(own - 0.4, drawn, low, evidence())
    assert str(poor) == "uninformative: not better than random, 15 of 40 random maps score as well"
    deaf = verdict(own, drawn, low + 0.4, evidence())
    assert str(deaf) == "uninformative: the same method scores as well with randomised weights"
    dull = verdict(own, drawn, low, evidence(others=6.0))
    assert dull.word == UNINFORMATIVE
    assert "5 of 19 models with randomised weights depend on it as much" in dull.reason


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            evidence(blurred=0.94, blank=0.91, fill=DROP),
            "the blurred image is still recognised as sunflower (94%), and so is an image without its "
            "patches (91%)",
        ),
        (
            evidence(blurred=0.94, blank=0.91, fill=MEAN),
            "the blurred image is still recognised as sunflower (94%), and so is an image of its mean colour "
            "alone (91%)",
        ),
        (
            evidence(blurred=0.94, blank=0.1, fill=DROP, others=6.0),
            "the blurred image is still recognised as sunflower (94%), and 3 of 19 models with randomised "
            "weights change their answers as much when all patches are dropped",
        ),
        (
            evidence(blurred=0.94, others=1.5),
            "the blurred image is still recognised as sunflower (94%), while 10 of 19 models with randomised "
            "weights depend more on it",
        ),
        (
            evidence(whole=0.03, blurred=0.04, blank=0.05, fill=DROP),
            "the image hardly speaks for sunflower (3%; blurred: 4%; an image without its patches: 5%)",
        ),
    ],
)
def test_what_no_fill_changes_cannot_be_judged_and_is_not_called_uninformative(found, said):
    made = verdict(np.array([0.5]), np.linspace(-0.4, 0.4, 40)[None], np.array([0.1]), found, "sunflower")
    assert (made.word, made.reason, made.fill) == (UNJUDGED, said, found.fill)
    assert not made.better


def colour_vit(weight=3.0, bias=0.0):
    """The ViT by hand, but its first class is red, which a blurred image shows as well."""
    module = planted.by_hand()
    with torch.no_grad():
        module.patches.weight[:4] = 0
        module.patches.weight[0, 0] = 1 / 64  # the mean red of a patch
        module.head.weight *= weight / 16
        module.head.bias.zero_()
        module.head.bias[planted.LABELS.index(next(iter(planted.TEXTURES)))] = bias
    return module


def red_square():
    """An image of 6 x 6 patches with a red square over 4 x 4 of them, and its class."""
    image = torch.zeros(1, 3, 48, 48)
    image[:, 0, 8:40, 8:40] = 1
    return image, torch.tensor([planted.LABELS.index(next(iter(planted.TEXTURES)))])


@pytest.fixture
def steady(monkeypatch):
    """Copies whose answers change little; with so few weights, a copy's may change more than the model's."""
    monkeypatch.setattr(
        "saccade.explain.faithfulness.evidence.dependence", lambda _, image: torch.zeros(len(image), 2)
    )


@pytest.mark.usefixtures("steady")
def test_where_the_blurred_image_is_recognised_patches_are_dropped_instead():
    module, (image, target) = colour_vit(), red_square()
    assert module(image).argmax(-1) == target == module(blur(image, (6, 6))).argmax(-1)
    found = measure(module, image, target, {"attention": attention, "stripes": stripes})
    (good,), (poor,) = found.verdicts("attention"), found.verdicts("stripes")
    assert (good.word, good.fill) == (BETTER, DROP)
    assert (poor.word, poor.fill) == (UNINFORMATIVE, DROP)
    assert found.evidence.blurred[0] > 0.5 > found.evidence.blank[0]
    effect = found.effect("attention")
    assert effect.deleted < effect.whole / 2 < effect.random


@pytest.mark.usefixtures("steady")
def test_a_bias_towards_a_class_cannot_be_judged():
    module, (image, target) = colour_vit(0.5, bias=8.0), red_square()
    (found,) = measure(module, image, target, {"slope": slope}, draws=19).verdicts("slope", "red")
    assert found.word == UNJUDGED
    assert "the blurred image is still recognised as red (100%), and so is an image without" in found.reason


@pytest.mark.usefixtures("steady")
def test_the_blurred_image_is_kept_where_it_changes_the_answer_of_any_model(monkeypatch):
    """Or the choice of the fill would treat the model and its random copies differently."""
    module, (image, target) = colour_vit(), red_square()
    assert find_evidence(module, image, target).fill == DROP
    monkeypatch.setattr(
        "saccade.explain.faithfulness.evidence.dependence", lambda *_: torch.tensor([[1.0, 0.0]])
    )
    kept = find_evidence(module, image, target)
    assert kept.fill == BLUR
    assert kept.as_much == 19
    assert "depend more on it" in kept.weakness()


@pytest.mark.usefixtures("steady")
def test_a_ranking_has_one_fill_for_all_images(vit, some):
    image, target, _ = (part[:3] for part in some)
    red, first = red_square()
    both, targets = torch.cat([image, torch.zeros_like(red)]), torch.cat([target, first])
    mixed = rank(vit, both, targets, {"slope": slope})
    assert mixed.fill == BLUR
    assert {row.verdict.fill for row in mixed.rows} == {BLUR}
    dropped = rank(colour_vit(), red.repeat(2, 1, 1, 1), first.repeat(2), {"slope": slope})
    assert dropped.fill == DROP
    assert {row.verdict.fill for row in dropped.rows} == {DROP}
    assert "Deleted cells are dropped." in ranking_plot(dropped).note


@pytest.mark.usefixtures("steady")
def test_a_ranking_of_what_no_fill_changes_says_so():
    module, (image, target) = colour_vit(0.5, bias=8.0), red_square()
    found = rank(module, image.repeat(2, 1, 1, 1), target.repeat(2), {"slope": slope})
    assert str(found).startswith(
        "No method can be judged (2 images): the blurred images are still recognised (100%), and so is"
    )


DROPPING = ("token", "pair", "relative", "learned2d", "no position", "post-norm", "rms", "one block")


@pytest.mark.parametrize("kind", KINDS)
def test_patches_are_dropped_only_where_tokens_stand_for_patches(kind):
    wanted = (BLUR, DROP) if kind in DROPPING else (BLUR, MEAN)
    assert fitting_fills(subject(kind)) == wanted


@pytest.mark.parametrize("kind", DROPPING)
@torch.no_grad()
def test_dropped_patches_are_those_that_nobody_attends_to(kind):
    module = subject(kind)
    image = pictures(module)
    rows, columns = cell_grid(module, image)
    away = torch.rand(2, rows * columns, generator=torch.Generator().manual_seed(1)).argsort(-1) < 10
    found = perturbed(module, image, DROP)(torch.arange(2), away.view(2, rows, columns))
    z, (weight, turn) = module.embed(image), module.relate(image)
    hidden = torch.ones(2, 1, 1, z.shape[1])
    hidden[:, 0, 0, module.config.front :] = (~away).float()
    for block in module.blocks:
        z = block(z, hidden if weight is None else hidden * weight, turn)
    assert torch.allclose(found, module.read(z), atol=1e-5)
    none = torch.zeros(2, rows, columns, dtype=torch.bool)
    assert torch.allclose(perturbed(module, image, DROP)(torch.arange(2), none), module(image), atol=1e-5)


def test_pruned_models_are_filled_with_the_mean_colour(some):
    image = some[0][:2]
    module = prune(planted.by_hand(), 0.5, by="attention", places=())
    assert fitting_fills(module) == (BLUR, MEAN)
    all_away = torch.ones(2, 6, 6, dtype=torch.bool)
    with torch.no_grad():
        found = perturbed(module, image, MEAN)(torch.tensor([0, 1]), all_away)
        flat = image.mean((2, 3), keepdim=True).expand_as(image)
        assert torch.allclose(found, module(flat), atol=1e-5)


def test_flat_curves_are_never_better_than_random():
    same, one = np.zeros(3), evidence()
    three = Evidence(
        fill=one.fill,
        whole=one.whole.repeat(3),
        blurred=one.blurred.repeat(3),
        blank=one.blank.repeat(3),
        recognised=one.recognised.repeat(3),
        others=one.others.repeat(3, 0),
    )
    found = verdict(same, np.zeros((3, 10)), same - 1, three)
    assert (found.word, found.p) == (UNINFORMATIVE, 1.0)


def test_methods_are_ranked_with_their_verdicts(vit, some):
    image, target, mask = some
    methods = {"stripes": stripes, "slope": slope, "brightness": brightness, "random": stripes}
    done = []
    found = rank(vit, image, target, methods, mask, say=lambda now, all_: done.append((now, all_)))
    assert done == [(8, 16), (16, 16)]
    assert found.rows[0].method == "slope"
    assert {row.method for row in found.rows} == {"stripes", "slope", "brightness", RANDOM}
    assert found.better() == ["slope"]
    assert "not better than random" in found.row("stripes").verdict.reason
    assert found.row("brightness").verdict.word == UNINFORMATIVE
    assert (
        found.localisation_scores("slope").pointing >= 0.9 > 0.3 > found.localisation_scores(RANDOM).pointing
    )
    assert found.localisation_scores("slope").iou > found.localisation_scores(RANDOM).iou
    assert abs(found.row(RANDOM).score.gain) < 0.1
    assert str(found).startswith(
        "Better than random: slope (16 images); the highest point of slope is on the object in "
    )
    gains = [row.score.gain for row in found.rows]
    assert gains == sorted(gains, reverse=True)


def test_a_ranking_is_the_same_each_time_and_survives_json(vit, some):
    image, target, mask = (part[:3] for part in some)
    first, second = (rank(vit, image, target, {"slope": slope}, mask) for _ in range(2))
    assert first == second
    told = json.loads(json.dumps(values.to_json(first), allow_nan=False))
    assert values.from_json(Ranking, told) == first


def test_a_ranking_can_be_drawn_and_told(vit, some):
    image, target, mask = (part[:2] for part in some)
    made = ranking_plot(rank(vit, image, target, {"slope": slope, "stripes": stripes}, mask))
    assert render(made, LIGHT).startswith(b"\x89PNG")
    table = cells(made.columns, made.rows)
    assert [len(row) for row in table] == [len(made.columns)] * 3
    assert table[0][0][0] == "slope"
    assert "Better than random: slope" in made.message


def test_the_model_is_left_as_it_was(vit, some):
    image, target, _ = (part[:1] for part in some)
    module = planted.by_hand().train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    measure(module, image, target, {"slope": slope}, draws=2)
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert all(part.training for part in module.modules())
    assert all(parameter.grad is None for parameter in module.parameters())


def test_a_cnn_is_measured_too():
    torch.manual_seed(0)
    cnn = saccade.create("resnet18_small_w8_32", classes=3).eval()
    torch.nn.init.normal_(cnn.head.weight)
    image, target = torch.randn(2, 3, 40, 32), torch.tensor([0, 2])
    found = measure(cnn, image, target, {"mean": brightness_of_pixels}, draws=3)
    assert found.curves.deleted.shape == (2, 1 + 1 + 3, 9)
    assert len(found.verdicts("mean")) == 2


def test_what_cannot_be_measured_is_refused_in_words(vit, some):
    image, target, mask = (part[:2] for part in some)
    with pytest.raises(UsageError, match="no method was given"):
        rank(vit, image, target, {"random": stripes})
    with pytest.raises(UsageError, match="1 targets were given for 2 images"):
        rank(vit, image, target[:1], {"slope": slope})
    with pytest.raises(UsageError, match="targets from 7 to 7 were found; expected 0 to 4"):
        rank(vit, image, torch.tensor([7, 7]), {"slope": slope})
    with pytest.raises(UsageError, match="1 masks were given for 2 images"):
        rank(vit, image, target, {"slope": slope}, mask[:1])
    with pytest.raises(UsageError, match="a mask contains 9"):
        rank(vit, image, target, {"slope": slope}, mask + np.int8(9))
    with pytest.raises(ModelError, match="the map of odd is not finite"):
        rank(vit, image, target, {"odd": lambda module, x, t: slope(module, x, t) / 0})
    headless = saccade.create("vit_xs8_48", classes=0)
    with pytest.raises(UsageError, match="the model has no head"):
        rank(headless, image, target, {"slope": slope})


def test_with_weights_at_random_no_map_is_better_than_random(some):
    image, _, _ = (part[:6] for part in some)
    torch.manual_seed(0)
    module = saccade.create("vit_xs8_48", classes=4).eval()
    torch.nn.init.normal_(module.head.weight, std=0.5)
    found = []
    for seed in range(2):
        other = randomise(module, seed)
        found += map_verdicts(other, image, other(image).argmax(-1), slope, draws=19, seed=100 * seed)
    assert np.mean([not one.better for one in found]) >= 0.95


def pointing(module, name, made):
    image, target, mask = planted.inputs(made)
    maps = METHODS[name].function(module, image, target)
    large = torch.nn.functional.interpolate(maps[:, None], mask.shape[1:], mode="bilinear")[:, 0].numpy()
    return np.mean([hits(one, its) for one, its in zip(large, mask, strict=True)])


@pytest.mark.parametrize("name", ["relevance", "attention"])
def test_a_vit_whose_reasons_are_known_is_explained(vit, name):
    made = list(planted.pictures(5, start=900))
    assert pointing(vit, name, made) >= 0.9
    assert pointing(vit, "random", made) <= 0.3
    image, target, _ = planted.inputs(made[:4])
    found = measure(vit, image, target, {name: METHODS[name].function})
    assert found.verdict(name).better
    # a blob that is drawn onto the object by luck is as good a map of it, so that some pictures stay open
    assert sum(one.better for one in found.verdicts(name)) >= 2


@pytest.mark.slow
def test_planted_objects_are_found_by_a_vit_trained_on_them(tmp_path):
    root, begun = planted.write(tmp_path / "planted"), planted.start(tmp_path / "start")
    changes = {name.replace(".", "__"): value for name, value in (s.split("=") for s in planted.SETTINGS)}
    model = saccade.train(root, model=begun, out=tmp_path / "run", quiet=True, **changes)
    unseen = list(planted.pictures(50, start=700_000))
    image, target, mask = planted.inputs(unseen)
    assert (model.module(image).argmax(-1) == target).float().mean() >= 0.95
    found = {name: pointing(model.module, name, unseen) for name in ("relevance", "attention", "random")}
    assert found["relevance"] >= 0.9
    assert found["relevance"] > found["attention"] > found["random"]
    some = {name: METHODS[name].function for name in ("relevance", "attention")}
    ranking = rank(model.module, image[:40], target[:40], some, mask[:40])
    assert ranking.row("relevance").verdict.better, str(ranking.row("relevance").verdict)
    assert ranking.row("relevance").score.gain > ranking.row("attention").score.gain

    words = []
    for seed in range(20):
        other = randomise(model.module, seed)
        part = image[8 * seed : 8 * seed + 8]
        answer = other(part).argmax(-1)
        words += [
            one.word for one in map_verdicts(other, part, answer, some["relevance"], 19, 1000 * seed + 500)
        ]
    assert words.count(UNINFORMATIVE) >= 0.95 * len(words)
