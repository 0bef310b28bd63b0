"""The certified interval of the residual network holds for every pair; without the spectral bound the nominal fails."""

import pytest
import torch

from manygp.embeddings import Residual

from . import worlds

DIM, BLOCKS, BOUND = 4, 3, 0.1
PAIRS, CHUNK = 1_000_000, 100_000


def network(rng, bound, scale=1.0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Residual(DIM, BLOCKS, bound)
    worlds.shake(net, rng, scale)
    net.train()
    for _ in range(200):
        net(worlds.normal(rng, 2, DIM))
    return net.eval()


@torch.no_grad()
def stretch(net, rng, pairs):
    """Smallest and largest |g(x) − g(x')| / |x − x'| over random pairs, far apart and close together."""
    least, most = torch.inf, 0.0
    for start in range(0, pairs, CHUNK):
        x = 3.0 * worlds.normal(rng, CHUNK, DIM)
        step = worlds.normal(rng, CHUNK, DIM) * (1e-3 if start % (2 * CHUNK) else 3.0)
        ratio = (net(x + step) - net(x)).norm(dim=-1) / step.norm(dim=-1)
        least, most = min(least, float(ratio.min())), max(most, float(ratio.max()))
    return least, most


def test_the_certified_interval_holds_on_a_million_pairs(rng):
    net = network(rng, BOUND)
    lower, upper = net.lipschitz_interval()
    least, most = stretch(net, rng, PAIRS)
    assert lower <= least <= most <= upper
    # After enough power iterations the certificate is the nominal interval of the bound, and it is not idle.
    assert lower == pytest.approx((1 - BOUND) ** BLOCKS, rel=1e-3)
    assert upper == pytest.approx((1 + BOUND) ** BLOCKS, rel=1e-3)
    assert least < 1 - BOUND / 2
    assert most > 1 + BOUND


def test_without_spectral_normalisation_the_nominal_interval_fails(rng):
    net = network(rng, None)
    least, most = stretch(net, rng, CHUNK)
    assert least < (1 - BOUND) ** BLOCKS
    assert most > (1 + BOUND) ** BLOCKS
    # What is certified from exact singular values holds all the same.
    lower, upper = net.lipschitz_interval()
    assert lower <= least <= most <= upper


@pytest.mark.parametrize("scale", [0.0, 0.3, 3.0])
def test_the_certificate_does_not_trust_the_power_iteration(rng, scale):
    """Right after the weights have moved, the stored singular vectors are wrong, and the interval still holds."""
    net = worlds.shake(network(rng, BOUND), rng, scale)
    lower, upper = net.lipschitz_interval()
    least, most = stretch(net, rng, CHUNK)
    assert lower <= least <= most <= upper
