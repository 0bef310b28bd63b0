"""Embeddings by name or given; spectral normalisation after the paper's algorithm 1."""

import pytest
import torch
from torch import nn

from manygp.embeddings import EMBEDDINGS, Residual, SpectralLinear, embedding_dim, is_near_identity, make_embedding
from manygp.errors import SettingError

from ..laws import worlds
from ..tolerances import assert_close


def spectral_norm(weight):
    return float(torch.linalg.matrix_norm(weight.detach(), 2))


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_named_embeddings_keep_the_dimension(rng, name):
    embedding = make_embedding(name, 5)
    assert embedding_dim(embedding, 5) == 5
    assert embedding(worlds.normal(rng, 3, 5)).shape == (3, 5)
    assert all(parameter.dtype == torch.float64 for parameter in embedding.parameters())


def test_sizes_of_the_residual_network_are_those_of_the_paper():
    # 3 (D² + D) parameters, D = D_X + D_H
    for dim in (4, 5, 26):
        assert sum(parameter.numel() for parameter in Residual(dim, 3).parameters()) == 3 * (dim**2 + dim)


def test_a_given_module_is_copied_and_measured():
    given = nn.Linear(4, 7)
    made = make_embedding(given, 4)
    assert made is not given
    assert given.weight.dtype == torch.float32
    assert embedding_dim(made, 4) == 7


@pytest.mark.parametrize("embedding", ["resnet", "", "MLP"])
def test_unknown_embeddings_are_refused_with_a_list_of_known_ones(embedding):
    with pytest.raises(SettingError, match=r"unknown: use one of residual, identity, mlp, or a torch\.nn\.Module"):
        make_embedding(embedding, 3)


class Broken(nn.Module):
    def forward(self, x):
        return "nothing"


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Linear(9, 2), "Linear cannot take rows of 3 values"),
        (nn.Flatten(0), r"must map rows to rows.*\(2, 3\) became \(6,\)"),
        (Broken(), "must map rows to rows.*became str"),
    ],
)
def test_modules_that_are_no_embedding_are_refused(module, message):
    with pytest.raises(SettingError, match=message):
        embedding_dim(module.double(), 3)


def test_measuring_does_not_change_the_mode():
    embedding = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).double()
    embedding_dim(embedding.train(), 2)
    assert embedding.training
    embedding_dim(embedding.eval(), 2)
    assert not embedding.training


# -- spectral normalisation --------------------------------------------------------------------------------------------


def test_power_iteration_finds_the_spectral_norm(rng):
    layer = SpectralLinear(6, 0.1)
    worlds.shake(layer, rng, 1.0)
    layer.iterate(500)
    assert_close(layer.u @ layer.weight @ layer.v, spectral_norm(layer.weight))
    assert spectral_norm(layer.bounded_weight()) == pytest.approx(0.1)


def test_weights_below_the_bound_are_left_alone(rng):
    layer = SpectralLinear(4, 0.5)
    with torch.no_grad():
        layer.weight.mul_(0.3 / spectral_norm(layer.weight))
    layer.iterate(200)
    assert torch.equal(layer.bounded_weight(), layer.weight)


def test_no_bound_means_the_plain_layer(rng):
    layer = SpectralLinear(4, None)
    u = layer.u.clone()
    x = worlds.normal(rng, 3, 4)
    assert torch.equal(layer.train()(x), nn.functional.linear(x, layer.weight, layer.bias))
    assert torch.equal(layer.u, u)


def test_vectors_persist_and_move_in_training_only(rng):
    layer = SpectralLinear(4, 0.1)
    x, u = worlds.normal(rng, 3, 4), layer.u.clone()
    layer.eval()(x)
    assert torch.equal(layer.u, u)
    layer.train()(x)
    assert not torch.equal(layer.u, u)
    assert {"u", "v"} <= set(layer.state_dict())


def test_one_iteration_a_step_tracks_a_moving_weight(rng):
    """As in training: one power iteration for each step on the weight, and all is exact once the steps end."""
    layer = SpectralLinear(5, 0.1).train()
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    x, target = worlds.normal(rng, 50, 5), 10.0 * worlds.normal(rng, 50, 5)
    for _ in range(300):
        optimizer.zero_grad()
        (layer(x) - target).square().mean().backward()
        optimizer.step()
        assert spectral_norm(layer.bounded_weight()) < 0.2 < spectral_norm(layer.weight)
    for _ in range(200):
        layer(x)
    assert spectral_norm(layer.bounded_weight()) == pytest.approx(0.1, rel=1e-3)


def test_the_gradient_goes_through_the_norm(rng):
    """The scale c / σ depends on the weight: along the weight itself the output does not change."""
    layer = SpectralLinear(4, 0.1)
    worlds.shake(layer, rng, 1.0)
    layer.iterate(500)
    layer.eval()
    layer(worlds.normal(rng, 5, 4)).square().sum().backward()
    assert_close((layer.weight.grad * layer.weight).sum(), 0.0)


def test_the_network_starts_within_its_bound():
    net = Residual(5, 3, 0.1)
    lower, upper = net.lipschitz_interval()
    assert lower == pytest.approx(0.9**3, rel=0.02)
    assert upper == pytest.approx(1.1**3, rel=0.02)


def test_large_norms_leave_no_lower_bound(rng):
    net = worlds.shake(Residual(4, 2, None), rng, 3.0)
    lower, upper = net.lipschitz_interval()
    norm = max(spectral_norm(layer.weight) for layer in net.layers)
    assert norm > 1
    assert lower == 0.0
    assert upper == pytest.approx((1 + norm) ** 2)


def test_which_embeddings_end_with_the_latent_vectors():
    assert [is_near_identity(make_embedding(name, 3)) for name in EMBEDDINGS] == [True, True, False]
