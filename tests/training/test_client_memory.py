"""What a client keeps between rounds, and how it is saved."""

import pytest
import torch
from safetensors.torch import load, save

from sketchfed.errors import InputError
from sketchfed.training import ClientMemory


def saved(memory: ClientMemory) -> ClientMemory:
    return ClientMemory.from_tensors(load(save(memory.to_tensors())))


def test_an_optimisers_state_is_kept_as_it_is():
    model = torch.nn.Linear(3, 2)
    optimiser = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimiser.step()
    kept = saved(ClientMemory(kept={"optimiser": optimiser.state_dict()})).kept["optimiser"]
    again = torch.optim.Adam(model.parameters())
    again.load_state_dict(kept)
    for one, other in zip(optimiser.state_dict()["state"].values(), again.state_dict()["state"].values(), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert kept["param_groups"] == optimiser.state_dict()["param_groups"]


def test_numbers_texts_and_nested_values_come_back_as_they_were():
    kept = {"seen": 3, "rate": 0.5, "name": "ä", "flag": True, "none": None, "list": [1, (2, 3)], "deep": {1: {"x": []}}}
    assert saved(ClientMemory(kept=kept)).kept == kept


def test_what_the_algorithm_keeps_and_what_training_keeps_are_apart():
    memory = saved(ClientMemory(owed=torch.ones(3), kept={"memory": torch.zeros(2), "kept": 1}))
    assert torch.equal(memory.owed, torch.ones(3))
    assert torch.equal(memory.kept["memory"], torch.zeros(2))
    assert memory.kept["kept"] == 1


def test_a_copy_has_tensors_of_its_own():
    memory = ClientMemory(kept={"x": torch.zeros(2)})
    memory.copy().kept["x"].add_(1)
    assert not memory.kept["x"].any()


def test_an_empty_memory_is_nothing():
    assert not ClientMemory()
    assert ClientMemory().to_tensors() == {}
    assert not saved(ClientMemory(owed=None))


@pytest.mark.parametrize("value", [object(), {1.5: 2}, {1, 2}, torch.ones(2).to_sparse(), torch.optim.SGD([torch.ones(1)])])
def test_what_cannot_be_kept_is_refused_with_its_name(value):
    with pytest.raises(InputError, match=r"kept\['state'\]"):
        ClientMemory(kept={"state": value}).to_tensors()


@pytest.mark.parametrize(
    "form", [b"{", b'{"dict": 3}', b'{"tensor": 5}', b'{"a": 1, "b": 2}', b'{"tensor": "x"}', b"[1]", b"\xff", b"{}", b"1"]
)
def test_damaged_memories_raise_nothing_else_than_the_documented_errors(form):
    tensors = {"kept": torch.frombuffer(bytearray(form), dtype=torch.uint8)}
    with pytest.raises((KeyError, TypeError, ValueError)):
        ClientMemory.from_tensors(tensors)
