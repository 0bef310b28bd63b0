"""How a function value becomes the mean of a count."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional as F

from manygp.errors import SettingError

# exp(80) and its square root's square are finite in float32 too. Beyond, a mean grows linearly: it has left every
# data set long ago, but its gradient must still point back.
_MAX_LOG_MEAN = 80.0
# Below, log(1 + exp f) is exp f to the last digit of float64.
_LINEAR_BELOW = -37.0


def bounded_exp(x: Tensor) -> Tensor:
    """exp(x) up to x = 80, and its tangent beyond, so that neither it nor its gradient overflows."""
    return torch.exp(x.clamp(max=_MAX_LOG_MEAN)) * (1.0 + (x - _MAX_LOG_MEAN).clamp(min=0.0))


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp x); torch's own default cuts off where float64 still sees a difference."""
    return F.softplus(x, threshold=40.0)


class Link(ABC):
    """A positive mean from a real f, through its logarithm h(f)."""

    @abstractmethod
    def log_mean(self, f: Tensor) -> Tensor:
        """h(f)."""

    @abstractmethod
    def inverse(self, log_mean: Tensor) -> Tensor:
        """The f with h(f) = log_mean."""

    @abstractmethod
    def chain(self, f: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """First and second derivative by f of what has these derivatives by h(f)."""


class Exponential(Link):
    """Mean exp f: effects multiply."""

    def log_mean(self, f: Tensor) -> Tensor:
        return f

    def inverse(self, log_mean: Tensor) -> Tensor:
        return log_mean

    def chain(self, f: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        return first, second


class Softplus(Link):
    """Mean log(1 + exp f): exponential where small, linear where large."""

    def log_mean(self, f: Tensor) -> Tensor:
        return torch.where(f < _LINEAR_BELOW, f, softplus(f.clamp(min=_LINEAR_BELOW)).log())

    def inverse(self, log_mean: Tensor) -> Tensor:
        mean = bounded_exp(log_mean)
        # log(exp(m) − 1) = m + log(1 − exp(−m))
        return torch.where(log_mean < _LINEAR_BELOW, log_mean, mean + torch.log(-torch.expm1(-mean)))

    def chain(self, f: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        # h = log softplus,  h' = sigmoid / softplus,  h'' = h' (1 − sigmoid − h')
        inner = f.clamp(min=_LINEAR_BELOW)
        slope = torch.sigmoid(inner) / softplus(inner)
        bend = slope * (torch.sigmoid(-inner) - slope)
        return first * slope, second * slope.square() + first * bend


LINKS: dict[str, type[Link]] = {"exp": Exponential, "softplus": Softplus}


def make_link(link: str) -> Link:
    """A link from its name."""
    if link not in LINKS:
        raise SettingError(f"link={link!r} is unknown: use one of {', '.join(LINKS)}.")
    return LINKS[link]()
