"""How good a model of text is on a text that it has not learnt from, with samples to read."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
from torch import nn

from saccade.errors import DataError, UsageError
from saccade.metrics.text import Exposure, corpus_bleu, simple_bleu
from saccade.models.text.bert import BERT
from saccade.models.text.gpt import GPT
from saccade.tasks.language.batches import once as windows
from saccade.tasks.language.data import Text, open_text
from saccade.tasks.language.loss import HiddenWord, Language, NextWord, exposure
from saccade.tasks.translate.batches import Limit, Pairs, once
from saccade.tasks.translate.corpus import open_pairs
from saccade.tasks.translate.data import Sentences
from saccade.tasks.translate.loss import Translate
from saccade.tasks.translate.loss import exposure as exposed
from saccade.text.generate import Manner, around, completions, fillings, translations
from saccade.text.lines import LONGEST
from saccade.text.vocabulary import HOLE
from saccade.weights.load_text import SIDES, Spoken

SHOWN = 12
FEWEST = 3
"""Tokens of a text to be scored on."""
ENOUGH = 512
"""Sentences or windows by which the places of words are compared."""
PLACES = 60
"""Places that a plot shows; few sentences are longer."""
LEAST = 20
"""Words at a place; the accuracy of fewer would be noise."""
PIECES = 120
"""Words that a sample goes on for."""
SPOKEN = 600
"""Characters of a line that a sample begins with."""
BLANK = "\N{OPEN BOX}"
"""Stands for a guess that is but a space."""
WILD = 0.8
"""The temperature of a sample."""
K = 2
"""The longest n-gram of the simple form of BLEU."""


def judge(spoken: Spoken, part: Sentences | Text, split: str) -> dict[str, Any]:
    """What evaluation.json holds of a model of text."""
    if isinstance(part, Sentences):
        return {"task": "translate", "split": split, "sides": list(spoken.sides), **_translated(spoken, part)}
    return {"task": "language", "split": split, **_read(spoken, part)}


def parts(spoken: Spoken, data: str) -> Mapping[str, Sentences | Text]:
    """The splits of a text, or of sentence pairs in the languages that the model knows."""
    if spoken.task == "language":
        return open_text(data).splits
    if spoken.task != "translate":
        raise UsageError(f"a model to {spoken.task} cannot be scored on text; expected one to translate")
    pair = "" if spoken.sides == SIDES else "-".join(spoken.sides)
    return open_pairs(data, pair, learns=False).splits


def _translated(spoken: Spoken, part: Sentences) -> dict[str, Any]:
    sources, wanted = map(list, zip(*((pair.source, pair.target) for pair in part), strict=True))
    best = translations(spoken.module, spoken.reads, spoken.vocabulary, sources, longest=LONGEST)
    written = [found[0].text for found in best]
    pairs = Pairs(spoken.reads.number(sources), spoken.vocabulary.number(wanted))
    task = Translate(spoken.module, spoken.vocabulary)
    found = task.scores(task.tally(spoken.module, once(pairs, Limit()), write=False))
    exact, forgiving = (corpus_bleu(written, wanted, lowercase=lower) for lower in (False, True))
    simple = [simple_bleu(a.split(), b.split(), K) for a, b in zip(written, wanted, strict=True)]
    scores = {
        "bleu": exact.score,
        "bleu_lowercase": forgiving.score,
        "simple_bleu": sum(simple) / len(simple),
        "perplexity": found["perplexity"],
        "loss": found["loss"],
        "accuracy": found["accuracy"],
        "count": len(sources),
    }
    samples = [
        {"source": sources[i], "wanted": wanted[i], "written": written[i]} for i in _spread(len(sources))
    ]
    some = pairs.take(np.array(_spread(len(pairs), ENOUGH), np.int64))
    return {
        "scores": scores,
        "signatures": {"bleu": exact.signature, "bleu_lowercase": forgiving.signature},
        "exposure": _places(exposed(spoken.module, once(some, Limit())), 1),
        "samples": samples,
    }


def _spread(count: int, most: int = SHOWN) -> list[int]:
    """Some numbers below count, evenly."""
    return np.linspace(0, count - 1, min(most, count)).astype(int).tolist()


def _places(found: Exposure, first: int) -> dict[str, Any]:
    """Accuracies by place, as far as there are words enough."""
    kept = [
        i
        for i, n in enumerate(found.forced.count[:PLACES].tolist())
        if n >= min(LEAST, found.forced.count.max())
    ]
    rows = {"forced": found.forced.accuracy, "free": found.free.accuracy, "words": found.forced.count}
    return {
        "places": [first + i for i in kept],
        **{name: [float(column[i]) for i in kept] for name, column in rows.items()},
    }


def task_for(spoken: Spoken, module: nn.Module, smoothing: float = 0.0, seed: int = 0) -> Language:
    """The next word for a GPT, a hidden word for a BERT."""
    if isinstance(spoken.module, BERT):
        return HiddenWord(module, spoken.vocabulary, smoothing=smoothing, seed=seed)
    return NextWord(module, smoothing=smoothing, seed=seed)


def context_of(spoken: Spoken) -> int:
    """Words that the model reads at once."""
    assert isinstance(spoken.module, GPT | BERT)
    return spoken.module.config.context


def _read(spoken: Spoken, part: Text) -> dict[str, Any]:
    tokens, context = spoken.vocabulary.running(part), context_of(spoken)
    if len(tokens) < FEWEST:
        raise DataError(f"the text has {len(tokens)} tokens; expected {FEWEST} or more to be scored on")
    task = task_for(spoken, spoken.module)
    found = task.score(spoken.module, windows(tokens, context, 64))
    scores = {name: found[name] for name in ("perplexity", "loss", "accuracy")}
    hidden = isinstance(spoken.module, BERT)
    told: dict[str, Any] = {"scores": {**scores, "count": int(found["count"])}, "hidden": hidden}
    if isinstance(spoken.module, GPT):
        some = islice(windows(tokens, context, 64), ENOUGH // 64)
        told["exposure"] = _places(
            exposure(spoken.module, some), max(1, (min(context, len(tokens) - 1) + 1) // 2) + 1
        )
        return {**told, "samples": list(_completed(spoken, part))}
    return {**told, "samples": list(_filled(spoken, part))}


def _lines(part: Text, least: int) -> list[str]:
    """Lines with words enough, evenly from the beginning of a text; of a long one, its beginning."""
    found = [line.strip()[:SPOKEN] for line in islice(part, 2000) if len(line.split()) >= least]
    return [found[i] for i in _spread(len(found), SHOWN // 2)] if found else []


def _completed(spoken: Spoken, part: Text) -> Iterable[dict[str, Any]]:
    for number, line in enumerate(_lines(part, 3) or _lines(part, 1)):
        how = Manner(most=PIECES, temperature=WILD, seed=number)
        (written,) = completions(spoken.module, spoken.vocabulary, [line], how)
        yield {"source": line, "written": written[0].text}


def _filled(spoken: Spoken, part: Text) -> Iterable[dict[str, Any]]:
    for number, line in enumerate(_lines(part, 4)):
        words = line.replace(HOLE, "").split() or [line]
        hidden, word = _hole(words, number)
        while len(words) > 1 and len(around(spoken.vocabulary, hidden)) > context_of(spoken):
            words = words[: len(words) // 2]
            hidden, word = _hole(words, number)
        ((guesses,),) = fillings(spoken.module, spoken.vocabulary, [hidden])
        told = ", ".join(f"{guess.word.strip() or BLANK} ({guess.p:.0%})" for guess in guesses)
        yield {"source": hidden, "wanted": word, "written": told}


def _hole(words: Sequence[str], number: int) -> tuple[str, str]:
    """A text with one of its words hidden, and the word."""
    place = (number * 7 + 1) % len(words)
    return " ".join([*words[:place], HOLE, *words[place + 1 :]]), words[place]
