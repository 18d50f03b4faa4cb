"""The pretended device finds what would fail on a GPU, and nothing else fails on it."""

import subprocess
import sys
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from sketchfed.testing.devices import DeviceMixError, pretended
from sketchfed.vectors import adopt

DEVICE = pretended()


def here(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def there(*shape: int) -> torch.Tensor:
    return here(*shape).to(DEVICE)


MISTAKES = {
    "a sum of two devices": lambda: there(3) + here(3),
    "a concatenation of two devices": lambda: torch.cat([there(3), here(3)]),
    "a product with a tensor that was made on the CPU": lambda: there(2, 3) @ torch.ones(3),
    "a step with a gradient on the CPU": lambda: there(3).add_(here(3), alpha=0.1),
    "a result that is written to the CPU": lambda: torch.add(there(3), 1, out=torch.empty(3)),
    "a layer that was not moved": lambda: nn.Linear(3, 2)(there(4, 3)),
    "inputs that were not moved": lambda: nn.Linear(3, 2).to(DEVICE)(here(4, 3)),
    "targets that were not moved": lambda: functional.cross_entropy(there(4, 3), torch.tensor([0, 1, 2, 0])),
    "weights of a loss that were not moved": lambda: nn.CrossEntropyLoss(weight=torch.ones(3))(
        there(2, 3), torch.tensor([0, 1]).to(DEVICE)
    ),
    "indices that were not moved": lambda: there(4, 3)[:, torch.tensor([0, 2])],
    "a generator of the CPU": lambda: torch.randn(3, device=DEVICE, generator=torch.Generator()),
    "a convolution of two devices": lambda: functional.conv2d(there(1, 1, 5, 5), here(2, 1, 3, 3)),
    "a parameter that gets weights of another device": lambda: adopt(nn.Linear(3, 2), there(8)),
}


FOUND = r"meets one on|same device|cannot draw on|incompatible tensor type"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_would_fail_on_a_gpu_fails(mistake):
    with pytest.raises((DeviceMixError, RuntimeError), match=FOUND):
        MISTAKES[mistake]()


def test_numbers_are_only_seen_after_they_were_moved():
    with pytest.raises(TypeError, match="can't convert pretend:0 device type tensor to numpy"):
        there(3).numpy()
    assert torch.equal(there(3).cpu(), here(3))
    assert torch.equal(there(3).to("cpu", torch.float64), here(3).double())
    assert here(3).copy_(there(3)).device.type == "cpu"
    assert float(there(3).sum()) == pytest.approx(float(here(3).sum()))


def test_numbers_of_the_cpu_that_are_no_vectors_may_take_part():
    assert torch.equal((there(3) * torch.tensor(2.0)).cpu(), here(3) * 2)


def steps(model: nn.Module, device: torch.device | str, optimiser, **options) -> torch.Tensor:
    """The parameters after three steps on a device."""
    model = deepcopy(model).to(device)
    x, y = here(7, 1, 8, 8).to(device), torch.tensor([0, 1, 2, 0, 1, 2, 0]).to(device)
    made = optimiser(model.parameters(), **options)
    for _ in range(3):
        made.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        made.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach().cpu()


@pytest.mark.parametrize(
    ("optimiser", "options"),
    [(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}), (torch.optim.RMSprop, {"lr": 1e-3, "eps": 1e-2})],
)
def test_a_network_trains_as_on_the_cpu(optimiser, options):
    layers = [
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.LayerNorm(36),
        nn.Linear(36, 3),
    ]
    model = nn.Sequential(*layers)
    assert torch.allclose(steps(model, DEVICE, optimiser, **options), steps(model, "cpu", optimiser, **options), atol=1e-6)


def test_attention_transforms_and_checkpoints_work():
    layer, x = nn.MultiheadAttention(6, 2), here(5, 6)
    assert torch.allclose(deepcopy(layer).to(DEVICE)(*[x.to(DEVICE)] * 3)[0].cpu(), layer(x, x, x)[0], atol=1e-6)
    linear = nn.Linear(6, 3)

    def loss(weight: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        return functional_call(linear.to(weight.device), {"weight": weight}, (row,)).square().sum()

    each = vmap(grad(loss), in_dims=(None, 0))
    weight = linear.weight.detach().clone()
    assert torch.allclose(each(weight.to(DEVICE), x.to(DEVICE)).cpu(), each(weight, x), atol=1e-6)


def test_parameters_are_views_of_a_vector():
    linear, flat = nn.Linear(3, 2).to(DEVICE), there(8)
    adopt(linear, flat)
    with torch.no_grad():
        linear.bias.add_(1.0)
    assert torch.equal(flat[6:].cpu(), here(8)[6:] + 1)


def test_a_deep_copy_is_a_copy():
    model = nn.BatchNorm1d(3).to(DEVICE)
    copy = deepcopy(model)
    copy.running_mean.add_(1.0)
    assert model.running_mean.device == copy.running_mean.device == DEVICE
    assert torch.equal(model.running_mean.cpu(), torch.zeros(3))


SUITE = """
import torch
torch.ones(1, requires_grad=True).sum().backward()
import pytest
from sketchfed.testing.suite import other_device
try:
    other_device()
except pytest.skip.Exception as skipped:
    print(skipped.msg)
"""


def test_a_suite_that_is_imported_too_late_skips_its_checks_and_says_why():
    told = subprocess.run([sys.executable, "-c", SUITE], capture_output=True, text=True, check=True).stdout
    assert "because backward passes ran before sketchfed.testing was imported" in told
