"""All kinds of vision models by their names in model.json: those of `models`, and those of this room."""

from saccade.models.build import KINDS as MODELS
from saccade.models.build import Kind
from saccade.tokens.light import LightConfig
from saccade.tokens.merge import MergedConfig
from saccade.tokens.prune import PrunedConfig

KINDS = MODELS | {made.kind: Kind(made, made.build) for made in (PrunedConfig, MergedConfig, LightConfig)}
