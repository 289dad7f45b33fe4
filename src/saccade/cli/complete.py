"""`saccade complete`: how does this text go on?"""

import json
import sys
from typing import Annotated

import typer

from saccade.cli.speak import RunArgument, TextsArgument, opened, safe, tell_unknown, texts
from saccade.errors import UsageError, check_number

USUAL = 0.8


def complete(
    model: RunArgument,
    given: TextsArgument = None,
    tokens: Annotated[int, typer.Option(help="How many tokens to write at most.")] = 100,
    temperature: Annotated[
        float | None, typer.Option(help="0: the likeliest; below 1 bolder, above 1 wilder; default 0.8.")
    ] = None,
    top_k: Annotated[int, typer.Option(help="Draw among so many likeliest tokens; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw among the likeliest that hold so much chance.")] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed writes the same text.")] = 0,
    beams: Annotated[int, typer.Option(help="Beam search with so many; it draws nothing.")] = 1,
    count: Annotated[int, typer.Option(help="So many different continuations of each text.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Go on with a text: `saccade complete runs/shakespeare "ROMEO:" --tokens 200 --top-k 20`."""
    check_number("tokens", tokens, 1, 10**6)
    check_number("count", count, 1, 1000)
    if count > 1 and beams == 1 and temperature == 0:
        raise UsageError(
            f"count is {count}, but a temperature of 0 writes one text; raise it, or give --beams"
        )
    if beams > 1:
        check_number(f"with {beams} beams, count", count, 1, beams)
    given, each = texts(given), 1 if beams > 1 else count
    asked = [text for text in given for _ in range(each)]
    network = opened(model, "complete")
    from saccade.text.generate import Manner

    usual = USUAL if beams == 1 else 0.0
    how = Manner(
        most=tokens,
        temperature=usual if temperature is None else temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        beams=beams,
    )
    tell_unknown(network.vocabulary, asked)
    context = getattr(network.module.config, "context", 0)
    for text in given:
        if (found := len(network.vocabulary.encode(text))) > context:
            print(
                f"note: the text has {found:,} tokens; the model reads the last {context:,}", file=sys.stderr
            )
    written = [one for best in network.completions(asked, how) for one in best[: count // each]]
    asked = [text for text in given for _ in range(count)]
    if as_json:
        shown = [
            {"text": text, "completion": one.text, "log_p": round(one.log_p, 6), "tokens": one.tokens,
             "ended": one.ended}
            for text, one in zip(asked, written, strict=True)
        ]  # fmt: skip
        typer.echo(json.dumps(shown, indent=2, ensure_ascii=False))
        return
    typer.echo("\n\n".join(safe(text + one.text) for text, one in zip(asked, written, strict=True)))
