"""A teacher sees what its own preprocessing would show it, and answers in the student's order."""

import numpy as np
import torch
from PIL import Image

import saccade
from saccade.data.image.preprocess import Preprocess
from saccade.vision.backbone import Teacher


def picture() -> Image.Image:
    smooth = np.random.default_rng(0).integers(0, 256, (6, 6, 3)).astype(np.uint8)
    return Image.fromarray(smooth).resize((64, 64), Image.Resampling.BICUBIC)


def taught(own: Preprocess, student: Preprocess, order: tuple[int, ...] = (0, 1, 2)) -> Teacher:
    torch.manual_seed(0)
    module = saccade.create("vit_xs4_32", classes=3, image=own.size).eval()
    torch.nn.init.normal_(module.head.weight)
    return Teacher(module, own, student, list(order))


def test_the_same_preprocessing_changes_nothing() -> None:
    same = Preprocess(size=(32, 32))
    teacher, image = taught(same, same), torch.from_numpy(same(picture()))[None]
    with torch.no_grad():
        assert torch.equal(teacher(image), teacher.module(image))


def test_another_normalisation_is_undone() -> None:
    own = Preprocess(size=(32, 32), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    student = Preprocess(size=(32, 32))
    seen = taught(own, student).seen(torch.from_numpy(student(picture()))[None])
    assert np.abs(seen[0].numpy() - own(picture())).max() < 1e-5


def test_another_size_is_resized_to() -> None:
    own, student = Preprocess(size=(32, 32)), Preprocess(size=(64, 64))
    seen = taught(own, student).seen(torch.from_numpy(student(picture()))[None])
    assert seen.shape == (1, 3, 32, 32)
    assert np.abs(seen[0].numpy() - own(picture())).mean() < 0.05


def test_classes_in_another_order() -> None:
    same = Preprocess(size=(32, 32))
    teacher, image = taught(same, same, (2, 0, 1)), torch.from_numpy(same(picture()))[None]
    with torch.no_grad():
        assert torch.equal(teacher(image), teacher.module(image)[:, [2, 0, 1]])
