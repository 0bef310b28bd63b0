"""Jitter has one home and is as small as it can be; the rest is textbook algebra."""

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from manygp.errors import NumericalError
from manygp.linalg import (
    add_gram,
    add_jitter,
    cholesky_pivots,
    conjugate_gradients,
    from_lower,
    gaussian_kl,
    gram,
    lower_product,
    matvec,
    outer,
    projected,
    safe_cholesky,
    squared_norms,
    sure_cholesky,
    symmetrize,
    triangular_gram,
    triangular_inverse,
    triangular_root,
    unseen_cholesky,
    unwhitened,
    whitened,
    with_gradients,
)

from ..laws import worlds
from ..tolerances import assert_close


def test_jitter_is_relative_to_the_diagonal():
    A = torch.diag(torch.tensor([1.0, 3.0], dtype=torch.float64))
    assert_close(add_jitter(A, 0.1), torch.diag(torch.tensor([1.2, 3.2], dtype=torch.float64)))
    assert_close(add_jitter(1e6 * A, 0.1), 1e6 * add_jitter(A, 0.1))


def test_a_positive_definite_matrix_is_factored_as_it_is(rng):
    A = worlds.positive_definite(rng, 6)
    L = safe_cholesky(A)
    assert_close(L @ L.T, A)
    assert torch.equal(L, L.tril())
    assert_close(safe_cholesky(A, 1e-3) @ safe_cholesky(A, 1e-3).T, add_jitter(A, 1e-3))


def test_batches_are_factored_together(rng):
    A = torch.stack([worlds.positive_definite(rng, 4) for _ in range(3)])
    L = safe_cholesky(A)
    assert_close(L @ L.mT, A)


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_a_singular_matrix_gets_just_enough(scale):
    A = scale * torch.ones(5, 5, dtype=torch.float64)
    L = safe_cholesky(A)
    assert float((L @ L.T - A).abs().max()) <= 1e-9 * scale


def test_a_slightly_negative_matrix_gets_more():
    A = torch.diag(torch.tensor([1.0, -1e-4], dtype=torch.float64))
    L = safe_cholesky(A)
    assert float((L @ L.T - A).abs().max()) < 1e-2


def test_an_indefinite_matrix_is_refused():
    with pytest.raises(NumericalError, match=r"shape \(2, 2\) is not positive definite.*fewer inducing points"):
        safe_cholesky(torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64)))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_told_apart(value):
    with pytest.raises(NumericalError, match=r"NaN or infinite.*learning_rate"):
        safe_cholesky(torch.full((3, 3), value, dtype=torch.float64))


def test_gradients_pass_through_the_factor(rng):
    A = worlds.normal(rng, 4, 4).requires_grad_()

    def logdet(raw):
        return safe_cholesky(raw @ raw.T + torch.eye(4, dtype=torch.float64), 1e-6).diagonal().log().sum()

    assert torch.autograd.gradcheck(logdet, A)


def test_without_a_look_factors_are_the_same_or_repaired(rng):
    """As on a device: what needs no jitter is left as it is, and rounding spoils nothing."""
    A = worlds.normal(rng, 2, 6, 6)
    good = A @ A.mT + torch.eye(6, dtype=torch.float64)
    spoilt = good.clone()
    # An eigenvector whose eigenvalue rounding has made slightly negative.
    values, vectors = torch.linalg.eigh(good[1])
    values[0] = -1e-14
    spoilt[1] = vectors @ values.diag() @ vectors.T
    found = unseen_cholesky(spoilt)
    assert torch.equal(found[0], torch.linalg.cholesky(good[0]))
    assert_close(found[1] @ found[1].T, spoilt[1])
    assert torch.equal(unseen_cholesky(good), safe_cholesky(good))
    assert torch.equal(sure_cholesky(good), safe_cholesky(good))
    # A kernel whose rounding is larger takes more jitter, one with a jitter of its own begins there.
    values[0] = -1e-8
    spoilt[1] = vectors @ values.diag() @ vectors.T
    found = unseen_cholesky(spoilt)[1]
    assert_close(found @ found.T, add_jitter(spoilt[1], 1e-6))
    assert torch.equal(unseen_cholesky(good, 1e-6), safe_cholesky(good, 1e-6))
    # What is no covariance has no factor.
    assert unseen_cholesky(-good).isnan().all()


def test_triangular_inverse(rng):
    L = safe_cholesky(worlds.positive_definite(rng, 5))
    assert_close(triangular_inverse(L) @ L, torch.eye(5))
    assert torch.equal(triangular_inverse(L), triangular_inverse(L).tril())


def test_symmetrize(rng):
    A = worlds.normal(rng, 2, 4, 4)
    assert torch.equal(symmetrize(A), symmetrize(A).mT)
    assert_close(symmetrize(A) - A, -(symmetrize(A) - A).mT)


@pytest.mark.parametrize("variance", [1.0, 0.3])
def test_gaussian_kl(rng, variance):
    mean, S = worlds.normal(rng, 3), worlds.positive_definite(rng, 3)
    prior = MultivariateNormal(torch.zeros(3, dtype=torch.float64), variance * torch.eye(3, dtype=torch.float64))
    expected = kl_divergence(MultivariateNormal(mean, S), prior)
    assert_close(gaussian_kl(mean, S.trace(), torch.logdet(S), variance), expected)
    own = torch.tensor(variance, dtype=torch.float64)
    assert_close(gaussian_kl(0 * mean, 3 * own, 3 * own.log(), variance), 0.0)


@pytest.mark.parametrize("m", [3, 200, 500])
def test_blocked_products_equal_plain_ones(m: int) -> None:
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(m + 5, m, generator=generator, dtype=torch.float64)
    B = torch.randn(m, m, generator=generator, dtype=torch.float64)
    S, L = symmetrize(B), torch.linalg.cholesky(B @ B.T + m * torch.eye(m, dtype=torch.float64))
    assert_close(gram(A), A.T @ A)
    assert_close(triangular_gram(L), L.T @ L)
    assert_close(triangular_inverse(L) @ L, torch.eye(m, dtype=torch.float64))
    assert_close(projected(A, L), A @ L.T)
    R = triangular_root(S)
    assert_close(R.T @ R, S.T @ S)
    assert_close(squared_norms(A, R), (A @ S.T).square().sum(-1))
    assert_close(whitened(L, S), L @ S @ L.T)
    assert_close(unwhitened(L, S), L.T @ S @ L)
    assert_close(lower_product(B, S), (B @ S).tril())


def test_grams_of_parts_add_up():
    """Long parts are worked on by blocks and short ones are not; the lower triangle is right in any case."""
    A = torch.randn(900, 200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    total = torch.zeros(200, 200, dtype=torch.float64)
    for part in (A[:450], A[450:880], A[880:]):
        add_gram(total, part)
    assert_close(from_lower(total), A.T @ A)
    out = torch.empty(450, 200, dtype=torch.float64)
    assert projected(A[:450], total, out) is out
    assert_close(from_lower(torch.tensor([[1.0, 9.0], [2.0, 3.0]])), torch.tensor([[1.0, 2.0], [2.0, 3.0]]))


def test_known_gradients_are_handed_on(rng):
    """As they are, summed over what was broadcast, times what comes from above."""
    x, y = (worlds.normal(rng, *shape).requires_grad_() for shape in ((4,), ()))
    known = worlds.normal(rng, 4), worlds.normal(rng, 4)
    value = with_gradients(torch.tensor(3.0, dtype=torch.float64), (x, y), known)
    assert float(value.detach()) == 3.0
    by_x, by_y = torch.autograd.grad(2.0 * value, (x, y))
    assert_close(by_x, 2.0 * known[0])
    assert_close(by_y, 2.0 * known[1].sum())


def test_conjugate_gradients_solve(rng):
    H, right = worlds.positive_definite(rng, 6), worlds.normal(rng, 2, 3)
    blocks = torch.stack([H[:3, :3], H[3:, 3:]])

    def precondition(x):
        return torch.linalg.solve(blocks, x)

    def product(matrix):
        return lambda x: (matrix @ x.flatten()).view(2, 3)

    found = conjugate_gradients(product(H), precondition, right, 20)
    assert_close(found.flatten(), torch.linalg.solve(H, right.flatten()))
    uncoupled = torch.block_diag(*blocks)
    once = conjugate_gradients(product(uncoupled), precondition, right, 1)
    assert_close(once.flatten(), torch.linalg.solve(uncoupled, right.flatten()))
    assert not conjugate_gradients(product(H), precondition, 0.0 * right, 5).any()


def test_conjugate_gradients_solve_many_systems_at_once(rng):
    """Each with a length of its own; one that is solved does not disturb the others."""
    H = torch.stack([worlds.positive_definite(rng, 5) for _ in range(4)])
    right = worlds.normal(rng, 4, 5)
    right[2] = 0.0
    found = conjugate_gradients(lambda x: (H @ x.unsqueeze(-1)).squeeze(-1), torch.clone, right, 30, num_batch_dims=1)
    assert_close(found, torch.linalg.solve(H, right))


def test_products_of_a_batch_are_those_of_each(rng):
    A, S = worlds.normal(rng, 3, 7, 5), worlds.positive_definite(rng, 3, 5)
    L, v, w = torch.linalg.cholesky(S), worlds.normal(rng, 3, 5), worlds.normal(rng, 3, 7)
    total = torch.zeros_like(S)
    add_gram(total, A)
    together = [matvec(A, v), outer(w, v), projected(A, L), whitened(L, S), unwhitened(L, S), lower_product(S, L)]
    together += [triangular_gram(L), gram(A), from_lower(total)]
    for i in range(3):
        one = torch.zeros(5, 5, dtype=torch.float64)
        add_gram(one, A[i])
        alone = [A[i] @ v[i], torch.outer(w[i], v[i]), projected(A[i], L[i]), whitened(L[i], S[i])]
        alone += [unwhitened(L[i], S[i]), lower_product(S[i], L[i]), triangular_gram(L[i]), gram(A[i]), from_lower(one)]
        for ours, theirs in zip(together, alone, strict=True):
            assert_close(ours[i], theirs)


def test_pivots_are_where_most_variance_is_left(rng):
    A = worlds.positive_definite(rng, 2, 8)
    pivots = cholesky_pivots(A.diagonal(dim1=-2, dim2=-1), lambda pivot: A[torch.arange(2), pivot], 5)
    for K, chosen in zip(A, pivots.tolist(), strict=True):
        for i, pivot in enumerate(chosen):
            known = chosen[:i]
            left = K - K[:, known] @ torch.linalg.solve(K[known][:, known], K[known]) if known else K
            assert int(left.diagonal().argmax()) == pivot


def test_a_jitter_that_is_no_number_ends():
    with pytest.raises(NumericalError):
        safe_cholesky(torch.eye(3, dtype=torch.float64), float("nan"))
