"""Models: one paper, one short file. A model has a bound on batches and a predictor; it never trains itself."""

from manygp.models.tlvmogp import Predictor, TransformedLatentModel

__all__ = ["Predictor", "TransformedLatentModel"]
