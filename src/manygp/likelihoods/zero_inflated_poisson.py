"""Poisson counts with zeros beyond their own."""

from manygp.likelihoods.poisson import POISSON
from manygp.likelihoods.zero_inflation import ZeroInflated

__all__ = ["ZeroInflatedPoisson"]


class ZeroInflatedPoisson(ZeroInflated):
    """y = 0 with probability ψ = k / (k + m), else y ~ Poisson(m), log m = h(f) + log(scale · exposure).

    Mean (1 − ψ) m, variance (1 − ψ) m (1 + m ψ).

    Parameters
    ----------
    num_outputs
        Number of outputs; all share k.
    michaelis_constant
        Initial k, the mean at which half of the counts are lost; the present one is the attribute of this name.
    learn_michaelis_constant
        Whether k is learned or stays where it is put.
    link
        "exp" or "softplus".
    scale
        Constant factor of the mean.
    """

    distribution = POISSON

    def __init__(
        self,
        num_outputs: int = 1,
        michaelis_constant: float = 0.1,
        learn_michaelis_constant: bool = True,
        link: str = "exp",
        scale: float = 1.0,
    ):
        super().__init__(link, scale)
        self.hold_log("log_michaelis_constant", michaelis_constant, None, learn_michaelis_constant)
