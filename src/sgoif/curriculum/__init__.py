"""How much each example counts from here on, by what a monitor has seen so far: in the loss, or in the sampler."""

from sgoif.curriculum.sampler import InfluenceSampler, renewed_weights

__all__ = ["InfluenceSampler", "renewed_weights"]
