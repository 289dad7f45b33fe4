"""A GPT of characters on tiny Shakespeare: 4 layers, 4 heads, width 128, context 64, batch 12, 2,000 steps.

    python benchmarks/shakespeare.py tinyshakespeare.txt

The published figure for this size is a validation loss of 1.88 (nanoGPT's README). The last tenth of the text
is held out, and all of it is scored.
"""

import argparse
import time
from dataclasses import replace

import torch

from saccade.data.buckets import stream
from saccade.data.text import hold_out, open_text
from saccade.data.vocabulary import learn
from saccade.data.windows import Windows, once
from saccade.models.gpt import GPTConfig
from saccade.models.text import build, config
from saccade.tasks.language import NextWord, complete
from saccade.tasks.task import Batch
from saccade.train.loop import Plan, State, fit
from saccade.train.optim import adamw


class Watch:
    """A line every 250 steps."""

    def __init__(self) -> None:
        self.began = time.monotonic()

    def step(self, state: State, logged: dict[str, float]) -> None:
        if state.step % 250 == 0:
            print(f"step {state.step}  loss {logged['loss']:.3f}  {self.seconds:.0f} s", flush=True)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def epoch(self, state: State) -> None:
        state.sums.clear()

    def broken(self, state: State, batch: Batch) -> None:
        raise SystemExit(f"the loss was not finite at step {state.step}")

    def over(self) -> bool:
        return False


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("text")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    found = hold_out(open_text(asked.text), 0.1)
    assert found.val is not None
    vocabulary = learn(found.train, "characters")
    train, val = vocabulary.number(found.train).tokens, vocabulary.number(found.val).tokens
    made = config("gpt_mini_64", len(vocabulary))
    assert isinstance(made, GPTConfig)
    torch.manual_seed(asked.seed)
    module = build(replace(made, block=replace(made.block, dropout=0.0)))
    windows = Windows(train, 64, 12, asked.seed)
    plan = Plan(steps=asked.steps, epoch=len(windows), lr=asked.lr, warmup=0.05, seed=asked.seed)
    task, watch = NextWord(module), Watch()
    state = State(module, adamw(module, asked.lr, 0.1, beta2=0.99))
    print(f"{found.told}; {sum(p.numel() for p in module.parameters()):,} parameters", flush=True)
    fit(task, stream(windows, 0, asked.steps), plan, state, watch)
    scores = task.score(module, once(val, 64, 256))
    print(f"validation loss {scores['loss']:.4f} after {asked.steps} steps and {watch.seconds:.0f} s")
    print(complete(module, vocabulary, "\n", most=300, seed=asked.seed))


if __name__ == "__main__":
    main()
