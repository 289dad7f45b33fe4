"""`saccade translate`, `complete` and `fill`: what a text model writes."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.api.inputs import identify_model
from saccade.cli.arguments import examples
from saccade.cli.output import print_json, say, table
from saccade.errors import DataError, UsageError, check_number

if TYPE_CHECKING:
    from saccade.api.text_models import TextModel
    from saccade.text.generate import Decoding, Filling, Generated
    from saccade.text.vocabulary import Vocabulary

TEMPERATURE = 0.8
RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A run or model folder of a text model, or Hugging Face's GPT-2 or BERT."
    ),
]
TextsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="TEXT", help="Texts; without any, each line of stdin is one.")
]


@examples(
    'saccade translate runs/de-en "Ein Hund schwimmt."',
    'saccade translate runs/de-en "Ein Hund." --beams 5 --best 3',
    'saccade translate runs/de-en "Zwei Katzen." "Ein Hund." --json',
)
def translate(
    model: RunArgument,
    given: TextsArgument = None,
    beams: Annotated[int, typer.Option(help="Beam width; 1 is greedy decoding.")] = 1,
    alpha: Annotated[float, typer.Option(help="Length penalty of beam search; 0 means none.")] = 0.6,
    best: Annotated[int, typer.Option(help="Translations to print for each text, with their scores.")] = 1,
    most: Annotated[int, typer.Option(help="Maximum number of tokens; 0: twice the length of the text.")] = 0,
    batch: Annotated[int, typer.Option(help="Texts to translate together.")] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Translate sentences, or caption images.

    A captioning model takes images instead: `saccade translate runs/captions photo.jpg`.
    """
    check_number("beams", beams, 1, 1024)
    if not 1 <= best <= beams:
        raise UsageError(f"best is {best}, but {beams} beams find {beams} at most; expected 1 to {beams}")
    check_number("batch", batch, 1, 10**6)
    texts = read_texts(given)
    network = _load(
        model, lambda network: network.caption if network.loaded.preprocess else network.translate
    )
    from saccade.text.generate import Decoding

    how = Decoding(beams=beams, alpha=alpha, most=most)
    captions = network.loaded.preprocess is not None
    _warn_unknown(network.loaded.reads, [] if captions else texts)
    found = network.captions(texts, how) if captions else network.translations(texts, how, batch)
    if as_json:
        rows = [
            {"text": text, "translations": [_scored(one, how) for one in each[:best]]}
            for text, each in zip(texts, found, strict=True)
        ]
        print_json(rows, escape=False)
        return
    for each in found:
        for one in each[:best]:
            typer.echo(line(one.text) if best == 1 else f"{_score(one, how):.4f}\t{line(one.text)}")


def _score(one: "Generated", how: "Decoding") -> float:
    from saccade.models.text.decoding import Sentence

    return Sentence((0,) * one.tokens, one.log_p, one.ended).score(how.alpha)


def _scored(one: "Generated", how: "Decoding") -> dict[str, object]:
    numbers = {"log_p": round(one.log_p, 6), "score": round(_score(one, how), 6), "tokens": one.tokens}
    return {"text": one.text, **numbers, "ended": one.ended}


@examples(
    'saccade complete runs/book "the cat"',
    'saccade complete runs/book "the dog" --tokens 20 --temperature 0.5',
    'saccade complete runs/book "the mat" --top-k 5 --count 3 --seed 1',
)
def complete(
    model: RunArgument,
    given: TextsArgument = None,
    tokens: Annotated[int, typer.Option(help="Maximum number of tokens to write.")] = 100,
    temperature: Annotated[
        float | None, typer.Option(help="0: always the likeliest; higher is more random; default 0.8.")
    ] = None,
    top_k: Annotated[int, typer.Option(help="Sample from this many of the likeliest tokens; 0: all.")] = 0,
    top_p: Annotated[
        float, typer.Option(help="Nucleus sampling: sample from the tokens with this total probability.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed writes the same text.")] = 0,
    beams: Annotated[int, typer.Option(help="Beam width; beam search does not sample.")] = 1,
    count: Annotated[int, typer.Option(help="Continuations to write for each text.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Continue a text."""
    check_number("tokens", tokens, 1, 10**6)
    check_number("count", count, 1, 1000)
    if count > 1 and beams == 1 and temperature == 0:
        raise UsageError(
            f"count is {count}, but a temperature of 0 writes one text; raise it, or give --beams"
        )
    if beams > 1:
        check_number(f"with {beams} beams, count", count, 1, beams)
    texts, each = read_texts(given), 1 if beams > 1 else count
    network = _load(model, lambda network: network.complete)
    from saccade.text.generate import Decoding

    if temperature is None:
        temperature = TEMPERATURE if beams == 1 else 0.0
    how = Decoding(most=tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, beams=beams)
    _warn_unknown(network.vocabulary, texts)
    context = getattr(network.module.config, "context", 0)
    for text in texts:
        if (length := len(network.vocabulary.encode(text))) > context:
            say(f"note: the text has {length:,} tokens; the model reads the last {context:,}")
    repeated = [text for text in texts for _ in range(each)]
    written = [one for best in network.completions(repeated, how) for one in best[: count // each]]
    pairs = list(zip((text for text in texts for _ in range(count)), written, strict=True))
    if as_json:
        rows = [
            {"text": text, "completion": one.text, "log_p": round(one.log_p, 6), "tokens": one.tokens,
             "ended": one.ended}
            for text, one in pairs
        ]  # fmt: skip
        print_json(rows, escape=False)
        return
    typer.echo("\n\n".join(safe(text + one.text) for text, one in pairs))


@examples(
    'saccade fill runs/bert "the [MASK] sat on the mat"',
    'saccade fill runs/bert "the [MASK] lay on the [MASK]" --top 3',
    'saccade fill runs/bert "the cat sat on the [MASK]" --json',
)
def fill(
    model: RunArgument,
    given: TextsArgument = None,
    top: Annotated[int, typer.Option(help="Words to suggest for each [MASK].")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Suggest words for each [MASK] in a text."""
    from saccade.text.vocabulary import HOLE

    check_number("top", top, 1, 10**6)
    texts = read_texts(given)
    for text in texts:
        if HOLE not in text:
            raise UsageError(f"{line(text)[:60]!r} has no {HOLE}; write {HOLE} for each word to fill in")
    network = _load(model, lambda network: network.fill)
    _warn_unknown(network.vocabulary, [text.replace(HOLE, "") for text in texts])
    found = network.fill(texts, top)
    if as_json:
        shown = [
            {
                "text": text,
                "filled": _filled(text, holes),
                "holes": [[{"word": said, "p": round(p, 6)} for said, p in hole] for hole in holes],
            }
            for text, holes in zip(texts, found, strict=True)
        ]
        print_json(shown, escape=False)
        return
    rows = [("text", "mask", "probability", "word")]
    for text, holes in zip(texts, found, strict=True):
        for i, hole in enumerate(holes):
            for j, (said, p) in enumerate(hole):
                rows.append((line(text) * (i + j == 0), f"{i + 1}" * (j == 0), f"{p:.1%}", word(said)))
    typer.echo(table(rows, right=(1, 2)))


def _filled(text: str, holes: "list[list[Filling]]") -> str:
    """Return the text with the likeliest word for each [MASK]."""
    from saccade.text.vocabulary import HOLE

    for hole in holes:
        text = text.replace(HOLE, hole[0].word.removeprefix("##"), 1)
    return text


def _load(model: str, method: "Callable[[TextModel], Callable[..., object]]") -> "TextModel":
    """Load a text model; refuse one that is damaged, or that cannot do this."""
    found = identify_model(model, "text")  # refuses a damaged file before torch is imported
    from saccade.api.load import load

    network = load(found, text=True)
    network.check(method(network))
    return network


def read_texts(given: list[str] | None) -> list[str]:
    """Return the texts of the command line, or the lines of stdin."""
    if given:
        for i, text in enumerate(given, 1):
            if not text.strip():
                which = f"text {i} of {len(given)}" if len(given) > 1 else "the text"
                raise UsageError(f"{which} is empty; expected at least one word")
            check_letters(text)
        return given
    if sys.stdin.isatty():
        raise UsageError("no text was given; write it after the model, or send lines to stdin")
    found: list[str] = []
    for number, raw in enumerate(sys.stdin.buffer, 1):
        try:
            text = raw.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(
                f"line {number} of stdin is not UTF-8 ({error.reason}); save it as UTF-8"
            ) from error
        if not text.strip():
            raise DataError(f"line {number} of stdin is empty; expected a text on each line")
        found.append(text)
    if not found:
        raise DataError("stdin is empty; expected a text on each line, or texts after the model")
    return found


def check_letters(text: str) -> None:
    """Refuse what the shell could not read as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"character {error.start + 1} of a text is not UTF-8; write it as UTF-8") from error


def _warn_unknown(vocabulary: "Vocabulary", texts: list[str]) -> None:
    """Name the characters that a character vocabulary does not have; byte pairs cover every text."""
    if vocabulary.kind != "characters":
        return
    known = vocabulary.tokenizer.get_vocab()
    strange = "".join(sorted({letter for text in texts for letter in text} - known.keys()))
    if strange:
        say(f"note: {line(strange)[:40]!r} is not in the vocabulary; each is read as unknown")


def safe(text: str) -> str:
    """Return text that a terminal may show: no control characters except tabs and line ends."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def line(text: str) -> str:
    """Return such text on one line."""
    return " ".join(safe(text).split("\n"))


def word(text: str) -> str:
    """Return a word without the spaces around it; a visible sign if it is only a space."""
    return line(text).strip() or "\N{OPEN BOX}"
