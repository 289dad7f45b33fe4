"""Learning to drop: which losses there are, where their gradients go, and who teaches."""

import pytest
import torch
from torch.testing import assert_close

from saccade.data.image.preprocess import Preprocess
from saccade.models.build import build
from saccade.models.vit import ViTConfig
from saccade.tasks.classify.job import ClassificationLoss
from saccade.tasks.classify.prune_loss import PruningLoss, pruning, taught
from saccade.tokens.prune import Predictor, prune
from saccade.tokens.walk import run
from saccade.train.loop import Learner
from saccade.vision.backbone import Teacher

SMALL = ViTConfig(image=(16, 16), patch=4, width=24, depth=3, heads=2, hidden=48, classes=3)
SAME = Preprocess(size=(16, 16), fit="squash")


def dense(config=SMALL):
    vit = build(config)
    with torch.no_grad():
        for parameter in vit.parameters():
            parameter.normal_(std=0.2)
    return vit.eval()


def batch(count=6):
    return {"image": torch.randn(count, 3, 16, 16), "target": torch.eye(3)[torch.arange(count) % 3]}


def task(teacher=True, keep=0.5):
    vit = dense()
    pruned = prune(vit, keep, (1,)).train()
    taught_by = Teacher(vit, SAME, SAME, [0, 1, 2]) if teacher else None
    return PruningLoss(ClassificationLoss(pruned), pruned, taught_by)


def test_a_model_with_predictors_is_pruned_and_others_are_not():
    vit = dense()
    plain = ClassificationLoss
    for module, kind in ((prune(vit), PruningLoss), (prune(vit, by="attention"), plain), (vit, plain)):
        made = pruning(ClassificationLoss(module), module)
        assert isinstance(made, kind)
        assert isinstance(made, Learner)


def test_every_part_of_the_model_gets_a_gradient_and_the_teacher_none():
    made = task()
    found = made.loss(batch())
    found["loss"].backward()
    for name, parameter in made.pruned.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0 or parameter.numel() == 0, name
    assert all(p.grad is None for p in made.teacher.parameters())
    assert 0 < found["kept"] < 1


def test_the_share_is_learnt():
    torch.manual_seed(0)
    made, given = task(teacher=False, keep=0.3), batch(8)
    with torch.no_grad():
        for predictor in made.pruned.predictors:
            predictor.lean(0.9)
    optimizer = torch.optim.Adam(made.pruned.predictors.parameters(), lr=0.02)
    first = made.loss(given)["kept"]
    for _ in range(30):
        optimizer.zero_grad()
        found = made.loss(given)
        found["loss"].backward()
        optimizer.step()
    assert first > 0.75
    assert abs(found["kept"] - 0.3) < 0.2


def test_what_a_pass_saw_is_taken_once():
    made = task()
    made.module(batch()["image"])
    assert made.pruned.taken().logits.shape == (6, 3)
    with pytest.raises(AssertionError, match="no training pass"):
        made.pruned.taken()


def test_a_teacher_answers_as_itself_and_shows_its_patches():
    vit, image = dense(), batch()["image"]
    logits, patches, looks = taught(Teacher(vit, SAME, SAME, [2, 0, 1]), image, (1, 2))
    assert_close(logits, vit(image)[:, [2, 0, 1]])
    assert_close(patches, vit.norm(vit.encode(image))[:, 1:])
    assert [look.shape for look in looks] == [(6, 16), (6, 16)]


def test_predictors_learn_to_keep_what_the_teacher_looks_at():
    torch.manual_seed(0)
    made, given = task(), batch(16)
    looks = taught(made.teacher, given["image"], (1,))[2]
    wanted = torch.zeros_like(looks[0]).scatter(1, looks[0].topk(8).indices, 1.0)
    optimizer = torch.optim.Adam(made.pruned.predictors.parameters(), lr=0.02)

    def agreed():
        walk = made.pruned.eval().walk(given["image"])
        run(made.pruned, walk, made.pruned.embed(given["image"]))
        made.pruned.train()
        return float(wanted[walk.trace().owner >= 0].mean())

    before = agreed()
    for _ in range(40):
        optimizer.zero_grad()
        made.loss(given)["loss"].backward()
        optimizer.step()
    assert agreed() > max(0.75, before)


def test_a_teacher_with_other_patches_teaches_by_its_answers():
    made = task(teacher=False)
    other = dense(ViTConfig(image=(16, 16), patch=8, width=32, depth=2, heads=2, hidden=48, classes=3))
    taught_by = PruningLoss(made.task, made.pruned, Teacher(other, SAME, SAME, [0, 1, 2]))
    torch.manual_seed(1)
    alone = made.loss(given := batch())["loss"]
    torch.manual_seed(1)
    given = {**given}
    assert taught_by.loss(given)["loss"] != alone


def test_an_empty_batch_moves_nothing():
    made = task()
    empty = {"image": torch.zeros(0, 3, 16, 16), "target": torch.zeros(0, 3)}
    found = made.loss(empty)
    assert found["loss"] == 0


def test_a_predictor_begins_with_the_share_that_is_wanted():
    torch.manual_seed(0)
    predictor = Predictor(24)
    predictor.lean(0.7)
    chance = predictor(torch.randn(4, 16, 24)).softmax(-1)[..., 0]
    assert abs(chance.mean() - 0.7) < 0.1
