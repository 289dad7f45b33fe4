"""A run on text as a value, chosen from the model and the amount of text."""

from dataclasses import dataclass, field

from saccade.errors import UsageError, check_number, check_word
from saccade.models.text.names import is_text
from saccade.recipe import Budget, Optim, Training
from saccade.tasks.translate.loss import Own
from saccade.text.vocabulary import KINDS, MARKS, MOST

TASKS = ("translate", "language")
FEW, MANY = 5_000, 200_000
"""Sentence pairs."""
BOOK = 5_000_000
"""Characters of a text that is learnt letter by letter; in more, pieces of words pay."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Words:
    """What a text is cut into."""

    kind: str = "pairs"
    """pairs (pieces of words, by byte pairs) or characters."""
    size: int = 0
    """Entries; 0: up to 8,000 pieces, or all characters."""
    shared: bool = True
    """One vocabulary for both languages of a translation; else one each."""

    def __post_init__(self) -> None:
        check_word("words.kind", self.kind, KINDS)
        if self.size:
            check_number("words.size", self.size, len(MARKS) + 1, MOST)


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRecipe(Training):
    """Everything that decides a run on text, the data aside."""

    task: str = "translate"
    """translate or language."""
    pair: str = ""
    """From which language to which, as de-en; needed where the data has more than two."""
    words: Words = field(default_factory=Words)
    smoothing: float = 0.0
    """The share of certainty that is spread over all other words."""
    own: Own = field(default_factory=Own)
    """Scheduled sampling, of a translation."""
    tokens: int = 2048
    """The most that a batch of sentence pairs holds, with its padding; budget.batch counts the pairs."""

    def __post_init__(self) -> None:
        Training.__post_init__(self)
        check_word("task", self.task, TASKS)
        check_number("smoothing", self.smoothing, 0, 0.99)
        check_number("tokens", self.tokens, 1, 2**30)
        if self.parallel != "ddp":
            raise UsageError(
                "parallel is 'fsdp', which keeps a slice of the model in each process; a model of text "
                "writes with all of it; set parallel=ddp"
            )


def for_pairs(model: str, pairs: int) -> tuple[TextRecipe, str]:
    """A sensible recipe to translate with so many sentence pairs, and the reason in a sentence."""
    epochs = 60 if pairs < FEW else 15 if pairs < MANY else 4
    transformer = model.startswith("transformer")
    made = TextRecipe(
        model=model,
        dropout=0.15 if transformer else 0.3,
        smoothing=0.1,
        val=0.05,
        optim=Optim(lr=1e-3, decay=0.01, beta2=0.98, ema=0.99 if pairs < FEW else 0.999),
        budget=Budget(epochs=epochs, batch=64, warmup=0.08),
        workers=0,
    )
    kind = "few" if pairs < FEW else "some" if pairs < MANY else "many"
    return made, f"{kind} sentence pairs: dropout and smoothing, so that they are not learnt by heart"


def for_text(model: str, characters: int) -> tuple[TextRecipe, str]:
    """A sensible recipe to learn a language from so many characters, and the reason in a sentence."""
    if not is_text(model):  # somebody's weights; the steps of Devlin et al. 2019, A.3, were smaller still
        made = TextRecipe(
            task="language",
            model=model,
            dropout=0.1,
            val=0.1,
            optim=Optim(lr=1e-4, decay=0.1, beta2=0.99),
            budget=Budget(epochs=3, batch=8, warmup=0.05),
            workers=0,
        )
        return made, "it goes on from what it knows: few epochs, at a small learning rate"
    letters = characters < BOOK and not model.startswith("bert")
    small, epochs = model.startswith(("gpt_mini", "gpt_small")), 10 if characters < BOOK else 3
    made = TextRecipe(
        task="language",
        model=model,
        words=Words(kind="characters" if letters else "pairs"),
        dropout=0.0 if small else 0.1,
        val=0.1,
        optim=Optim(lr=3e-3 if small else 1e-3, decay=0.1, beta2=0.99),
        budget=Budget(epochs=epochs, batch=32, warmup=0.05),
        workers=0,
    )
    return made, "read letter by letter, as the text is short" if letters else "read in pieces of words"
