"""Evaluate a language model on a text, with samples to read."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from torch import nn

from saccade.errors import DataError
from saccade.models.text.bert import BERT
from saccade.models.text.gpt import GPT
from saccade.task import Evaluation
from saccade.tasks.language.batches import once
from saccade.tasks.language.data import RunningText
from saccade.tasks.language.loss import HiddenWord, LanguageLoss, NextWord, exposure
from saccade.text.evaluation import ENOUGH, SHOWN, check_finite, exposure_facts, some_of
from saccade.text.generate import Decoding, around, completions, fillings
from saccade.text.model import TextFolder
from saccade.text.vocabulary import HOLE

FEWEST = 3
"""Tokens of a text to evaluate on."""
PIECES = 120
"""Tokens that a sample continues for."""
LINE = 600
"""Characters of a line that a sample starts with."""
BLANK = "\N{OPEN BOX}"
"""Stands for a guess that is only a space."""
WILD = 0.8
"""The temperature of a sample."""


def loss_for(model: TextFolder, module: nn.Module, smoothing: float = 0.0, seed: int = 0) -> LanguageLoss:
    """Return the loss of the next word for a GPT, of hidden words for a BERT."""
    if isinstance(model.module, BERT):
        return HiddenWord(module, model.vocabulary, smoothing=smoothing, seed=seed)
    return NextWord(module, smoothing=smoothing, seed=seed)


def context_of(model: TextFolder) -> int:
    """Return how many tokens the model reads at once."""
    assert isinstance(model.module, GPT | BERT)
    return model.module.config.context


def evaluate_text(model: TextFolder, text: RunningText, split: str) -> Evaluation:
    """Score how well a model predicts the words of a split, and write samples."""
    tokens, context = model.vocabulary.running(text), context_of(model)
    if len(tokens) < FEWEST:
        raise DataError(f"the text has {len(tokens)} tokens; expected {FEWEST} or more to evaluate on")
    found = loss_for(model, model.module).score(model.module, once(tokens, context, 64))
    scores, count = {name: found[name] for name in ("perplexity", "loss", "accuracy")}, int(found["count"])
    check_finite(scores)
    details: dict[str, Any] = {"task": "language", "split": split, "scores": {**scores, "count": count}}
    details["hidden"] = isinstance(model.module, BERT)
    if isinstance(model.module, GPT):
        some = islice(once(tokens, context, 64), ENOUGH // 64)
        first = max(1, (min(context, len(tokens) - 1) + 1) // 2) + 1
        details["exposure"] = exposure_facts(exposure(model.module, some), first)
        details["samples"] = list(_completed(model, text))
    else:
        details["samples"] = list(_filled(model, text))
    return Evaluation(split=split, count=count, metrics=scores, details=details)


def _lines(part: RunningText, least: int) -> list[str]:
    """Return lines with enough words, evenly spread over the start of a text; long ones are cut."""
    found = [line.strip()[:LINE] for line in islice(part, 2000) if len(line.split()) >= least]
    return [found[i] for i in some_of(len(found), SHOWN // 2)] if found else []


def _completed(model: TextFolder, part: RunningText) -> Iterable[dict[str, Any]]:
    for number, line in enumerate(_lines(part, 3) or _lines(part, 1)):
        how = Decoding(most=PIECES, temperature=WILD, seed=number)
        (written,) = completions(model.module, model.vocabulary, [line], how)
        yield {"source": line, "written": written[0].text}


def _filled(model: TextFolder, part: RunningText) -> Iterable[dict[str, Any]]:
    for number, line in enumerate(_lines(part, 4)):
        words = line.replace(HOLE, "").split() or [line]
        hidden, word = _hole(words, number)
        while len(words) > 1 and len(around(model.vocabulary, hidden)) > context_of(model):
            words = words[: len(words) // 2]
            hidden, word = _hole(words, number)
        ((guesses,),) = fillings(model.module, model.vocabulary, [hidden])
        told = ", ".join(f"{guess.word.strip() or BLANK} ({guess.p:.0%})" for guess in guesses)
        yield {"source": hidden, "wanted": word, "written": told}


def _hole(words: Sequence[str], number: int) -> tuple[str, str]:
    """Return a text with one of its words hidden, and the word."""
    place = (number * 7 + 1) % len(words)
    return " ".join([*words[:place], HOLE, *words[place + 1 :]]), words[place]
