"""Random numbers that belong to names: the same number for the same name, in whatever order names come up."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["cell_keys", "input_keys", "joint_keys", "normals"]

# Increments and multipliers of SplitMix64, and an odd number for the next part of a name, as signed 64-bit integers.
_STEP, _FIRST, _SECOND, _NEXT = (
    number - (1 << 64) if number >= 1 << 63 else number
    for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD1342543DE82EF95)
)
_HALF = (1 << 32) - 1
# Pairs of numbers that are made together: as many as stay in the cache.
_TOGETHER = 32_768


def normals(
    seed: int, stream: int, keys: Int[Tensor, " k"], draws: Int[Tensor, " n"], width: int
) -> Float[Tensor, "k n w"]:
    """Standard normal numbers of every key and draw, `width` of each; streams of one seed are independent."""
    pairs = -(-width // 2)
    name = _mix(_mix(_mix(torch.tensor(_signed(seed), device=keys.device)) * _NEXT + stream) * _NEXT + keys)
    number = torch.arange(pairs, device=keys.device)
    size = max(1, _TOGETHER // max(len(draws) * pairs, 1)) if keys.device.type == "cpu" else max(len(keys), 1)
    found = torch.empty(len(keys), len(draws), 2 * pairs, dtype=torch.float64, device=keys.device)
    for some, values in zip(name.split(size), found.split(size), strict=True):
        of_draw = _mix(some.unsqueeze(-1) * _NEXT + draws.to(keys.device)).unsqueeze(-1)
        bits = _mix(of_draw * _NEXT + number)
        # Box-Muller: √(−2 log u) (cos 2πv, sin 2πv)
        u, v = (((bits & _HALF).double() + 0.5) / 2.0**32), ((_shifted(bits, 32).double() + 0.5) / 2.0**32)
        radius, angle = (-2.0 * u.log()).sqrt(), 2.0 * math.pi * v
        torch.mul(radius, angle.cos(), out=values[..., 0::2])
        torch.mul(radius, angle.sin(), out=values[..., 1::2])
    return found[..., :width]


def input_keys(x: Float[Tensor, "b d"]) -> Int[Tensor, " b"]:
    """A number for every input that equal inputs share, and hardly any others."""
    # Zero has two signs.
    bits = (x.detach().double() + 0.0).contiguous().view(torch.int64)
    key = torch.zeros_like(bits[:, 0])
    for column in bits.unbind(-1):
        key = _mix(key * _NEXT + column)
    return key


def cell_keys(x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
    """A number for every cell that equal cells share."""
    return joint_keys(input_keys(x), outputs)


def joint_keys(a: Int[Tensor, " b"], b: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
    """A number for every pair of numbers that equal pairs share, and hardly any others."""
    return _mix(a * _NEXT + b)


def _mix(name: Int[Tensor, "*s"]) -> Int[Tensor, "*s"]:
    """The finaliser of SplitMix64, whose products wrap around."""
    name = name + _STEP
    name = (name ^ _shifted(name, 30)) * _FIRST
    name = (name ^ _shifted(name, 27)) * _SECOND
    return name ^ _shifted(name, 31)


def _shifted(bits: Int[Tensor, "*s"], by: int) -> Int[Tensor, "*s"]:
    """Bits shifted to the right, with zeros coming in."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _signed(seed: int) -> int:
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)
