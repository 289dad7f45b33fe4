"""The defaults of a language-modelling run."""

from saccade.models.names import is_text
from saccade.recipe import Budget, Optim
from saccade.text.recipe import TextRecipe, VocabularySettings

BOOK = 5_000_000
"""A text with fewer characters is read letter by letter; a longer one, in pieces of words."""


def default_recipe(model: str, characters: int) -> tuple[TextRecipe, str]:
    """Return a sensible recipe for this many characters, and the reason in a sentence."""
    if not is_text(model):  # existing weights; the steps of Devlin et al. 2019, A.3, were smaller still
        made = TextRecipe(
            task="language",
            model=model,
            dropout=0.1,
            val=0.1,
            optim=Optim(lr=1e-4, decay=0.1, beta2=0.99),
            budget=Budget(epochs=3, batch=8, warmup=0.05),
            workers=0,
        )
        return made, "fine-tuning: few epochs, at a small learning rate"
    letters = characters < BOOK and not model.startswith("bert")
    small, epochs = model.startswith(("gpt_mini", "gpt_small")), 10 if characters < BOOK else 3
    made = TextRecipe(
        task="language",
        model=model,
        words=VocabularySettings(kind="characters" if letters else "pairs"),
        dropout=0.0 if small else 0.1,
        val=0.1,
        optim=Optim(lr=3e-3 if small else 1e-3, decay=0.1, beta2=0.99),
        budget=Budget(epochs=epochs, batch=32, warmup=0.05),
        workers=0,
    )
    return made, "read letter by letter, because the text is short" if letters else "read in pieces of words"
