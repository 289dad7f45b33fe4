"""Evaluate a translation model on sentence pairs, with samples to read."""

import numpy as np

from saccade.metrics.text import corpus_bleu, simple_bleu
from saccade.task import Evaluation
from saccade.tasks.translate.batches import Limit, Pairs, once
from saccade.tasks.translate.data import Sentences
from saccade.tasks.translate.loss import TranslationLoss, exposure
from saccade.text.evaluation import ENOUGH, check_finite, exposure_facts, some_of
from saccade.text.generate import translations
from saccade.text.lines import LONGEST
from saccade.text.model import TextFolder

K = 2
"""The longest n-gram of the simple form of BLEU."""


def evaluate_pairs(model: TextFolder, pairs: Sentences, split: str) -> Evaluation:
    """Translate the sentence pairs of a split greedily, and score the translations."""
    sources, wanted = map(list, zip(*((pair.source, pair.target) for pair in pairs), strict=True))
    best = translations(model.module, model.reads, model.vocabulary, sources, longest=LONGEST)
    written = [found[0].text for found in best]
    numbers = Pairs(model.reads.number(sources), model.vocabulary.number(wanted))
    task = TranslationLoss(model.module, model.vocabulary)
    found = task.scores(task.tally(model.module, once(numbers, Limit()), write=False))
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
    check_finite(scores)
    samples = [
        {"source": sources[i], "wanted": wanted[i], "written": written[i]} for i in some_of(len(sources))
    ]
    some = numbers.take(np.array(some_of(len(numbers), ENOUGH), np.int64))
    details = {
        "task": "translate",
        "split": split,
        "sides": list(model.sides),
        "scores": scores,
        "signatures": {"bleu": exact.signature, "bleu_lowercase": forgiving.signature},
        "exposure": exposure_facts(exposure(model.module, once(some, Limit())), 1),
        "samples": samples,
    }
    metrics = {name: float(value) for name, value in scores.items() if name != "count"}
    return Evaluation(split=split, count=len(sources), metrics=metrics, details=details)
