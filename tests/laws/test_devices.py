"""A training step waits for its device once at most, and makes nothing anywhere else.

Torch's device without memory stands in for one that is not the host: what would be read from it is answered with "no"
and counted, and whatever meets a tensor of the host fails.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import manygp
from manygp.estimators.settings import resolve_device
from manygp.terms import Level, OwnPart, SharedPart, SharedShocks, Trend
from manygp.training import TrainingSettings
from manygp.training.step import take_step
from manygp.variational import CellBatch, Groups

# How often a step looks at what its device has found. Gaussian noise: with how much errors of Kuu weigh. Other
# likelihoods: at whether all was well. Neighbours: whether groups could be factorised.
LOOKS = ("gaussian", "pooled-gaussian", "poisson", "student-t", "neighbours")
META = torch.device("meta")


class Device(TorchDispatchMode):
    """Answers whoever looks at the device, and keeps count."""

    looks = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        aten = torch.ops.aten
        if func is aten._local_scalar_dense.default:
            self.looks += 1
            return args[0].dtype.is_floating_point * 0.0 if args[0].dtype != torch.bool else False
        if func is aten.nonzero.default:
            self.looks += 1
            return args[0].new_empty(0, args[0].dim(), dtype=torch.int64)
        if func is aten._to_copy.default and kwargs.get("device") == torch.device("cpu"):
            self.looks += 1
            return torch.zeros(args[0].shape, dtype=args[0].dtype)
        return func(*args, **(kwargs or {}))


def moved(module):
    """The same module on the device without memory; `Module.to` would refuse."""
    for part in module.modules():
        for name, value in part._parameters.items():
            if value is not None:
                like = torch.empty_like(value, device=META)
                part._parameters[name] = torch.nn.Parameter(like, requires_grad=value.requires_grad)
        for name, value in part._buffers.items():
            if value is not None:
                part._buffers[name] = torch.empty_like(value, device=META)
    return module


def batch(groups=False):
    def numbers(*shape, dtype=torch.float64):
        return torch.zeros(*shape, dtype=dtype, device=META)

    index = numbers(5, 4, dtype=torch.int64)
    return CellBatch(
        x=numbers(20, 1),
        y=numbers(20),
        outputs=numbers(4, dtype=torch.int64),
        column=numbers(20, dtype=torch.int64),
        cell_weight=3.0,
        output_weight=numbers(4),
        row=numbers(20, dtype=torch.int64),
        groups=Groups(index, index >= 0, 2) if groups else None,
        key=7,
    )


def untrained(kind):
    likelihood, terms = kind, [[Trend.name]]
    if kind == "poisson":
        terms.append([Level.name])
    if kind == "neighbours":
        likelihood, terms = "gaussian", [*terms, [OwnPart.name, 3], [SharedShocks.name, 2], [SharedPart.name, 2, 3]]
    settings = manygp.TLVMOGP(2, 8, 4 if kind == "neighbours" else 0, spectral_bound=0.1, likelihood=likelihood)
    return settings._build({"num_features": 1, "num_outputs": 5, "prior_mean": False, "terms": terms})


@pytest.mark.parametrize("kind", LOOKS)
def test_a_step_hardly_looks_at_its_device(kind):
    model = moved(untrained(kind)).train()
    with Device() as device:
        told = take_step(
            model, batch(kind == "neighbours"), torch.Generator(), [], (0.01, 0.1), TrainingSettings(), 100
        )
    assert device.looks <= 1
    assert told.device == META
    assert all(parameter.grad is None or parameter.grad.device == META for parameter in model.parameters())


def test_a_device_that_is_not_there_is_refused_in_one_sentence():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(manygp.SettingError, match=r"^device='cuda' cannot be used here: choose 'auto' or 'cpu'\.$"):
        resolve_device("cuda")
