"""Sequence models against plain torch at the same size, in one run, as ratios.

Training: a step (forward, backward, fused AdamW) of transformer_small against torch.nn.Transformer with the
same tables of words around it. Writing: the attention Seq2Seq, greedy, against a plain loop over torch's own
cells. The two take turns, so that a slow moment of the machine hits both; the ratio is the median over rounds
of (their time / ours): above 1, ours is faster. Times are of the processor, as the machine may be shared.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import median, quantiles
from time import process_time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.models.build import build
from saccade.models.text import names
from saccade.models.text.decoding import Marks, greedy
from saccade.models.text.seq2seq import Seq2Seq, Seq2SeqConfig
from saccade.models.text.transformer import Transformer, TransformerConfig
from saccade.nn.position import sincos
from saccade.processes import keep_freed_memory

WORDS, LENGTH = 8000, 14
Once = Callable[[], object]


class Peer(nn.Module):
    """torch.nn.Transformer between the same tables of words and positions."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.source, self.target = (nn.Embedding(WORDS, config.width) for _ in range(2))
        self.sines = sincos(torch.arange(64).float(), config.width)
        self.inner = nn.Transformer(
            config.width, config.heads, config.depth, config.depth, config.hidden, config.block.dropout,
            batch_first=True,
        )  # fmt: skip
        self.dropout, self.scale = nn.Dropout(config.block.dropout), config.width**0.5

    def forward(self, source: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        x, y = (
            self.dropout(table(t) * self.scale + self.sines[: t.shape[1]])
            for table, t in ((self.source, source), (self.target, target))
        )
        future = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        out = self.inner(
            x,
            y,
            tgt_mask=future,
            src_key_padding_mask=~mask,
            memory_key_padding_mask=~mask,
            tgt_is_causal=True,
        )
        return F.linear(out, self.target.weight)


def batch(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sentences of 10 to 14 words, as a bucket of captions has them."""
    source, target = (torch.randint(4, WORDS, (size, LENGTH)) for _ in range(2))
    return source, torch.arange(LENGTH) < torch.randint(10, LENGTH + 1, (size, 1)), target


def step(module: nn.Module, size: int) -> Once:
    """One training step whenever called."""
    source, mask, target = batch(size)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)

    def once() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(module(source, mask, target).flatten(0, 1), target.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return once


class Loop:
    """A plain loop: torch's cell and an attention module that is asked at each word, on the weights of ours.

    Args:
        once: the keys of the source are made before the loop, which plain loops seldom do.
    """

    def __init__(self, model: Seq2Seq, once: bool) -> None:
        self.model, self.once, decoder = model, once, model.decoder
        recurrent = decoder.recurrent
        self.cell = nn.GRUCell(recurrent.weights(0).weight_ih.shape[1], recurrent.hidden)
        self.cell.load_state_dict(recurrent.weights(0)._asdict())

    @torch.no_grad()
    def write(self, source: Tensor, mask: Tensor, most: int) -> Tensor:
        decoder = self.model.decoder
        look = decoder.look
        assert look is not None
        assert look.score is not None
        memory, state = self.model.encoder(source, mask)
        h, word, words, keys = state[0][0], torch.ones_like(source[:, 0]), [], look.key(memory)
        for _ in range(most):
            x = decoder.words(word)
            keys = keys if self.once else look.key(memory)
            energy = look.score((look.query(h)[:, None] + keys).tanh())[..., 0]
            p = energy.masked_fill(~mask, -torch.inf).softmax(-1)
            told = (p[:, None] @ memory)[:, 0]
            h = self.cell(torch.cat([x, told], dim=-1), h)
            made = decoder.readout(torch.cat([h, told, x], dim=-1)).tanh()
            word = decoder.unembed(made).log_softmax(-1).argmax(-1)
            words.append(word)
        return torch.stack(words, dim=1)


def compare(name: str, ours: Once, theirs: Once, rounds: int) -> None:
    """Print the ratio of the two."""
    found: dict[str, list[float]] = {"ours": [], "theirs": []}
    pairs = [("ours", ours), ("theirs", theirs)]
    for i in range(rounds + 2):
        for who, once in pairs[:: 1 if i % 2 else -1]:
            start = process_time()
            once()
            if i >= 2:
                found[who].append(process_time() - start)
    ratios = [b / a for a, b in zip(found["ours"], found["theirs"], strict=True)]
    low, middle, high = quantiles(ratios, n=4)
    mine, other = (median(times) for times in found.values())
    print(
        f"{name:44} {middle:.2f} (quartiles {low:.2f} to {high:.2f}; {mine:.3f} and {other:.3f} s)",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=128)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    keep_freed_memory()
    config = names.text_config("transformer_small", WORDS)
    assert isinstance(config, TransformerConfig)
    for dropout in (0.1, 0.0):
        here = replace(config, block=replace(config.block, dropout=dropout))
        pair = step(Transformer(here), options.batch), step(Peer(here), options.batch)
        compare(f"a step of transformer_small, dropout {dropout}", *pair, options.rounds)
    attention = names.text_config("seq2seq_attention", WORDS)
    assert isinstance(attention, Seq2SeqConfig)
    model = Seq2Seq(attention).eval()
    most = 20
    for size, once in product((1, 32, options.batch), (False, True)):
        loop, (source, mask, _) = Loop(model, once), batch(size)
        written = greedy(model, source, mask, Marks(bos=1), most)
        assert [list(s.tokens) for s in written] == loop.write(source, mask, most).tolist()
        pair = (
            partial(greedy, model, source, mask, Marks(bos=1), most),
            partial(loop.write, source, mask, most),
        )
        told = ", keys once" if once else ""
        compare(f"attention writes {most} words, batch {size}{told}", *pair, options.rounds)
    for name in ("seq2seq_lstm", "seq2seq_gru", "seq2seq_attention"):
        again = step(build(names.text_config(name, WORDS)), options.batch)
        again()
        start = process_time()
        again()
        print(f"a step of {name:34} {process_time() - start:.3f} s of the processor", flush=True)


if __name__ == "__main__":
    main()
