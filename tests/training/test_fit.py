"""Outputs and targets that torch would broadcast are refused; losses that mean to compare different shapes are not."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from problems import examples
from sketchfed.errors import InputError
from sketchfed.training import AutogradTrainer, Examples, make_trainer


class Model(nn.Module):
    """Six numbers to outputs of any shape for an example."""

    def __init__(self, *row: int) -> None:
        super().__init__()
        self.layer, self.row = nn.Linear(6, torch.Size(row).numel()), row

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).reshape(len(x), *self.row)


def checked(model: nn.Module, row: tuple[int, ...], loss: object, *, count: int = 2) -> AutogradTrainer:
    x = examples(count).x
    trainer = make_trainer(model, loss)
    trainer.check(Examples(x, torch.linspace(-1, 1, count * torch.Size(row).numel()).reshape(count, *row)))
    return trainer


def by_hand(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs - targets) ** 2).mean()


def absolute(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs().mean()


LOSSES = ["squares", functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss, nn.MSELoss(), by_hand, absolute]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("row", [(), (1,), (3,), (2, 2)])
def test_equal_shapes_are_taken(loss, row):
    assert checked(Model(*row), row, loss).dim > 0


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("outputs", "targets"), [((), (1,)), ((1,), ()), ((1, 1), (1,))])
def test_every_output_against_every_target_is_refused(loss, outputs, targets, count):
    with pytest.raises(InputError, match=r"outputs have shape .* and the targets shape .* broadcast"):
        checked(Model(*outputs), targets, loss, count=count)


@pytest.mark.parametrize("loss", ["squares", functional.mse_loss, nn.L1Loss()])
def test_one_target_for_several_outputs_is_refused_where_the_loss_is_known(loss):
    with pytest.raises(InputError, match=r"outputs have shape \(2, 3\) and the targets shape \(2, 1\)"):
        checked(Model(3), (1,), loss)


def test_dense_layers_are_no_exception():
    """As many outputs as there are examples in the trial, so that nothing else fails."""
    with pytest.raises(InputError, match=r"outputs have shape \(2, 2\) and the targets shape \(2,\)"):
        checked(nn.Sequential(nn.Linear(6, 2)), (), "squares")


def squeezed(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.mse_loss(outputs.squeeze(1), targets)


def normal(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.gaussian_nll_loss(outputs[:, 0], targets, outputs[:, 1].exp())


def quantiles(outputs: Tensor, targets: Tensor) -> Tensor:
    levels = torch.tensor([0.1, 0.5, 0.9])
    return torch.maximum(levels * (targets - outputs), (levels - 1) * (targets - outputs)).mean()


@pytest.mark.parametrize(("outputs", "targets", "loss"), [((1,), (), squeezed), ((2,), (), normal), ((3,), (1,), quantiles)])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_losses_that_compare_different_shapes_on_purpose_are_taken(outputs, targets, loss, count):
    assert checked(Model(*outputs), targets, loss, count=count).dim > 0


def test_outputs_that_are_no_tensor_are_the_business_of_the_loss():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 1)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"height": self.layer(x).squeeze(1)}

    trainer = make_trainer(Two(), lambda outputs, targets: functional.mse_loss(outputs["height"], targets))
    trainer.check(Examples(examples(2).x, torch.zeros(2)))
