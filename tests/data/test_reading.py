"""Datasets: read once if they always say the same, anew by a seed if not, and later if they raise."""

import logging
import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from sketchfed import PublicSeed
from sketchfed.data import from_clients, hold_out
from sketchfed.data.generators import drawing_from
from sketchfed.data.reading import TRIED
from sketchfed.errors import InputError

SEED = PublicSeed(7)
TEST = torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)


class Items(Dataset):
    """Numbered items of three numbers; `change` makes each reading what it is."""

    def __init__(self, count: int = 20, change=lambda item, x: x, *, first: int = 0) -> None:
        self.count, self.change, self.first = count, change, first
        self.reads: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, item: int) -> tuple[torch.Tensor, int]:
        self.reads.append(item)
        return self.change(item, torch.full((3,), float(self.first + item))), item % 2


def by_torch(_item, x):
    return x + 0.1 * torch.randn(3)


def by_numpy(_item, x):
    return x + float(np.random.uniform())  # noqa: NPY002


def by_random(_item, x):
    return x + random.random()


def rarely(_item, x):
    return -x - 1 if random.random() < 0.2 else x


HIDDEN = torch.Generator().manual_seed(1)


def of_its_own():
    return lambda _item, x: x + torch.randn(3, generator=HIDDEN)


def that_it_holds():
    generator = torch.Generator().manual_seed(1)
    return lambda _item, x: x + torch.randn(3, generator=generator)


RANDOM = pytest.mark.parametrize("change", [by_torch, by_numpy, by_random, rarely])


def data_of(*clients, **options):
    return from_clients(list(clients), test=TEST, **options)


# Which are random


@RANDOM
def test_random_transforms_are_found(change):
    data, _ = data_of(Items(60, change), Items(60, change))
    assert data.live(torch.arange(120))


@pytest.mark.parametrize(
    "change", [lambda item, x: x, lambda item, x: x * float("nan"), lambda item, x: x + torch.tensor([np.inf, -np.inf, 0.0])]
)
def test_what_always_says_the_same_is_read_once(change):
    items = Items(500, change)
    data, _ = data_of(items)
    assert data.reader is None
    assert len(items.reads) <= 500 + 2 * TRIED
    assert data.x_train[:, 1].isnan().all() == torch.isnan(change(0, torch.ones(3)))[1]


def test_many_clients_cost_no_more_trials_than_few():
    clients = [Items(10) for _ in range(300)]
    data_of(*clients)
    assert sum(len(client.reads) for client in clients) <= 300 * 10 + 2 * TRIED


def test_tensors_are_known_to_say_the_same():
    class Counted(TensorDataset):
        reads = 0

        def __getitem__(self, item):
            Counted.reads += 1
            return super().__getitem__(item)

    tensors = TensorDataset(torch.zeros(9, 3), torch.zeros(9, dtype=torch.int64))
    assert data_of(tensors, Subset(tensors, [1, 2]), (torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64)))[0].reader is None
    Counted.reads = 0
    assert data_of(Counted(torch.zeros(9, 3), torch.zeros(9, dtype=torch.int64)))[0].reader is None
    assert Counted.reads == 3 * 9, "a class of one's own may do anything, so it is tried"


def test_targets_that_are_random_are_found():
    class Labels(Items):
        def __getitem__(self, item):
            return super().__getitem__(item)[0], random.randrange(2)

    assert data_of(Labels())[0].live(torch.arange(20))


def test_the_switch_wins_over_what_is_found():
    assert data_of(Items(change=by_torch), redraw=False)[0].reader is None
    steady = Items()
    assert data_of(steady, redraw=True)[0].live(torch.arange(20))
    assert len(steady.reads) == 20, "nothing has to be tried"


def test_generators_that_a_dataset_holds_are_seeded(caplog):
    data, parts = data_of(Items(change=that_it_holds()))
    one, same, other = (data.read(parts[0], seed)[0] for seed in (SEED, SEED, SEED.child("other")))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert not caplog.text


def test_generators_that_it_does_not_hold_are_redrawn_with_a_warning(caplog):
    data, _ = data_of(Items(change=of_its_own()))
    assert data.live(torch.arange(20))
    assert "generators of their own" in caplog.text
    assert "redraw=False" in caplog.text


# What is read


@RANDOM
def test_equal_seeds_read_the_same_and_others_something_else(change):
    data, parts = data_of(Items(50, change), Items(50, change, first=100))
    (x, y), (again, _), (other, _) = (data.read(parts[1], seed) for seed in (SEED, SEED, SEED.child("other")))
    assert torch.equal(x, again)
    assert not torch.equal(x, other)
    assert torch.equal(y, torch.arange(50) % 2)


@RANDOM
def test_the_first_reading_does_not_depend_on_the_generators(change):
    torch.manual_seed(1)
    one = data_of(Items(50, change))[0].x_train
    torch.manual_seed(2)
    random.seed(2)
    assert torch.equal(data_of(Items(50, change))[0].x_train, one)


def test_rows_are_read_in_the_order_that_is_asked_for_and_only_those():
    clients = [Items(5, by_torch), Items(5, by_torch, first=100)]
    data, _ = data_of(*clients)
    for client in clients:
        client.reads.clear()
    x, y = data.read(torch.tensor([7, 0, 9, 3, 7]), SEED)
    assert x.round().mean(1).round().tolist() == [102, 0, 104, 3, 102]
    assert y.tolist() == [0, 0, 0, 1, 0]
    assert [client.reads for client in clients] == [[0, 3], [2, 4, 2]]


def test_clients_given_as_tensors_are_not_read_from_elsewhere():
    tensors = torch.full((4, 3), 50.0), torch.ones(4, dtype=torch.int64)
    data, parts = data_of(tensors, Items(5, by_torch))
    assert not data.live(parts[0])
    assert data.live(parts[1])
    x, y = data.read(torch.tensor([5, 1, 4]), SEED)
    assert x[1].tolist() == [50.0] * 3
    assert y.tolist() == [1, 1, 0]


def test_what_is_held_out_is_no_longer_read():
    items = Items(40, by_torch)
    held = hold_out(data_of(items)[0], 0.25, SEED)
    items.reads.clear()
    x, _ = held.read(torch.arange(30), SEED)
    assert torch.allclose(x, held.x_train, atol=1.0)
    assert len(set(items.reads)) == 30
    assert sorted(items.reads) == sorted(held.x_train.mean(1).round().int().tolist())


def test_rows_that_were_added_later_are_stored_ones():
    data, _ = data_of(Items(5, by_torch))
    assert data.reader.is_live(torch.tensor([4, 5, 99])).tolist() == [True, False, False]


def test_no_generator_is_moved():
    def drawn():
        return torch.rand(1).item(), np.random.rand(), random.random()  # noqa: NPY002

    torch.manual_seed(3), np.random.seed(3), random.seed(3)  # noqa: NPY002
    wanted = drawn()
    torch.manual_seed(3), np.random.seed(3), random.seed(3)  # noqa: NPY002
    data, _ = data_of(Items(change=by_torch), Items(change=by_numpy), Items(change=by_random))
    data.read(torch.arange(30), SEED)
    with pytest.raises(ZeroDivisionError), drawing_from(SEED):
        drawn()[0] / 0
    assert drawn() == wanted


# What cannot be read


def broken(item, x):
    if item == 7:
        raise KeyError("scan 7")
    return x


def test_a_dataset_that_raises_leaves_its_client_for_later(caplog):
    sound, bad = Items(), Items(change=broken)
    data, parts = data_of(sound, bad)
    assert "client 1 cannot be read, so rounds will go on without it: it raised KeyError: 'scan 7'" in caplog.text
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert [len(part) for part in parts] == [20, 20]
    assert [data.unread(part) for part in parts] == [False, True]
    with pytest.raises(KeyError, match="scan 7"):
        data.read(parts[1], SEED)
    bad.change = lambda _item, x: x
    assert torch.equal(data.read(parts[1], SEED)[0], data.x_train[parts[0]])
    with pytest.raises(InputError, match="could not be read"):
        hold_out(data, 0.5, SEED)


def test_where_no_dataset_can_be_read_that_is_refused():
    with pytest.raises(InputError, match=r"no client's Dataset can be read: for client 0 it raised KeyError: 'scan 7'"):
        data_of(Items(change=broken), Items(change=broken))
    with pytest.raises(InputError, match=r"the test data cannot be read: it raised KeyError: 'scan 7'"):
        from_clients([Items()], test=Items(change=broken))


def test_who_interrupts_the_reading_is_heard():
    def interrupt(_item, _x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        data_of(Items(), Items(change=interrupt))


def test_a_stream_is_refused():
    class Stream(IterableDataset):
        def __iter__(self):
            yield torch.zeros(3), 0

    with pytest.raises(InputError, match="client 0 is a Stream whose length is not known"):
        data_of(Stream())


def test_a_reading_of_another_shape_is_refused():
    items = Items(5)
    data, parts = data_of(items, redraw=True)
    items.change = lambda _item, x: x[:2]
    with pytest.raises(
        InputError, match=r"returned x of torch.float32 and shape \(2,\), and at first torch.float32 and \(3,\)"
    ):
        data.read(parts[0], SEED)
