"""What the commands for models of text share: the model, the texts, and how an answer is shown."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.errors import DataError, UsageError

if TYPE_CHECKING:
    from saccade.api.text_models import TextModel
    from saccade.text.vocabulary import Vocabulary

RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A run or model folder of text, or a GPT-2 or BERT of Hugging Face's."
    ),
]
TextsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="TEXT", help="Texts; without any, each line of stdin is one.")
]


def opened(word: str, verb: str) -> "TextModel":
    """The model, refused in words if it is damaged or cannot be asked this."""
    from saccade.cli.note import looked
    from saccade.weights.identify import locate

    path = locate(word)
    looked(path, "text")  # refuses a damaged file before torch is imported
    from saccade.api.models import load

    model = load(path, text=True)
    model.check("caption" if verb == "translate" and model.task == "caption" else verb)
    return model


def texts(given: list[str] | None) -> list[str]:
    """The texts of the command line, or the lines of stdin."""
    if given:
        for i, text in enumerate(given, 1):
            if not text.strip():
                which = f"text {i} of {len(given)}" if len(given) > 1 else "the text"
                raise UsageError(f"{which} is empty; expected at least a word")
            check_letters(text)
        return given
    if sys.stdin.isatty():
        raise UsageError("no text was given; write it after the model, or send lines to stdin")
    found: list[str] = []
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            text = line.decode().rstrip("\r\n")
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
        raise UsageError(f"letter {error.start + 1} of a text is not UTF-8; write it as UTF-8") from error


def tell_unknown(vocabulary: "Vocabulary", asked: list[str]) -> None:
    """Say which letters a vocabulary of characters has never met; byte pairs know every text."""
    if vocabulary.kind != "characters":
        return
    known = vocabulary.tokenizer.get_vocab()
    strange = "".join(sorted({letter for text in asked for letter in text} - known.keys()))
    if strange:
        print(
            f"note: the model has never met {line(strange)[:40]!r}; each is read as unknown", file=sys.stderr
        )


def safe(text: str) -> str:
    """A model's words as a terminal may show them: no control characters but tabs and line ends."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def line(text: str) -> str:
    """The same on one line."""
    return " ".join(safe(text).split("\n"))


def word(text: str) -> str:
    """One word without the spaces around it; where it is but a space, a sign for it."""
    return line(text).strip() or "\N{OPEN BOX}"
