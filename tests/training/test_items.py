"""Examples of any kind, and the batches made of them."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from sketchfed.errors import InputError
from sketchfed.seeds import PublicSeed
from sketchfed.training import LocalWork, examples_in
from sketchfed.training.items import Columns, Items, Stream, mapped

SEED = PublicSeed(8)
X, Y = torch.arange(20.0).reshape(10, 2), torch.arange(10)


class Numbers(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        if not 0 <= index < 10:
            raise IndexError(index)
        return {"x": X[index], "noise": torch.rand(()), "y": int(Y[index])}


class Endless(IterableDataset):
    def __iter__(self):
        return iter(range(7))


def inputs(batch) -> torch.Tensor:
    return batch["x"] if isinstance(batch, dict) else batch[0] if isinstance(batch, list | tuple) else batch


KINDS = {
    "a tuple of tensors": (X, Y),
    "a dict of tensors": {"x": X, "y": Y},
    "one tensor": X,
    "numpy arrays": (X.double().numpy(), Y.numpy()),
    "a TensorDataset": TensorDataset(X, Y),
    "a Dataset of dicts": Numbers(),
    "a list of dicts": [{"x": x, "y": y} for x, y in zip(X, Y, strict=True)],
    "a list of pairs": list(zip(X, Y, strict=True)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_batches_hold_each_example_once_in_a_pass(kind):
    examples = examples_in(KINDS[kind])
    assert examples.size == 10
    found = [batch.content() for batch in examples.batches(LocalWork(rate=0.1, batch=4), SEED)]
    assert [len(inputs(batch)) for batch in found] == [4, 4, 2]
    first = [
        batch["x"] if isinstance(batch, dict) else batch[0] if isinstance(batch, list | tuple) else batch for batch in found
    ]
    assert sorted(torch.cat(first)[:, 0].tolist()) == X[:, 0].tolist()


def test_numpy_numbers_of_64_bits_become_what_models_expect():
    x, y = examples_in(KINDS["numpy arrays"]).content()
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)


def test_transforms_draw_from_the_seed_anew_in_each_pass_and_the_same_each_time():
    def noises(seed):
        batches = examples_in(Numbers()).batches(LocalWork(rate=0.1, batch=5, epochs=2), seed)
        return torch.cat([batch.content()["noise"] for batch in batches])

    one, other = noises(SEED), noises(PublicSeed(9))
    assert torch.equal(one, noises(SEED))
    assert len(set(one.tolist())) == 20
    assert not set(one.tolist()) & set(other.tolist())


def test_a_reading_stays_what_it_is():
    examples = examples_in(Numbers()).read(torch.arange(4), SEED)
    assert torch.equal(examples.content()["noise"], examples.content()["noise"])
    assert torch.equal(examples.part(1, 3).content()["noise"], examples.content()["noise"][1:3])


def test_collate_makes_a_batch_of_examples_of_different_lengths():
    words = [torch.arange(length) for length in (1, 4, 2)]
    examples = examples_in(words, lambda batch: torch.nn.utils.rnn.pad_sequence(batch, batch_first=True, padding_value=-1))
    assert examples.content().tolist() == [[0, -1, -1, -1], [0, 1, 2, 3], [0, 1, -1, -1]]


def test_a_loader_keeps_its_own_batches_and_shuffles_by_the_seed():
    def order(seed):
        stream = examples_in(DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True))
        return [batch.content()[1].tolist() for batch in stream.batches(LocalWork(rate=0.1, epochs=2), seed)]

    assert order(SEED) == order(SEED) != order(PublicSeed(1))
    assert [len(batch) for batch in order(SEED)] == [4, 4, 2] * 2
    steps = examples_in(DataLoader(Endless(), batch_size=3)).batches(LocalWork(rate=0.1, steps=5), SEED)
    assert [batch.content().tolist() for batch in steps] == [[0, 1, 2], [3, 4, 5], [6], [0, 1, 2], [3, 4, 5]]


def test_forms_are_chosen_by_what_a_client_holds():
    assert type(examples_in((X, Y))) is Columns
    assert type(examples_in([X, Y])) is Items  # a list holds examples
    assert type(examples_in(DataLoader(Numbers()))) is Stream


def test_tensors_inside_of_any_form_are_found():
    nested = {"a": [X, (Y, "text")], "b": None}
    found = mapped(lambda tensor: tensor[:2], nested)
    assert found["a"][0].shape == (2, 2)
    assert found["a"][1][1] == "text"
    assert found["b"] is None


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ((x for x in X), "an object of type generator, which can be read only once"),
        ([], "has no examples"),
        (3, "an object of type int, which cannot be read item by item"),
        ((X, Y[:3]), r"Got \(10, 2\), \(3,\)"),
        ({"x": X, "scale": torch.tensor(1.0)}, "all have as many rows"),
        (np.zeros((0, 3)), "one at least"),
    ],
)
def test_data_that_cannot_be_cut_into_batches_is_refused(data, said):
    with pytest.raises(InputError, match=said):
        examples_in(data)


def test_an_iterable_dataset_is_cut_into_batches_of_the_size_that_is_asked_for():
    stream = examples_in(Endless())
    sizes = [batch.size for batch in stream.batches(LocalWork(rate=0.1, steps=3, batch=4), PublicSeed(1))]
    assert sizes == [4, 3, 4]  # a pass has seven
    assert stream.part(0, 2).size == 2
    with pytest.raises(InputError, match=r"Set algorithm\.batch, or wrap it: DataLoader"):
        next(stream.batches(LocalWork(rate=0.1, steps=3), PublicSeed(1)))


class OnlyOnce(IterableDataset):
    """Is exhausted after one pass."""

    def __init__(self):
        self.left = iter(range(4))

    def __iter__(self):
        return self.left


def test_a_loader_without_batches_is_refused_when_it_is_read():
    with pytest.raises(InputError, match="Its Dataset or its sampler is empty"):
        list(examples_in(DataLoader([], batch_size=2)).batches(LocalWork(rate=0.1), SEED))
    once = examples_in(DataLoader(OnlyOnce(), batch_size=2))
    with pytest.raises(InputError, match="exhausted after one pass"):
        list(once.batches(LocalWork(rate=0.1, epochs=2), SEED))
    with pytest.raises(InputError, match=r"algorithm\.batch = 5 has no effect"):
        list(once.batches(LocalWork(rate=0.1, batch=5), SEED))
    with pytest.raises(InputError, match="only a stream"):
        once.read(torch.arange(1), SEED)
