"""Likelihoods: how a function value becomes an observation, one cell at a time.

A likelihood knows nothing of masks, data set sizes or minibatches. It works element by element; parameters that differ
between outputs are picked by the output numbers that come with the cells.
"""

from manygp.likelihoods.bernoulli import Bernoulli
from manygp.likelihoods.counts import CountLikelihood
from manygp.likelihoods.gaussian import Gaussian, Noiseless, PooledGaussian
from manygp.likelihoods.given import Given
from manygp.likelihoods.likelihood import Likelihood
from manygp.likelihoods.negative_binomial import NegativeBinomial
from manygp.likelihoods.poisson import Poisson
from manygp.likelihoods.registry import LIKELIHOODS, choose_likelihood, likelihood_name, make_likelihood
from manygp.likelihoods.student_t import StudentT
from manygp.likelihoods.zero_inflation import ZeroInflatedNegativeBinomial, ZeroInflatedPoisson

__all__ = [
    "LIKELIHOODS",
    "Bernoulli",
    "CountLikelihood",
    "Gaussian",
    "Given",
    "Likelihood",
    "NegativeBinomial",
    "Noiseless",
    "Poisson",
    "PooledGaussian",
    "StudentT",
    "ZeroInflatedNegativeBinomial",
    "ZeroInflatedPoisson",
    "choose_likelihood",
    "likelihood_name",
    "make_likelihood",
]
