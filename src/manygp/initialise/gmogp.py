"""Where the G-MOGP begins: attention by the similarity of outputs, kernels by evidence."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from manygp.data import Scaling, Table
from manygp.initialise.evidence import Lengthscales
from manygp.initialise.inducing import greedy_inducing
from manygp.initialise.survey import Survey
from manygp.models.gmogp import Attention
from manygp.models.indgp import SparseIndependentModel
from manygp.variational import KernelBatch

__all__ = ["cosine_similarity", "initialise", "start_means"]

# Lengthscales of shared kernels, from so many times to as many times those found, and the share of the middle one.
_RANGE, _MIDDLE_SHARE = 4.0, 0.5
# Inputs that inducing points are chosen among.
_MAX_CANDIDATES = 2000


def cosine_similarity(table: Table, scaling: Scaling) -> Float[Tensor, "p p"]:
    """Cosine similarity of the columns of a table in scaled units, where missing cells count as zero."""
    gram = table.cross_products(scaling.y_center, scaling.y_scale)
    length = np.sqrt(np.maximum(np.diag(gram), np.finfo(float).tiny))
    return torch.as_tensor(gram / length / length[:, None])


@torch.no_grad()
def initialise(model: SparseIndependentModel, survey: Survey, found: Lengthscales) -> None:
    """Start with the attention that similarity alone suggests, kernels by evidence, points among the inputs."""
    table, scaling, rng = survey.values, survey.own_scaling, survey.rng("inducing points")
    processes = model.processes
    kernels, attention = processes.kernels, processes.kernels.mixture
    assert isinstance(attention, Attention)
    attention.weight.fill_(1.0)
    processes.units.copy_(torch.as_tensor(found.lengthscale))
    d = table.num_features
    ones = torch.ones(1, d, dtype=torch.float64)
    # An output's own prior and the mixture of all others have about as much weight.
    signal = torch.full((1,), 0.5 * found.signal, dtype=torch.float64)
    if attention.log_share.numel():
        q = kernels.size
        factor = torch.logspace(-1.0, 1.0, q, base=_RANGE, dtype=torch.float64) if q > 1 else ones[0, :1]
        kernels.rescale(factor.unsqueeze(-1).expand(q, d), torch.ones(1, dtype=torch.float64))
        share = torch.full((q,), (1.0 - _MIDDLE_SHARE) / max(q - 1, 1), dtype=torch.float64)
        share[q // 2] = _MIDDLE_SHARE
        attention.log_share.copy_((signal * share).log().expand_as(attention.log_share))
    else:
        kernels.rescale(ones, signal)
    chosen = rng.choice(table.num_inputs, min(table.num_inputs, _MAX_CANDIDATES), replace=False)
    candidates = torch.as_tensor(scaling.scale_x(table.X[chosen])) / processes.units
    # All outputs begin alike, so that the points of one serve all.
    one = KernelBatch(kernels.name or "rbf", d, 1)
    one.rescale(ones, signal)
    processes.Z.copy_(greedy_inducing(one, candidates, processes.num_inducing).expand_as(processes.Z))


@torch.no_grad()
def start_means(attention: Attention, level: Float[Tensor, " p"]) -> None:
    """Set the means such that those of the mixtures are at given levels."""
    attention.mean.copy_(torch.linalg.solve(attention.attend(attention._every()), level.to(attention.mean)))
