"""A small language to learn, whose sentences translate to themselves, and models that learn it in seconds."""

from dataclasses import replace

import numpy as np

from saccade.data.loader import load_batches
from saccade.models.build import build
from saccade.models.text.names import text_config
from saccade.models.text.transformer import TransformerConfig
from saccade.nn.block import BlockStyle
from saccade.tasks.translate.batches import Buckets, Limit, Pairs, Shuffled
from saccade.text.vocabulary import learn
from saccade.train.loop import Plan, TrainState, fit
from saccade.train.optim import adamw

ANIMALS = ("cat", "dog", "cow", "pig", "hen", "fox", "owl", "bee")
WORDS = learn([" ".join(ANIMALS)] * 9)
"""Every animal is one piece."""
SMALL = {
    "seq2seq_attention": {"width": 24, "hidden": 32, "dropout": 0.0},
    "seq2seq_lstm": {"width": 24, "hidden": 32, "dropout": 0.0, "layers": 1},
    "transformer_mini": {"width": 32, "depth": 1, "heads": 4, "hidden": 64},
}


class Silent:
    """Looks on, and may end the training after some step."""

    def __init__(self, end=10**9):
        self.end, self.reached = end, 0

    def step(self, state, logged):
        self.reached = state.step

    def epoch(self, state):
        state.sums.clear()

    def broken(self, state, batch):
        raise AssertionError(state.step)

    def over(self):
        return self.reached >= self.end


def small(name, **changes):
    """A model of that kind which learns in seconds."""
    made = text_config(name, len(WORDS), len(WORDS))
    style = {"block": BlockStyle(placement="pre", eps=1e-5)} if isinstance(made, TransformerConfig) else {}
    return build(replace(made, **{**SMALL[name], **style, **changes}))


def copies(count=300, seed=0, longest=5):
    """Sentences that are their own translation."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(ANIMALS, rng.integers(1, longest + 1))) for _ in range(count)]
    found = WORDS.number(texts)
    return Pairs(found, found), texts


def train(task, batches, steps, lr):
    """Train for so many steps."""
    plan = Plan(steps=steps, epoch=len(batches), lr=lr, warmup=0.1)
    fit(
        task,
        load_batches(batches, 0, steps),
        plan,
        TrainState(task.module, adamw(task.module, lr, 0.0)),
        Silent(),
    )


def shuffled(pairs, tokens=200, seed=0, part=(0, 1)):
    return Shuffled(pairs, Buckets(pairs.lengths, Limit(tokens=tokens), seed), part)
