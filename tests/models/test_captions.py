"""A captioner learns to say what is where in pictures of shapes, is kept in a folder, and asked there."""

from itertools import product

import numpy as np
import pytest
import torch
from PIL import Image
from terminal import run

import saccade
from saccade.data.image.preprocess import Preprocess
from saccade.models.text.transformer import Captioner, CaptionerConfig, TransformerConfig
from saccade.models.vit import ViTConfig
from saccade.nn.block import BlockStyle
from saccade.tasks.translate.loss import TranslationLoss
from saccade.text.generate import captions
from saccade.text.model import TextFolder, load_text, save_text
from saccade.text.vocabulary import learn

SIDE, SIZE = 24, 8
COLOURS = {"red": (220, 40, 40), "green": (40, 180, 70), "blue": (50, 80, 220)}
SHAPES = ("square", "circle", "triangle")
PLACES = ("above", "left of")
THINGS = [f"{colour} {shape}" for colour in COLOURS for shape in SHAPES]
SENTENCES = [f"a {a} {place} a {b}" for a, place, b in product(THINGS, PLACES, THINGS) if a != b]
WORDS = learn(SENTENCES)
STYLE = BlockStyle(eps=1e-5)


def stamp(shape):
    """Where a shape has colour, in a small square."""
    row, column = np.mgrid[0:SIZE, 0:SIZE] - (SIZE - 1) / 2
    if shape == "circle":
        return row**2 + column**2 <= (SIZE / 2) ** 2
    return np.abs(column) <= (row + SIZE / 2) / 2 if shape == "triangle" else np.full((SIZE, SIZE), True)


def scene(sentence, rng):
    """A picture of a sentence: noise, and two shapes somewhere in their halves."""
    _, *first, place, second = sentence.replace("left of", "left").replace(" a ", " ").split(maxsplit=4)
    pixels = rng.integers(90, 166, (SIDE, SIDE, 3))
    half, free = SIDE // 2, SIDE - SIZE
    for i, (colour, shape) in enumerate((first, second.split())):
        along, across = rng.integers(0, half - SIZE + 1) + i * half, rng.integers(0, free + 1)
        top, left = (along, across) if place == "above" else (across, along)
        pixels[top : top + SIZE, left : left + SIZE][stamp(shape)] = COLOURS[colour]
    return pixels.astype(np.uint8)


def scenes(count, seed):
    rng = np.random.default_rng(seed)
    told = [SENTENCES[i] for i in rng.integers(0, len(SENTENCES), count)]
    return np.stack([scene(sentence, rng) for sentence in told]), told


def batch(pixels, told):
    rows = [WORDS.encode(sentence) for sentence in told]
    width = max(map(len, rows)) + 1
    mask = torch.arange(width) < torch.tensor([[len(row) + 1] for row in rows])
    wanted = torch.tensor([[*row, WORDS.eos, *[WORDS.pad] * (width - len(row) - 1)] for row in rows])
    given = torch.cat([torch.full((len(rows), 1), WORDS.bos), wanted[:, :-1]], dim=1)
    source = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1
    return {
        "source": source,
        "target_in": given,
        "target_out": wanted,
        "target_mask": mask,
        "words": mask.sum(),
    }


def captioner(width=64):
    torch.manual_seed(0)
    vit = ViTConfig(image=(SIDE, SIDE), patch=4, width=width, depth=3, heads=4, hidden=2 * width, classes=0,
                    block=STYLE)  # fmt: skip
    text = TransformerConfig(source=0, vocabulary=len(WORDS), width=width, depth=2, heads=4, hidden=2 * width,
                             context=32, tie="target", block=STYLE)  # fmt: skip
    return Captioner(CaptionerConfig(vit=vit, text=text))


def spoken(module):
    return TextFolder(module, WORDS, preprocess=Preprocess(size=(SIDE, SIDE), crop=1.0), task="caption")


@pytest.fixture
def photo(tmp_path):
    pixels, _ = scenes(1, seed=5)
    Image.fromarray(pixels[0]).save(tmp_path / "shapes.png")
    return tmp_path / "shapes.png"


def test_a_captioner_is_a_folder_that_answers_pictures(tmp_path, photo):
    module = captioner(16).eval()
    save_text(tmp_path / "run", spoken(module))
    read = load_text(tmp_path / "run")
    assert (read.task, read.preprocess.size) == ("caption", (SIDE, SIDE))
    model = saccade.load(tmp_path / "run", text=True)
    assert model.caption([photo]) == [run("translate", tmp_path / "run", photo).out.rstrip("\n")]
    done = run("complete", tmp_path / "run", "a")
    assert (done.code, done.err.count("\n")) == (4, 1)
    assert "a Captioner cannot complete; it can caption an image" in done.err
    (tmp_path / "run" / "preprocess.json").unlink()
    done = run("translate", tmp_path / "run", photo)
    assert (done.code, "preprocess.json is missing" in done.err) == (4, True)


@pytest.mark.slow
def test_unseen_pictures_are_told_word_for_word(tmp_path):
    module = captioner()
    task = TranslationLoss(module, WORDS, smoothing=0.0)
    steps, size = 2000, 64
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for step in range(steps):
        loss = task.loss(batch(*scenes(size, seed=1000 + step)))["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    unseen, wanted = scenes(300, seed=2)
    written = captions(module, WORDS, batch(unseen, wanted)["source"])
    right = sum(best[0].text == sentence for best, sentence in zip(written, wanted, strict=True)) / 300
    print(f"exact matches: {right:.1%}; by chance {1 / len(SENTENCES):.1%}")
    assert right >= 0.8
    save_text(tmp_path / "run", spoken(module))
    files = [tmp_path / f"{i}.png" for i in range(8)]
    for file, pixels in zip(files, unseen, strict=False):
        Image.fromarray(pixels).save(file)
    lines = run("translate", tmp_path / "run", *files).out.splitlines()
    assert lines == [best[0].text for best in written[:8]], "the folder says what the module said"
