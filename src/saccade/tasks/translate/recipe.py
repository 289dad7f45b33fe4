"""The defaults of a translation run."""

from saccade.recipe import Budget, Optim
from saccade.text.recipe import TextRecipe

FEW, MANY = 5_000, 200_000
"""Sentence pairs."""


def default_recipe(model: str, pairs: int) -> tuple[TextRecipe, str]:
    """Return a sensible recipe for this many sentence pairs, and the reason in a sentence."""
    epochs = 60 if pairs < FEW else 15 if pairs < MANY else 4
    transformer = model.startswith("transformer")
    made = TextRecipe(
        task="translate",
        model=model,
        dropout=0.15 if transformer else 0.3,
        smoothing=0.1,
        val=0.05,
        optim=Optim(lr=1e-3, decay=0.01, beta2=0.98, ema=0.99 if pairs < FEW else 0.999),
        budget=Budget(epochs=epochs, batch=64, warmup=0.08),
        workers=0,
    )
    kind = "few" if pairs < FEW else "some" if pairs < MANY else "many"
    return made, f"{kind} sentence pairs: dropout and smoothing, so that the model does not memorise them"
