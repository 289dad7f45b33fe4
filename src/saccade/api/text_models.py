"""Text models: what `saccade.load` returns for the folder of one."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, overload

import torch

from saccade.data.image.preprocess import PictureSource
from saccade.errors import ModelError
from saccade.files.atomic import fresh
from saccade.models.cost import parameters
from saccade.models.modules import device_of
from saccade.models.text.bert import BERT
from saccade.models.text.gpt import GPT
from saccade.models.text.names import Text
from saccade.text.generate import (
    BATCH,
    Decoding,
    Filling,
    Generated,
    captions,
    completions,
    fillings,
    translations,
)
from saccade.text.model import TextFolder, save_text
from saccade.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from saccade.explain.text.attention import TextReading


class TextModel:
    """A text network together with its vocabularies: all it needs to answer."""

    def __init__(self, loaded: TextFolder) -> None:
        self.loaded = loaded
        self.module: Text = loaded.module.eval()
        self.layout = loaded.layout
        """Whose layout the weights were read from."""
        self.folder: Path | None = None
        """The run that trained it, if there is one."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of what it writes."""
        return self.loaded.vocabulary

    @property
    def task(self) -> str:
        """What it was trained for: a name that `saccade train --task` takes."""
        return self.loaded.task

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return device_of(self.module)

    @overload  # a str is one text, though Python calls it a sequence of str
    def translate(self, text: str, *, beams: int = 1, alpha: float = 0.6, most: int = 0) -> str: ...  # type: ignore[overload-overlap]
    @overload
    def translate(
        self, text: Sequence[str], *, beams: int = 1, alpha: float = 0.6, most: int = 0
    ) -> list[str]: ...
    def translate(
        self, text: str | Sequence[str], *, beams: int = 1, alpha: float = 0.6, most: int = 0
    ) -> str | list[str]:
        """Translate a text, or each in a list; `saccade.text.generate.Decoding` explains the settings."""
        texts = [text] if isinstance(text, str) else list(text)
        found = [
            best[0].text for best in self.translations(texts, Decoding(beams=beams, alpha=alpha, most=most))
        ]
        return found[0] if isinstance(text, str) else found

    def translations(
        self, texts: Sequence[str], how: Decoding | None = None, batch: int = BATCH
    ) -> list[list[Generated]]:
        """Return translations of each text, best first, with their log-probabilities."""
        self.check(self.translate)
        return translations(self.module, self.loaded.reads, self.vocabulary, texts, how, batch)

    def caption(self, pictures: Iterable[PictureSource], how: Decoding | None = None) -> list[str]:
        """Return a sentence for each image."""
        return [best[0].text for best in self.captions(pictures, how)]

    def captions(
        self, pictures: Iterable[PictureSource], how: Decoding | None = None
    ) -> list[list[Generated]]:
        """Return sentences for each image, best first, with their log-probabilities."""
        self.check(self.caption)
        assert self.loaded.preprocess is not None
        image = torch.from_numpy(self.loaded.preprocess.batch(list(pictures)))
        return captions(self.module, self.vocabulary, image, how)

    @overload
    def complete(  # type: ignore[overload-overlap]
        self, text: str, *, most: int = 100, temperature: float = 0.8, top_k: int = 0, seed: int = 0
    ) -> str: ...
    @overload
    def complete(
        self, text: Sequence[str], *, most: int = 100, temperature: float = 0.8, top_k: int = 0, seed: int = 0
    ) -> list[str]: ...
    def complete(
        self,
        text: str | Sequence[str],
        *,
        most: int = 100,
        temperature: float = 0.8,
        top_k: int = 0,
        seed: int = 0,
    ) -> str | list[str]:
        """Continue a text, or each in a list; return the new words. Temperature 0 takes the likeliest."""
        texts = [text] if isinstance(text, str) else list(text)
        how = Decoding(most=most, temperature=temperature, top_k=top_k, seed=seed)
        found = [best[0].text for best in self.completions(texts, how)]
        return found[0] if isinstance(text, str) else found

    def completions(
        self, texts: Sequence[str], how: Decoding | None = None, batch: int = BATCH
    ) -> list[list[Generated]]:
        """Return continuations of each text, best first, with their log-probabilities."""
        self.check(self.complete)
        return completions(self.module, self.vocabulary, texts, how, batch)

    @overload
    def fill(self, text: str, top: int = 5) -> list[list[Filling]]: ...  # type: ignore[overload-overlap]
    @overload
    def fill(self, text: Sequence[str], top: int = 5) -> list[list[list[Filling]]]: ...
    def fill(
        self, text: str | Sequence[str], top: int = 5
    ) -> list[list[Filling]] | list[list[list[Filling]]]:
        """Return the likeliest words for each [MASK] of a text, or of each text in a list."""
        self.check(self.fill)
        found = fillings(self.module, self.vocabulary, [text] if isinstance(text, str) else list(text), top)
        return found[0] if isinstance(text, str) else found

    def explain(self, text: str, target: str | None = None) -> "TextReading":
        """Return the attention from word to word, or from a translation (default: its own) to the source."""
        from saccade.explain.text.attention import read_text

        return read_text(self.loaded, text, target)

    def check(self, method: Callable[..., object]) -> None:
        """Refuse what this model cannot do: a method such as `fill`."""
        verb = method.__name__
        if verb in self.verbs:
            return
        if verb == "fill" and isinstance(self.module, BERT):
            raise ModelError("this BERT has no masked-language head, so it cannot fill; load one that has it")
        kind = type(self.module).__name__
        able = " or ".join(self.verbs).replace(self.caption.__name__, "caption an image") or "explain"
        raise ModelError(f"a {kind} cannot {verb}; it can {able}; load a model that can {verb}")

    @property
    def verbs(self) -> tuple[str, ...]:
        """What it can do: names of its methods."""
        if isinstance(self.module, GPT):
            return ("complete",)
        if isinstance(self.module, BERT):
            return ("fill",) if self.module.fill is not None else ()
        return ((self.translate if self.loaded.translates else self.caption).__name__,)

    def save(self, folder: str | Path, layout: str = "saccade") -> Path:
        """Write a model folder; `layout` may be hf for a GPT or BERT. Nothing is overwritten."""
        with fresh(Path(folder)) as made:
            save_text(made, self.loaded, layout)
        return made

    def __repr__(self) -> str:
        words = f"{len(self.vocabulary):,} words"
        if self.loaded.translates:
            words = f"from {self.loaded.sides[0]} to {self.loaded.sides[1]}, {words}"
        return f"TextModel({type(self.module).__name__}, {parameters(self.module):,} parameters, {words})"
