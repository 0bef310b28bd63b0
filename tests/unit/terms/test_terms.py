import pytest
import torch

from manygp.terms import OwnPart, Points, SharedShocks


def terms():
    generator = torch.Generator().manual_seed(0)
    own, shocks = OwnPart(4, 2, torch.tensor([0.5])), SharedShocks(4, 2, 2, 0.7, generator)
    for term in (own, shocks):
        for parameter in term.parameters():
            parameter.data += 0.3 * torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
    return [own, shocks]


@pytest.fixture
def points(rng):
    outputs = torch.tensor([[0, 1, 0, 3, 2], [2, 2, 1, 0, 0]])
    row = torch.tensor([[0, 0, 1, 2, 2], [1, 2, 2, 0, 3]])
    h = torch.as_tensor(rng.standard_normal((4, 2)))
    return Points(row.unsqueeze(-1).double(), outputs, row, h[outputs])


@pytest.mark.parametrize("term", terms(), ids=lambda term: type(term).__name__)
def test_covariances_are_those_of_some_gaussian(points, term):
    C = term.covariance(points, points)
    torch.testing.assert_close(C, C.mT)
    torch.testing.assert_close(C.diagonal(dim1=-2, dim2=-1), term.variance(points))
    assert torch.linalg.eigvalsh(C).min() > -1e-10


def test_own_parts_are_of_single_outputs_and_shocks_of_single_inputs(points):
    own, shocks = (term.covariance(points, points) for term in terms())
    assert (own[~points.has_output_of(points)] == 0.0).all()
    assert (own[points.has_output_of(points)] > 0.0).all()
    assert (shocks[~points.has_input_of(points)] == 0.0).all()


@pytest.mark.parametrize("term", terms(), ids=lambda term: type(term).__name__)
def test_new_outputs_have_what_their_latent_vectors_say(points, term):
    joined, others = term.joined(2), term.for_outputs(3)
    torch.testing.assert_close(joined.variance(points), term.variance(points))
    new = Points(points.x, torch.full_like(points.outputs, 5), points.row, points.h)
    alone = Points(points.x, torch.full_like(points.outputs, 1), points.row, points.h)
    torch.testing.assert_close(joined.variance(new), others.variance(alone))
    assert joined.negative_log_prior(torch.tensor([4, 5])).eq(0.0).all()
    assert term.negative_log_prior(torch.tensor([0, 1])).gt(0.0).all()
