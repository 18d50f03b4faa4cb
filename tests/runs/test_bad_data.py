"""Bad data. It is explained in words, and one client with bad data is left out."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from bad_input import (
    BAD,
    MARKED,
    NUMBERS,
    PAIRS,
    TEST,
    Cases,
    batch_classes,
    check,
    for_one,
    net,
    numbers,
    pairs,
)
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

import sketchfed

CASES = Cases()

# Data -----------------------------------------------------------------------------------------------------------------


class Once(IterableDataset):
    """Hands out the same iterator each time, so that it is exhausted after one pass."""

    def __init__(self, data) -> None:
        self._left = iter(list(zip(*data, strict=True)))

    def __iter__(self) -> Iterator[Any]:
        return self._left


class Claims(Dataset):
    """Examples with a length that may be a lie."""

    def __init__(self, data, length: Any) -> None:
        self._data, self._length = data, length

    def __len__(self) -> int:
        if isinstance(self._length, Exception):
            raise self._length
        return self._length

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self._data[0][index], self._data[1][index]


def nobody_finds_it():
    """No pickle can name it."""


UNNAMED = nobody_finds_it
del nobody_finds_it


class Broken(Dataset):
    """Examples whose file is gone. A pickle of it cannot be made."""

    def __init__(self, data) -> None:
        self._data, self._open = data, UNNAMED

    def __len__(self) -> int:
        return len(self._data[0])

    def __getitem__(self, index: int) -> Any:
        raise OSError("the file is gone")


class Thing:
    """Something that torch's default collate function does not know."""


def loader(data, **options):
    return DataLoader(TensorDataset(*data), **{"batch_size": 4} | options)


def listed(data):
    return list(zip(*data, strict=True))


def given(clients, **others):
    return {"model": net(), "clients": clients, "batch_loss": batch_classes} | others


def generator(data):
    yield from listed(data)


EXHAUSTED = "It is exhausted after one pass: its Dataset must begin anew each time"
ONLY_ONCE = "type generator, which can be read only once.*list, a map-style Dataset or a DataLoader"
TOO_FEW = "Its 12 examples are fewer than batch_size = 50, and drop_last = True leaves out .*Use a smaller batch_size"


def bad_collate(examples):
    if any(torch.equal(x, PAIRS[BAD][0][0]) for x, _ in examples):
        raise KeyError("label")
    return default_collate(examples)


def broken_collate(examples):
    raise KeyError("label")


CASES.refuse("generators", ONLY_ONCE, **given([generator(data) for data in PAIRS]))
CASES.refuse("a generator for tests", f"test holds an object of {ONLY_ONCE}", **given(PAIRS, test=generator(TEST)))
CASES.refuse("an iterator of a loader", "which can be read only once", **given([iter(loader(data)) for data in PAIRS]))
CASES.refuse("functions that make data", "type function, which cannot be read", **given([lambda: PAIRS[0]] * 4))
CASES.refuse("no data", "client 0 holds", **given([None] * 4))
CASES.refuse("paths", "type str, which cannot be read item by item", **given(["/data/1", "/data/2"]))
CASES.refuse(
    "an IterableDataset that nobody cuts", r"Set algorithm\.batch, or wrap it: DataL", **given([Once(data) for data in PAIRS])
)
CASES.refuse("loaders exhausted in pass 2", EXHAUSTED, **given([DataLoader(Once(data), 4) for data in PAIRS]))
CASES.drop(
    "a loader exhausted in pass 2",
    f"{EXHAUSTED}|can be iterated only once",
    **given([DataLoader(Once(data), 4) if client == BAD else loader(data) for client, data in enumerate(PAIRS)]),
)
CASES.refuse(
    "a loader for tests, exhausted in round 2",
    "test data cannot be scored: .*can be iterated only once.*let __iter__ begin anew",
    **given(PAIRS, test=DataLoader(Once(TEST), 4)),
)
CASES.refuse("loaders that drop all", TOO_FEW, **given([loader(data, batch_size=50, drop_last=True) for data in PAIRS]))
CASES.drop(
    "a loader that drops all",
    TOO_FEW,
    **given([loader(data, batch_size=50 if client == BAD else 4, drop_last=True) for client, data in enumerate(PAIRS)]),
)
CASES.refuse("empty loaders", "Its Dataset or its sampler is empty", **given([DataLoader([], 4) for _ in PAIRS]))


def batches(model, data, context):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in data:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def of_loop(clients):
    return {"model": net(), "clients": clients, "train": batches}


CASES.drop(
    "a loader exhausted in round 2 of a loop",
    "gave no batch. .*can be iterated only once",
    participants=(4, 3),
    **of_loop([DataLoader(Once(data), 4) if client == BAD else loader(data) for client, data in enumerate(PAIRS)]),
)
CASES.refuse(
    "loaders exhausted in round 2 of a loop", "gave no batch", **of_loop([DataLoader(Once(data), 4) for data in PAIRS])
)
CASES.refuse("iterators for a loop", "gave no batch.*can be read only once", **of_loop([iter(loader(data)) for data in PAIRS]))
CASES.drop(
    "a loader that drops all, in a loop",
    TOO_FEW,
    **of_loop([loader(data, batch_size=50 if client == BAD else 4, drop_last=True) for client, data in enumerate(PAIRS)]),
)
CASES.drop(
    "a loader of a loop that cannot be sent to workers",
    "sent a pickle of the Dataset.*Or set num_workers = 0",
    **of_loop(
        [
            loader(data, num_workers=1, multiprocessing_context="spawn", collate_fn=UNNAMED) if client == BAD else loader(data)
            for client, data in enumerate(PAIRS)
        ]
    ),
)
CASES.refuse("an empty list", "client 2 has no examples. Leave it out", **given(for_one(lambda _: [])))
CASES.refuse("an empty client", "client 2: .*one at least", **given(for_one(lambda data: (data[0][:0], data[1][:0]))))
CASES.refuse(
    "an empty pair", "client 2: .*Leave out clients", **pairs(clients=for_one(lambda data: (data[0][:0], data[1][:0])))
)
FORM = r"x has rows of torch.float32 and shape \(3,\), client 0 has torch.float32 and \(4,\). Bring all clients"
CASES.drop("one client of another width", FORM, **pairs(clients=for_one(lambda data: (data[0][:, :3], data[1]))))
CASES.refuse("clients of two widths", FORM, **pairs(clients=[PAIRS[0], (PAIRS[1][0][:, :3], PAIRS[1][1])]))
CASES.drop(
    "one client of another type", "x has rows of torch.float64",
    **pairs(clients=for_one(lambda data: (data[0].double(), data[1]))),
)  # fmt: skip
RANGE = r"has classes from \d+ to 5, and the model has outputs for 3. Count classes from 0, or give the model's last layer more"
CASES.drop("one client whose classes are out of range", RANGE, **pairs(clients=MARKED))
CASES.refuse(
    "classes that are out of range",
    "Target 5 is out of bounds.*number of outputs",
    **pairs(clients=[(x, y + 3) for x, y in PAIRS]),
)
CASES.drop(
    "one client with a negative class", r"has classes from -1 to \d",
    **pairs(clients=for_one(lambda data: (data[0], data[1].clone().index_fill_(0, torch.tensor([0]), -1)))),
)  # fmt: skip
CASES.drop(
    "one client whose classes are floats", "classes must be integers, got torch.float32",
    **pairs(clients=for_one(lambda data: (data[0], data[1].float()))),
)  # fmt: skip
CASES.drop(
    "one client whose targets are NaN", "targets are not all finite",
    **numbers(
        model=nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)),
        clients=for_one(lambda data: (data[0], data[1] * torch.nan), NUMBERS),
    ),
)  # fmt: skip
CASES.drop(
    "one Dataset whose classes are out of range", RANGE,
    **pairs(clients=for_one(lambda data: TensorDataset(data[0], data[1] + 3))),
)  # fmt: skip
CASES.refuse("an empty test pair", "test: .*at least one", **pairs(test=(TEST[0][:0], TEST[1][:0])))
CASES.refuse("no clients", "data.clients must be at least 1, got 0", **pairs(clients=[]))
CASES.refuse("a generator of clients", "clients must be a list", **pairs(clients=(data for data in PAIRS)))
CASES.refuse("a dict of clients", "clients must be a list", **pairs(clients=dict(enumerate(PAIRS))))
CASES.refuse("a tensor for clients", "clients must be a list", **pairs(clients=TEST[0]))
CASES.refuse(
    "a collate function that fails",
    "'broken_collate' cannot make a batch of 2 examples: KeyError: 'label'. Correct it",
    **given([listed(data) for data in PAIRS], collate=broken_collate),
)
CASES.drop(
    "a collate function that fails for one",
    "'bad_collate' cannot make a batch of 12 examples: KeyError: 'label'",
    **given([listed(data) for data in PAIRS], collate=bad_collate),
)
CASES.refuse(
    "examples of different lengths",
    "equal size.*Pass collate, a function that makes a batch of a list of examples",
    **given([[torch.ones(length) for length in range(1, 5)] for _ in PAIRS]),
)
CASES.refuse("objects", "Thing.*Pass collate", **given([[Thing()] * 4 for _ in PAIRS]))
CASES.refuse(
    "a column of texts", "client 0 has a column of str.*Turn texts", **given([{"x": np.array(["a", "b"])} for _ in PAIRS])
)
CASES.refuse("a column of objects", "a column of object", **given([np.array([{}, {}], dtype=object) for _ in PAIRS]))
CASES.refuse("columns of different lengths", "all have as many rows", **given([(x, y[:5]) for x, y in PAIRS]))
LIES = "says that it has 20 examples, but example 12 cannot be read: IndexError.*Correct __len__"
CASES.refuse("lengths that lie", LIES, **given([Claims(data, 20) for data in PAIRS]))
CASES.drop("a length that lies", LIES, **given(for_one(lambda data: Claims(data, 20))))
CASES.drop("a pair's length that lies", "index 12 is out of bounds", **pairs(clients=for_one(lambda data: Claims(data, 20))))
GONE = "cannot be read: OSError: the file is gone. Correct the data, or what reads it"
PICKLED = "DataLoader cannot be read: .*processes of their own.*at the top of a module.*Or set num_workers = 0"


def by_pickle(dataset):
    return DataLoader(dataset, batch_size=4, num_workers=1, multiprocessing_context="spawn")


for kind, said, broken in (
    ("a Dataset", f"example [0-9]+ {GONE}", Broken),
    ("a loader", f"the DataLoader {GONE}", lambda data: DataLoader(Broken(data), 4)),
    ("a loader whose workers get no pickle", PICKLED, lambda data: by_pickle(Broken(data))),
):
    CASES.drop(f"{kind} that cannot be read", said, **given(for_one(broken)))
    CASES.refuse(f"{kind} that cannot be read, for all", said, **given([broken(data) for data in PAIRS]))
    CASES.refuse(
        f"{kind} for tests that cannot be read", f"test data cannot be scored: .*{said}", **given(PAIRS, test=broken(TEST))
    )
for length in (-1, 2.5, RuntimeError("not known yet")):
    said = "client 0 .*length.*Give it a __len__ that returns the number of examples"
    CASES.refuse(f"a length of {length!r}", said, **given([Claims(data, length) for data in PAIRS]))
    CASES.refuse(f"a pair's length of {length!r}", said, **pairs(clients=[Claims(data, length) for data in PAIRS]))

# Types ----------------------------------------------------------------------------------------------------------------

TYPES = r"Batches hold .*{}.* Layers take float32 \(x.float\(\)\); an embedding and classes take int64"
for dtype in (torch.float64, torch.int64, torch.uint8, torch.float16, torch.bool):
    CASES.refuse(f"inputs of {dtype} in a batch", TYPES.format(str(dtype)[6:]), **given([(x.to(dtype), y) for x, y in PAIRS]))
CASES.refuse("classes as floats in a batch", TYPES.format("float32"), **given([(x, y.float()) for x, y in PAIRS]))
CASES.refuse(
    "classes as floats",
    "client 0: classes must be integers, got torch.float32",
    **pairs(clients=[(x, y + 0.5) for x, y in PAIRS]),
)
CASES.refuse(
    "complex inputs",
    "client 0: .*complex64.*real",
    **pairs(clients=[(x + 0j, y) for x, y in PAIRS], test=(TEST[0] + 0j, TEST[1])),
)
CASES.drop("a class beyond the outputs in a batch", "Target 5 is out of bounds", **given(MARKED))


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_is_explained(name, caplog):
    check(CASES[name], caplog)


@pytest.mark.parametrize("broken", [Broken, lambda data: DataLoader(Broken(data), 4)])
def test_a_first_client_whose_data_cannot_be_read_is_left_out_as_any_other(broken):
    """Before round 1, a model is tried on the data of the first clients."""
    run = sketchfed.run({"algorithm": {"rounds": 2}}, **given([broken(PAIRS[0]), *PAIRS[1:]]))
    assert [line["participants"] for line in run.metrics] == [3, 3]


# What looks odd, and works ---------


def test_loaders_with_workers_or_functions_without_a_name_are_read_as_they_are():
    """Nothing is pickled or copied, except by torch's own workers."""
    clients = [loader(PAIRS[0], num_workers=1), loader(PAIRS[1], collate_fn=lambda examples: default_collate(examples))]
    run = sketchfed.run({"algorithm": {"rounds": 1}}, **given(clients))
    assert run.metrics[0]["participants"] == 2


def test_a_batch_may_be_an_object_whose_size_nobody_knows():
    class Batch:
        def __init__(self, examples) -> None:
            self.x, self.y = default_collate(examples)

    def batch_loss(model, batch):
        return functional.cross_entropy(model(batch.x), batch.y)

    clients = [DataLoader(listed(data), 5, collate_fn=Batch) for data in PAIRS]
    run = sketchfed.run(
        {"algorithm": {"rounds": 1}}, model=net(), clients=clients, test=DataLoader(listed(TEST), 20, collate_fn=Batch),
        batch_loss=batch_loss,
    )  # fmt: skip
    torch.testing.assert_close(run.loss, functional.cross_entropy(run.module(TEST[0]), TEST[1]).item())
