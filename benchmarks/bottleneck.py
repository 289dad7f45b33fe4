"""How a translation suffers from the length of what it is made of (Cho et al. 2014, arXiv 1409.1259).

A fixed vector has to hold a long sentence as well as a short one; attention goes back to the words. Corpus
BLEU, greedy, of each run on the same test sentences, in four parts of equal number by words of the source:
    python benchmarks/bottleneck.py multi30k runs/lstm runs/attention --split test_2016_flickr
"""

import argparse
from itertools import pairwise
from pathlib import Path

import saccade
from saccade.api.text_models import TextModel
from saccade.metrics.text import corpus_bleu
from saccade.tasks.translate.data import open_pairs

PARTS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--split", default="val")
    parser.add_argument("--pair", default="de-en")
    asked = parser.parse_args()
    pairs = list(open_pairs(asked.data, asked.pair, learns=False).by_name[asked.split])
    pairs.sort(key=lambda pair: len(pair.source.split()))
    cuts = [len(pairs) * i // PARTS for i in range(PARTS + 1)]
    parts = [slice(a, b) for a, b in pairwise(cuts)]
    ends = [[len(pair.source.split()) for pair in pairs[part]] for part in parts]
    print(f"| words of the source | {' | '.join(f'{part[0]} – {part[-1]}' for part in ends)} | all |")
    print("|---" * (PARTS + 2) + "|")
    for run in asked.runs:
        model = saccade.load(run)
        assert isinstance(model, TextModel)
        answers = model.translate([pair.source for pair in pairs])
        wanted = [pair.target for pair in pairs]
        scores = [corpus_bleu(answers[part], wanted[part]).score for part in (*parts, slice(None))]
        print(f"| {Path(run).name} | {' | '.join(f'{score:.1f}' for score in scores)} |", flush=True)


if __name__ == "__main__":
    main()
