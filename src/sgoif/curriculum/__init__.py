"""How much each example counts from here on, by what a monitor has seen so far: in the loss, or in the sampler."""

from sgoif.curriculum.sampler import InfluenceSampler, renew_weights

__all__ = ["InfluenceSampler", "renew_weights"]
