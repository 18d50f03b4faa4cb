"""Models, losses and data that do not fit each other are refused before the first round."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from federation import data_of
from sketchfed.config import load_config
from sketchfed.errors import InputError
from sketchfed.runs.workload import Workload, from_objects, named_workload
from sketchfed.training import AutogradTrainer, PerceptronTrainer
from sketchfed.vectors import flatten


def workload(module: nn.Module, *, loss: object = None, task: str = "classification") -> Workload:
    kind = "squares" if task == "regression" else "cross_entropy"
    return from_objects(module, data_of(12, loss=kind), data_of(1, loss=kind)[0], loss, task)


def layers(*widths: int, last: nn.Module | None = None) -> nn.Module:
    dense = [nn.Linear(i, o) for i, o in pairwise(widths)]
    between = [layer for one in dense for layer in (one, nn.ReLU())][:-1]
    return nn.Sequential(*between, *([last] if last else []))


def test_what_fits_gets_the_trainer_that_fits():
    assert isinstance(workload(layers(6, 5, 4)).trainer(), PerceptronTrainer)
    assert isinstance(workload(layers(6, 4, last=nn.Identity())).trainer(), AutogradTrainer)
    assert isinstance(workload(layers(6, 4), task="regression").trainer(), PerceptronTrainer)
    assert isinstance(workload(layers(6, 9), loss=nn.functional.cross_entropy).trainer(), AutogradTrainer)


def test_a_model_may_have_more_outputs_than_there_are_classes():
    assert workload(layers(6, 9)).trainer().dim == 63


@pytest.mark.parametrize("last", [None, nn.Identity()])
@pytest.mark.parametrize(
    ("module", "task", "complaint"),
    [
        ((7, 4), "classification", r"cannot be trained on examples of shape \(6,\): .*input shape"),
        ((6, 3), "classification", "number of outputs|Give the model's last layer 4 outputs"),
        ((6, 3), "regression", r"outputs have shape \(\d, 3\) and the targets shape \(\d, 4\)"),
        ((6, 1), "regression", r"outputs have shape \(\d, 1\) and the targets shape \(\d, 4\)"),
    ],
)
def test_what_does_not_fit_is_refused(module, task, complaint, last):
    with pytest.raises(InputError, match=complaint):
        workload(layers(*module, last=last), task=task).trainer()


def test_classes_that_the_first_examples_do_not_have_count_too():
    x = torch.zeros(4, 6)
    clients = [(x, torch.tensor([0, 0, 0, 0])), (x, torch.tensor([0, 1, 2, 3]))]
    for last in (None, nn.Identity()):
        with pytest.raises(InputError, match=r"for an example have shape \(2,\), but data set 'clients' has 4 classes"):
            from_objects(layers(6, 2, last=last), clients, clients[0], None, "classification").trainer()


class _Unreadable(torch.utils.data.Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        raise OSError("gone")


def test_clients_none_of_whose_data_can_be_read_are_refused_in_words():
    """A partition can deal rows of a Dataset that raised to every client."""
    good = data_of(2, loss="cross_entropy")
    found = from_objects(layers(6, 4), [*good, _Unreadable()], good[0], None, "classification")
    with pytest.raises(InputError, match="the data of none of the 1 clients can be read, so nothing can be trained"):
        replace(found, parts=found.parts[2:]).trainer()


def test_the_first_weights_of_a_named_model_are_forgotten_and_built_again():
    named = named_workload(load_config({}))
    module, first = named.module, flatten(named.module)
    named.forget_weights()
    assert not flatten(named.module).any()
    assert torch.equal(flatten(module), first), "whoever made the module may keep it"
    assert torch.equal(flatten(named.first_module), first)


def test_first_weights_that_nobody_can_build_again_are_kept():
    for kept in (named_workload(load_config({"algorithm": {"public_start": False}})), workload(layers(6, 4))):
        first = flatten(kept.module)
        kept.forget_weights()
        assert torch.equal(flatten(kept.first_module), first)
