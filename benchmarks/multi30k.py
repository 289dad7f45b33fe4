"""German to English on Multi30k (Elliott et al. 2016) within a time budget: BLEU on test_2016_flickr.

    python benchmarks/multi30k.py transformer_small --data multi30k/data --minutes 60

Texts stay as they are, capital letters too; one vocabulary of byte pairs for both languages. The score is
greedy, by sacrebleu, with its signature; once as it is and once with capital letters forgiven, as most
published figures for this set are of lower-cased text. With --busy the minutes are those of the processor,
which on one thread are what a machine without other work would take.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from saccade.data.buckets import Buckets, Limit, Pairs, Shuffled, once, stream
from saccade.data.sentences import Sentences
from saccade.data.translation import open_pairs
from saccade.data.vocabulary import Vocabulary, learn
from saccade.metrics.text import corpus_bleu
from saccade.models.seq2seq import Seq2SeqConfig
from saccade.models.text import TextConfig, build, config
from saccade.models.transformer import TransformerConfig
from saccade.tasks.task import Batch
from saccade.tasks.translate import Translate, translate
from saccade.train.ema import Ema
from saccade.train.freed import keep_freed
from saccade.train.loop import Plan, State, fit
from saccade.train.optim import adamw
from saccade.train.pace import Pace

TEST = "test_2016_flickr"


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """How a model learns here."""

    lr: float = 1e-3
    dropout: float = 0.3
    smoothing: float = 0.1
    decay: float = 0.01
    warmup: float = 0.08
    sentences: int = 64
    tokens: int = 2048
    size: int = 4000
    ema: float = 0.999


SETTINGS = {
    "seq2seq_lstm": Setting(),
    "seq2seq_gru": Setting(),
    "seq2seq_attention": Setting(),
    "transformer_small": Setting(dropout=0.15),
    "transformer_small_pre": Setting(dropout=0.15),
}


def numbered(part: Sentences, vocabulary: Vocabulary) -> Pairs:
    """The pairs of a split as numbers."""
    return Pairs(
        vocabulary.number(pair.source for pair in part), vocabulary.number(pair.target for pair in part)
    )


def sized(name: str, words: int, setting: Setting) -> TextConfig:
    """The model's config for this vocabulary."""
    found = config(name, words, words)
    if isinstance(found, TransformerConfig):
        return replace(found, tie="all", block=replace(found.block, dropout=setting.dropout))
    assert isinstance(found, Seq2SeqConfig)
    return replace(found, dropout=setting.dropout)


class Watch:
    """A line a minute, and the loss on unseen pairs after each epoch."""

    def __init__(
        self, task: Translate, val: Pairs, minutes: float, per_epoch: int, now: Callable[[], float]
    ) -> None:
        self.task, self.val, self.per_epoch, self.now = task, val, per_epoch, now
        self.pace = Pace(minutes, per_epoch)
        self.began = self.clock = self.told = now()
        self.words, self.unseen = 0.0, float("nan")

    def step(self, state: State, logged: dict[str, float]) -> None:
        now = self.now()
        if self.pace.step(now - self.clock) and state.step < state.steps:
            state.aim(state.step + self.pace.left())
        self.clock = now
        if now - self.told >= 60:
            print(
                f"{(now - self.began) / 60:5.1f} min  step {state.step}/{state.steps}  "
                f"epoch {state.step / self.per_epoch:.2f}  loss {logged['loss']:.3f}  "
                f"unseen {self.unseen:.3f}  {self.words / (now - self.told):,.0f} words/s",
                flush=True,
            )
            self.told, self.words = now, 0.0

    def epoch(self, state: State) -> None:
        module = state.module if state.ema is None else state.ema.module
        began, told = self.now(), self.now() - self.told
        tally = self.task.tally(module, once(self.val, Limit()), write=False)
        self.unseen = tally.loss / tally.words
        self.clock = self.now()
        self.told = self.clock - told
        self.pace.scored(self.clock - began)
        state.sums.clear()

    def broken(self, state: State, batch: Batch) -> None:
        raise SystemExit(f"the loss was not finite at step {state.step}")

    def over(self) -> bool:
        return False


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=SETTINGS)
    parser.add_argument("--data", default="multi30k/data")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--busy", action="store_true", help="The minutes are those of the processor.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--set", action="append", default=[], metavar="NAME=NUMBER")
    parser.add_argument("--keep", type=Path, help="a folder for weights and vocabulary")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    keep_freed()
    setting = SETTINGS[asked.model]
    for text in asked.set:
        name, _, number = text.partition("=")
        setting = replace(setting, **{name: type(getattr(setting, name))(number)})
    found = open_pairs(asked.data, "de-en")
    assert found.val is not None
    vocabulary = learn((text for pair in found.train for text in pair[1:]), size=setting.size)
    train, val = numbered(found.train, vocabulary), numbered(found.val, vocabulary)
    torch.manual_seed(asked.seed)
    module = build(sized(asked.model, len(vocabulary), setting))
    buckets = Buckets(train.lengths, Limit(tokens=setting.tokens, sentences=setting.sentences), asked.seed)
    plan = Plan(
        steps=10**6, epoch=len(buckets), lr=setting.lr, warmup=setting.warmup, seed=asked.seed, clip=1.0
    )
    optimizer = adamw(module, setting.lr, setting.decay, beta2=0.98)
    state = State(module, optimizer, Ema(module, setting.ema), steps=plan.steps)
    task = Translate(module, vocabulary, smoothing=setting.smoothing, done=lambda: state.done)
    now = time.process_time if asked.busy else time.monotonic
    watch = Watch(task, val, asked.minutes, len(buckets), now)
    count = sum(p.numel() for p in module.parameters())
    print(f"{asked.model}: {count:,} parameters, {setting}, {asked.threads} threads", flush=True)

    def counted(batches: Shuffled) -> Iterator[Batch]:
        for batch in stream(batches, 0, 10**9):
            watch.words += float(batch["words"])
            yield batch

    fit(task, counted(Shuffled(train, buckets)), plan, state, watch)
    spent = (now() - watch.began) / 60
    assert state.ema is not None
    for name, pairs in ((TEST, found.tests[TEST]), ("val", found.val)):
        sources, wanted = zip(*((pair.source, pair.target) for pair in pairs), strict=True)
        written = translate(state.ema.module, vocabulary, vocabulary, sources)
        for lowercase in (False, True):
            print(f"{asked.model} {name} {corpus_bleu(written, wanted, lowercase=lowercase)}", flush=True)
        for i in (0, 1, 2):
            print(f"  {sources[i]}\n  {written[i]}\n  {wanted[i]}")
    print(f"{spent:.1f} minutes, {state.step / len(buckets):.1f} epochs, unseen loss {watch.unseen:.3f}")
    if asked.keep:
        from saccade.weights.files import write_safetensors

        asked.keep.mkdir(parents=True, exist_ok=True)
        vocabulary.save(asked.keep)
        tensors = {name: tensor.clone() for name, tensor in state.ema.module.state_dict().items()}
        write_safetensors(asked.keep / "model.safetensors", tensors, {"format": "pt"})


if __name__ == "__main__":
    main()
