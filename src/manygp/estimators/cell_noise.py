"""Noise that differs between the cells of an output: which tables may have it, where it begins, and predictions."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from manygp.data import Scaling, Table
from manygp.data.factorisation import Factorisation
from manygp.data.table import IntArray
from manygp.errors import SettingError
from manygp.likelihoods import Gaussian, Likelihood, likelihood_name
from manygp.models import TransformedLatentModel

# The share of the noise to begin with that is learnt at least, beside what is known.
_LEAST_SHARE = 0.1


def check_cell_noise(noise: str, table: Table, likelihood: Likelihood) -> None:
    """Refuse noise that differs between cells where it has no meaning."""
    wanted = "y_std" if table.y_std is not None else "noise='per-input'" if noise == "per-input" else ""
    if wanted and not isinstance(likelihood, Gaussian):
        raise SettingError(
            f"{wanted} is for Gaussian observations, and the likelihood is {likelihood_name(likelihood)!r}: leave it "
            "out, or choose 'gaussian'."
        )
    if wanted and table.is_part:
        raise SettingError(f"{wanted} needs all cells in memory, and this table is stored elsewhere: leave it out.")
    if noise == "per-input" and table.row_outputs is not None:
        raise SettingError(
            "noise='per-input' needs inputs that several outputs share, and in this list of cells they do not, or an "
            "output has several values at one: leave it out, or give y_std."
        )


def sizes_of_cell_noise(noise: str, table: Table) -> tuple[int, int] | None:
    """Inputs with noise of their own, and whether it is learnt; None where all cells of an output have the same."""
    if table.y_std is None and noise == "constant":
        return None
    return 0 if table.row_outputs is not None else table.num_inputs, int(noise == "per-input")


@torch.no_grad()
def start_cell_noise(
    model: TransformedLatentModel, table: Table, scaling: Scaling, factors: Factorisation | None = None
) -> None:
    """Tell a model what is known of the noise of cells, which its own noise need not explain any more.

    Noise of inputs begins with the residuals of factors, if there are some, in which all cells of the table had a say.
    """
    if model.cell_noise is None:
        return
    model.cell_noise.set_known(table, scaling)
    if factors is not None and table.row_outputs is None and len(factors.row_mean) == table.num_inputs:
        row, output, y = table.cells(table.places())
        model.cell_noise.start(scaling.scale_y(y, output) - factors.at(row, output), row)
    assert isinstance(model.likelihood, Gaussian)
    noise = model.likelihood.noise
    model.likelihood.noise = torch.maximum(noise - model.cell_noise.typical.mean(), _LEAST_SHARE * noise)


def noise_of_cells(
    model: TransformedLatentModel, locate: Callable[[IntArray], tuple[Tensor, Tensor]]
) -> Callable[[IntArray], Tensor]:
    """What cells by number have of noise beside that of their outputs, for predictions."""
    assert model.cell_noise is not None
    beside = model.cell_noise.finder()

    def of_cells(cells: IntArray) -> Tensor:
        x, outputs = locate(cells)
        return beside(model.output_noise(outputs), x, outputs).detach()

    return of_cells


def noise_of_new_cells(model: TransformedLatentModel, x: Float[Tensor, "b d"]) -> Float[Tensor, " b"]:
    """What cells of a new output have of noise beside that of all outputs, which is the mean of these."""
    assert model.cell_noise is not None
    one = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    own = model.output_noise(torch.arange(model.num_outputs, device=x.device)).mean().expand(len(x))
    return model.cell_noise.for_outputs(1).finder()(own, x, one).detach()
