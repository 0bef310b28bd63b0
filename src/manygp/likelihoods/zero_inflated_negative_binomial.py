"""Negative binomial counts with zeros beyond their own."""

from manygp.likelihoods.negative_binomial import Overdispersed
from manygp.likelihoods.zero_inflation import ZeroInflated

__all__ = ["ZeroInflatedNegativeBinomial"]


class ZeroInflatedNegativeBinomial(ZeroInflated, Overdispersed):
    """y = 0 with probability ψ = k / (k + m), else y ~ NB(m, α), log m = h(f) + log(scale · exposure).

    Mean (1 − ψ) m, variance (1 − ψ) m (1 + m (α + ψ)), P(0) = ψ + (1 − ψ) (1 + α m)^(−1/α); appendix E of the paper,
    which has link="softplus", dispersion=0.01 and michaelis_constant=0.1, the last two not learned.

    Parameters
    ----------
    num_outputs
        Number of outputs; all share k.
    dispersion
        Initial dispersion α; the present one, shape (1,) or (p,), is the attribute of this name.
    per_output
        Whether every output has a dispersion of its own.
    learn_dispersion
        Whether the dispersion is learned or stays where it is put.
    michaelis_constant
        Initial k, the mean at which half of the counts are lost; the present one is the attribute of this name.
    learn_michaelis_constant
        Whether k is learned or stays where it is put.
    link
        "exp" or "softplus".
    scale
        Constant factor of the mean.
    """

    def __init__(
        self,
        num_outputs: int = 1,
        dispersion: float = 0.1,
        per_output: bool = True,
        learn_dispersion: bool = True,
        michaelis_constant: float = 0.1,
        learn_michaelis_constant: bool = True,
        link: str = "exp",
        scale: float = 1.0,
    ):
        super().__init__(link, scale)
        self.hold_log("log_dispersion", dispersion, num_outputs if per_output else None, learn_dispersion)
        self.hold_log("log_michaelis_constant", michaelis_constant, None, learn_michaelis_constant)
