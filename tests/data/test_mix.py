"""Two pictures in one: the labels say exactly how much of each is there."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch.testing import assert_close

from saccade.data.image.mixup import Mix, blend, cut_box, neighbours, paste, smooth
from saccade.data.randomness import Draws
from saccade.errors import UsageError
from saccade.values import from_json, to_json

CLASSES = 7


def batch(count: int = 6, height: int = 12, width: int = 10) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 3, height, width, generator=generator), torch.arange(count) % CLASSES


def flat(count: int = 6, side: int = 40) -> torch.Tensor:
    """Pictures of one value each, their own number, so that every pixel tells whose it is."""
    return torch.arange(count).float().view(-1, 1, 1, 1).expand(count, 3, side, side).contiguous()


@pytest.mark.parametrize("sample", range(8))
@pytest.mark.parametrize("mix", [Mix(mixup=0.4), Mix(cutmix=1.0), Mix(mixup=0.8, cutmix=1.0)])
def test_the_loss_is_the_two_losses_in_their_shares(mix, sample):
    image, target = batch()
    _, soft = mix(image, target, CLASSES, Draws(0, 0, sample))
    logits = torch.randn(6, CLASSES, dtype=torch.float64)
    for row, label, scores in zip(soft.double(), target, logits, strict=True):
        others = [k for k in range(CLASSES) if row[k] > 0 and k != label]
        other = others[0] if others else int(label)
        share = row[label] if others else 1.0
        expected = share * F.cross_entropy(scores, label) + (1 - share) * F.cross_entropy(
            scores, torch.tensor(other)
        )
        assert abs(F.cross_entropy(scores, row) - expected) <= 1e-6


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
def test_mixup_of_a_fixed_share_equals_the_formula_of_the_paper(share):
    image, target = batch()
    partner = torch.arange(5, -1, -1)  # timm pairs the batch with its mirror image
    expected = image * share + image.flip(0) * (1 - share)
    assert_close(blend(image, partner, share), expected)
    soft = smooth(target, CLASSES, 0.1)
    assert_close(blend(soft, partner, share), soft * share + soft.flip(0) * (1 - share))


def test_cutmix_of_a_fixed_box_is_the_partner_inside_and_the_picture_outside():
    image, _ = batch()
    partner, inside = torch.arange(5, -1, -1), torch.zeros(12, 10, dtype=torch.bool)
    inside[2:7, 3:9] = True
    assert torch.equal(paste(image, partner, (2, 7, 3, 9)), torch.where(inside, image.flip(0), image))


def test_no_mixing_is_the_identity():
    image, target = batch()
    for mix in (Mix(), Mix(smoothing=0.1), Mix(mixup=0.8, cutmix=1.0, probability=0.0)):
        mixed, soft = mix(image, target, CLASSES, Draws(0, 0, 0))
        assert torch.equal(mixed, image)
        assert torch.equal(soft.argmax(1), target)
    assert torch.equal(Mix()(image, target, CLASSES, Draws(0, 0, 0))[1], F.one_hot(target, CLASSES).float())


@pytest.mark.parametrize("sample", range(8))
def test_a_vanishing_alpha_of_mixup_leaves_every_picture_whole_with_its_own_label(sample):
    image, target = batch()
    mixed, soft = Mix(mixup=1e-6)(image, target, CLASSES, Draws(0, 0, sample))
    for picture, label in zip(mixed, soft, strict=True):
        [same] = [i for i in range(6) if torch.allclose(picture, image[i])]
        assert_close(label, F.one_hot(target[same], CLASSES).float())


@given(sample=st.integers(0, 500), smoothing=st.floats(0, 0.5), count=st.integers(1, 7))
@settings(deadline=None, max_examples=60)
def test_the_probabilities_sum_to_one(sample, smoothing, count):
    image, target = batch(count)
    mix = Mix(mixup=0.8, cutmix=1.0, smoothing=smoothing)
    mixed, soft = mix(image, target, CLASSES, Draws(0, 0, sample))
    assert mixed.shape == image.shape
    assert_close(soft.sum(1), torch.ones(count))
    assert (soft >= 0).all()


@pytest.mark.parametrize("sample", range(30))
def test_the_label_of_cutmix_is_the_share_of_the_pixels_that_are_there(sample):
    image = flat()
    mixed, soft = Mix(cutmix=1.0)(image, torch.arange(6), CLASSES, Draws(0, 0, sample))
    for picture, row in zip(mixed, soft, strict=True):
        for k in range(6):
            assert abs((picture == k).float().mean() - row[k]) < 1e-6


@pytest.mark.parametrize("sample", range(10))
def test_the_label_of_mixup_is_the_share_of_the_picture(sample):
    mixed, soft = Mix(mixup=0.5)(flat(), torch.arange(6), CLASSES, Draws(0, 0, sample))
    assert_close(mixed[:, 0, 0, 0], soft @ torch.arange(7).float())


@given(height=st.integers(1, 50), width=st.integers(1, 50), share=st.floats(0, 1), sample=st.integers(0, 99))
def test_a_box_stays_inside_and_is_never_larger_than_asked(height, width, share, sample):
    top, bottom, left, right = cut_box(height, width, share, Draws(0, 0, sample))
    assert 0 <= top <= bottom <= height
    assert 0 <= left <= right <= width
    assert (bottom - top) * (right - left) <= (1 - share) * height * width + 1e-6


def test_a_box_that_keeps_everything_is_empty_and_every_place_is_drawn():
    top, bottom, _, _ = cut_box(30, 30, 1.0, Draws(0, 0, 0))
    assert top == bottom
    seen = torch.zeros(12, 12)
    for sample in range(300):
        top, bottom, left, right = cut_box(12, 12, 0.9, Draws(0, 0, sample))
        seen[top:bottom, left:right] += 1
    assert (seen > 0).all()


def test_the_share_of_mixup_is_a_beta():
    shares = []
    for sample in range(600):
        mixed, _ = Mix(mixup=0.4)(flat(2, 1), torch.arange(2), 2, Draws(0, 0, sample))
        shares.append(mixed[0, 0, 0, 0].item())
    assert stats.kstest(shares, stats.beta(0.4, 0.4).cdf).pvalue > 1e-3


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_partners_are_neighbours_so_that_a_slice_of_a_batch_holds_its_own(count):
    assert neighbours(count).tolist() == [i ^ 1 if i ^ 1 < count else i for i in range(count)]


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5, 1.0])
def test_smoothing_alone_equals_torchs_cross_entropy(smoothing):
    image, target = batch()
    _, soft = Mix(smoothing=smoothing)(image, target, CLASSES, Draws(0, 0, 0))
    logits = torch.randn(6, CLASSES)
    expected = F.cross_entropy(logits, target, label_smoothing=smoothing)
    assert_close(F.cross_entropy(logits, soft), expected)


def test_both_kinds_get_half_of_the_batches_and_the_probability_is_kept():
    image, kinds = flat(), {"none": 0, "mixup": 0, "cutmix": 0}
    for sample in range(400):
        mixed, _ = Mix(mixup=1.0, cutmix=1.0, probability=0.6)(
            image, torch.arange(6), CLASSES, Draws(0, 0, sample)
        )
        whole = (mixed == mixed.round()).all()
        kinds["none" if torch.equal(mixed, image) else "cutmix" if whole else "mixup"] += 1
    assert stats.chisquare(list(kinds.values()), [160, 120, 120]).pvalue > 1e-3


def test_a_batch_is_mixed_by_its_chance_alone_and_is_not_changed_itself():
    image, target = batch()
    before, mix = image.clone(), Mix(mixup=0.8, cutmix=1.0)
    first, again, other = (mix(image, target, CLASSES, Draws(0, 0, sample)) for sample in (3, 3, 4))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])
    assert torch.equal(image, before)


def test_a_batch_of_one_is_its_own_partner():
    image, target = batch(1)
    mixed, soft = Mix(mixup=0.8)(image, target, CLASSES, Draws(0, 0, 0))
    assert_close(mixed, image)
    assert_close(soft, F.one_hot(target, CLASSES).float())


def test_a_mix_survives_its_json():
    mix = Mix(mixup=0.2, cutmix=1.0, smoothing=0.1, probability=0.5)
    assert from_json(Mix, json.loads(json.dumps(to_json(mix)))) == mix


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mixup": -0.1}, "mix.mixup is -0.1; expected a number from 0 to 1000"),
        ({"cutmix": math.inf}, "mix.cutmix is inf; expected a number from 0 to 1000"),
        ({"smoothing": 1.1}, "mix.smoothing is 1.1; expected a number from 0 to 1"),
        ({"probability": math.nan}, "mix.probability is nan; expected a number from 0 to 1"),
    ],
)
def test_a_value_out_of_range_is_refused_in_words(change, words):
    with pytest.raises(UsageError, match=words):
        Mix(**change)
