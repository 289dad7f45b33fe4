"""All configs of this room by their names in model.json."""

from saccade.models.build import KINDS as MODELS
from saccade.models.build import Known
from saccade.tokens.light import LightConfig
from saccade.tokens.merge import MergedConfig
from saccade.tokens.prune import PrunedConfig

KINDS: dict[str, type[Known]] = {
    **MODELS,
    **{made.kind: made for made in (PrunedConfig, MergedConfig, LightConfig)},
}
"""Those of the models below too."""
