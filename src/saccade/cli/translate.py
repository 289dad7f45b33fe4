"""`saccade translate`: what is this in another language?"""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.speak import RunArgument, TextsArgument, line, opened, tell_unknown, texts
from saccade.errors import UsageError, check_number

if TYPE_CHECKING:
    from saccade.api.text_models import TextModel
    from saccade.text.generate import Manner, Written


def translate(
    model: RunArgument,
    given: TextsArgument = None,
    beams: Annotated[int, typer.Option(help="Follow so many beginnings at a time; 1: word by word.")] = 1,
    alpha: Annotated[float, typer.Option(help="How far beam search forgives length; 0: not at all.")] = 0.6,
    best: Annotated[int, typer.Option(help="Print so many translations of each, with their scores.")] = 1,
    most: Annotated[int, typer.Option(help="Tokens at most; 0: twice as many as there are to read.")] = 0,
    batch: Annotated[int, typer.Option(help="Texts that are translated together.")] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Translate sentences: `saccade translate runs/de-en "Ein Hund schwimmt." --beams 5`.

    A captioner takes pictures in their place: `saccade translate runs/captions photo.jpg`.
    """
    check_number("beams", beams, 1, 1024)
    if not 1 <= best <= beams:
        raise UsageError(f"best is {best}, but {beams} beams find {beams} at most; expected 1 to {beams}")
    check_number("batch", batch, 1, 10**6)
    asked = texts(given)
    network = opened(model, "translate")
    from saccade.text.generate import Manner

    how = Manner(beams=beams, alpha=alpha, most=most)
    tell_unknown(network.spoken.reads, asked if network.task == "translate" else [])
    found = _told(network, asked, how, batch)
    if as_json:
        shown = [
            {"text": text, "translations": [_json(one, how) for one in each[:best]]}
            for text, each in zip(asked, found, strict=True)
        ]
        typer.echo(json.dumps(shown, indent=2, ensure_ascii=False))
        return
    for each in found:
        for one in each[:best]:
            typer.echo(line(one.text) if best == 1 else f"{_score(one, how):.4f}\t{line(one.text)}")


def _told(network: "TextModel", asked: list[str], how: "Manner", batch: int) -> "list[list[Written]]":
    if network.task != "caption":
        return network.translations(asked, how, batch)
    import torch

    from saccade.text.generate import captions

    assert network.spoken.preprocess is not None
    pictures = torch.from_numpy(network.spoken.preprocess.batch(list(asked)))
    return captions(network.module, network.vocabulary, pictures, how)


def _score(one: "Written", how: "Manner") -> float:
    from saccade.models.text.decoding import Sentence

    return Sentence((0,) * one.tokens, one.log_p, one.ended).score(how.alpha)


def _json(one: "Written", how: "Manner") -> dict[str, object]:
    numbers = {"log_p": round(one.log_p, 6), "score": round(_score(one, how), 6), "tokens": one.tokens}
    return {"text": one.text, **numbers, "ended": one.ended}
