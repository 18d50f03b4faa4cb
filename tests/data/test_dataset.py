"""What a DataSet insists on, holding out, and joining what clients hold."""

from dataclasses import replace

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from sketchfed import PublicSeed
from sketchfed.data import DataSet, from_clients, hold_out, partition
from sketchfed.data.dataset import held_out_parts
from sketchfed.errors import InputError, UnknownNameError

SEED = PublicSeed(7)


def made(**changed) -> DataSet:
    """Forty numbered examples of two pixels and three classes, in eight groups."""
    fields = {
        "name": "made",
        "x_train": torch.arange(80, dtype=torch.uint8).reshape(40, 2),
        "y_train": torch.arange(40) % 3,
        "x_test": torch.zeros(4, 2, dtype=torch.uint8),
        "y_test": torch.tensor([0, 1, 2, 0]),
        "outputs": 3,
        "shape": (2,),
        "groups": torch.arange(40) // 5,
        "prepare": lambda x: x.to(torch.float32),
    }
    return DataSet(**(fields | changed))


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"task": "ranking"}, "no task named 'ranking'"),
        ({"y_train": torch.zeros(39, dtype=torch.int64)}, "x_train and y_train must have the same number of rows"),
        ({"x_test": torch.zeros(0, 2, dtype=torch.uint8), "y_test": torch.zeros(0, dtype=torch.int64)}, "at least one"),
        ({"x_test": torch.zeros(4, 3, dtype=torch.uint8)}, "rows of x_test are torch.uint8 of shape"),
        ({"x_test": torch.zeros(4, 2)}, r"rows of x_test are torch\.float32"),
        ({"x_train": [[1, 2]] * 40}, "must be torch tensors, got list"),
        ({"y_train": torch.zeros(40)}, "must be int64 classes"),
        ({"outputs": 2}, r"from 0 to outputs - 1 = 1, got 0 to 2"),
        ({"y_test": torch.tensor([0, 1, -1, 2])}, "got -1 to 2"),
        ({"task": "regression"}, r"finite float32 with 3 numbers for each of its rows"),
        (
            {"task": "regression", "y_train": torch.zeros(40, 2), "y_test": torch.zeros(4, 2)},
            r"with 3 numbers for each of its rows, got torch.float32 of shape \(40, 2\)",
        ),
        ({"groups": torch.zeros(39, dtype=torch.int64)}, "groups must be int64, one for each of the 40"),
        ({"prepare": lambda x: x}, r"prepare must turn one row into float32 of shape \(1, 2\), got torch\.uint8"),
        ({"prepare": lambda x: x.tolist()}, "prepare must return a tensor, got list"),
        ({"shape": (1, 2)}, r"of shape \(1, 1, 2\), got .* of shape \(1, 2\)"),
    ],
)
def test_what_does_not_fit_together_is_refused(changed, complaint):
    made()
    with pytest.raises(InputError, match=complaint):
        made(**changed)


def test_regression_targets_must_be_finite():
    y = torch.zeros(40, 1)
    targets = {"task": "regression", "outputs": 1, "y_test": torch.zeros(4, 1)}
    assert made(y_train=y, **targets).outputs == 1
    with pytest.raises(InputError, match="finite float32"):
        made(y_train=y.log(), **targets)


def test_holding_out_replaces_the_test_set_by_a_part_of_the_training_set():
    data = made()
    held = hold_out(data, 0.25, SEED)
    assert len(held.x_train) == 30
    assert len(held.x_test) == 10
    rows = torch.cat([held.x_train, held.x_test])[:, 0] // 2
    assert rows.sort().values.tolist() == list(range(40))
    assert held.y_train.tolist() == (rows[:30] % 3).tolist()
    assert held.y_test.tolist() == (rows[30:] % 3).tolist()
    assert held.groups.tolist() == (rows[:30] // 5).tolist()
    assert data.x_test.tolist() == made().x_test.tolist()


def test_what_is_held_out_depends_on_the_seed_only():
    first, again, other = (hold_out(made(), 0.5, PublicSeed(value)) for value in (1, 1, 2))
    assert torch.equal(first.x_test, again.x_test)
    assert not torch.equal(first.x_test, other.x_test)


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5, 0.01, 0.99, float("nan"), "0.1", True])
def test_holding_out_nothing_or_everything_is_refused(fraction):
    with pytest.raises(InputError, match=r"cannot hold out a fraction of .* Use a fraction between 0 and 1"):
        hold_out(made(), fraction, SEED)


def test_holding_out_needs_a_public_seed():
    with pytest.raises(InputError, match=r"seed must be a PublicSeed, got int\. Write PublicSeed"):
        hold_out(made(), 0.1, 7)


def test_held_out_data_without_groups_and_its_partitions_work():
    held = hold_out(replace(made(), groups=None), 0.1, SEED)
    assert held.groups is None
    natural = partition(hold_out(made(), 0.1, SEED), name="natural", seed=SEED)
    assert len(natural) == 8


def test_clients_own_tensors_become_one_data_set_and_their_indices():
    clients = [(torch.full((n, 4), float(n)), torch.full((n,), n, dtype=torch.uint8)) for n in (3, 1, 2)]
    data, parts = from_clients(clients, test=clients[1])
    assert [part.tolist() for part in parts] == [[0, 1, 2], [3], [4, 5]]
    for (x, y), part in zip(clients, parts, strict=True):
        assert torch.equal(data.prepare(data.x_train[part]), x)
        assert data.y_train[part].tolist() == y.tolist()
    assert data.outputs == 4
    assert data.shape == (4,)
    assert [part.tolist() for part in partition(data, name="natural", seed=SEED)] == [part.tolist() for part in parts]


class Squares(Dataset):
    """Map-style, with a picture and a plain Python label."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.full((1, 2, 2), i, dtype=torch.uint8), i * i


def test_clients_may_be_torch_data_sets_with_a_preparation_of_their_own():
    tensors = TensorDataset(torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.tensor([1, 0]))
    data, parts = from_clients([Squares(3), tensors], test=Squares(1), prepare=lambda x: x / 255, outputs=10, name="squares")
    assert data.name == "squares"
    assert data.outputs == 10
    assert data.x_train.dtype == torch.uint8
    assert data.shape == (1, 2, 2)
    assert data.y_train.tolist() == [0, 1, 4, 1, 0]
    assert [len(part) for part in parts] == [3, 2]
    assert float(data.prepare(data.x_train).max()) == pytest.approx(2 / 255)


@pytest.mark.parametrize("row", [(), (1,), (2,), (2, 3)])
def test_regression_targets_keep_their_shape(row):
    """A model with outputs of shape (n,) and targets of shape (n, 1) would be compared as n times n numbers."""
    clients = [(torch.randn(n, 5), torch.randn(n, *row).double()) for n in (3, 2)]
    data, _ = from_clients(clients, test=clients[0], task="regression")
    assert data.y_train.dtype == data.y_test.dtype == torch.float32
    assert torch.equal(data.y_train, torch.cat([y for _, y in clients]).float())
    assert data.y_test.shape == (3, *row)
    assert data.outputs == torch.Size(row).numel()


def test_regression_targets_of_training_and_test_have_one_shape():
    with pytest.raises(InputError, match=r"rows of y_test have shape \(1,\), those of y_train \(\)"):
        made(task="regression", outputs=1, y_train=torch.zeros(40), y_test=torch.zeros(4, 1))


@pytest.mark.parametrize(
    ("client", "complaint"),
    [
        ((torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)), "client 1: .* Leave out clients without examples"),
        (Squares(0), "client 1 has no examples"),
        ((torch.zeros(2, 4), torch.zeros(3, dtype=torch.int64)), "client 1: x and y must have the same number of rows"),
        ((torch.zeros(2, 5), torch.zeros(2, dtype=torch.int64)), r"client 1: x has rows of torch.float32 and shape \(5,\)"),
        ((torch.zeros(2, 4).double(), torch.zeros(2, dtype=torch.int64)), r"client 1: x has rows of torch.float64"),
        ((torch.zeros(2, 4), torch.zeros(2)), "client 1: classes must be integers.* set task='regression'"),
        ((torch.zeros(2, 4), [0, 1]), "client 1 must be a pair of tensors .* got a tuple of Tensor, list"),
        (torch.zeros(2, 4), "client 1 must be a pair of tensors .* got Tensor"),
    ],
)
def test_clients_that_do_not_fit_are_named(client, complaint):
    good = torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(InputError, match=complaint):
        from_clients([good, client], test=good)


def test_no_clients_and_unknown_tasks_are_refused():
    good = torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(InputError, match="at least one client"):
        from_clients([], test=good)
    with pytest.raises(UnknownNameError, match="no task named"):
        from_clients([good], test=good, task="ranking")


def test_each_client_keeps_something_to_train_on_and_holds_out_something_if_it_can():
    parts = list(torch.arange(20).split([1, 2, 3, 14]))
    left, held = held_out_parts(parts, 0.9, SEED)
    assert [len(rows) for rows in held] == [0, 1, 2, 13]
    for part, one, other in zip(parts, left, held, strict=True):
        assert sorted([*one.tolist(), *other.tolist()]) == part.tolist()
    assert [len(rows) for rows in held_out_parts(parts, 0.01, SEED)[1]] == [0, 1, 1, 1]
    again = held_out_parts(parts, 0.9, SEED)
    assert all(torch.equal(one, other) for one, other in zip(held, again[1], strict=True))
