"""Partitions: what holds for all of them, and what is particular to each."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from odds import mean_interval, uniformity
from sketchfed import PublicSeed
from sketchfed.data import PARTITIONS, DataSet, load, partition
from sketchfed.data.partitions import _filled_up
from sketchfed.errors import InputError, UnknownNameError

SEED = PublicSeed(7)


def examples(labels, *, groups=None, outputs=None, task="classification") -> DataSet:
    y = torch.as_tensor(labels)
    x = torch.zeros(len(y), 1)
    return DataSet(
        name="made",
        x_train=x,
        y_train=y,
        x_test=x[:1],
        y_test=y[:1],
        task=task,
        outputs=outputs or int(y.max()) + 1,
        shape=(1,),
        groups=groups,
        prepare=lambda x: x,
    )


def sizes(parts):
    return [len(part) for part in parts]


@pytest.fixture(scope="module")
def digits():
    data = load("digits")
    return replace(data, groups=torch.arange(len(data.x_train)) % 40)


@pytest.mark.parametrize("name", PARTITIONS)
@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**64 - 1),
    concentration=st.sampled_from([5e-324, 1e-9, 0.1, 1, 1e300]),
)
@settings(deadline=None, max_examples=50, derandomize=True)
def test_every_example_has_one_client_and_every_client_an_example(name, labels, share, seed, concentration):
    groups = torch.as_tensor(labels) * 3
    most = {"natural": len(set(labels)), "shards": max(1, len(labels) // 2)}.get(name, len(labels))
    clients = max(1, round(share * most))
    options = {"concentration": concentration} if name in ("dirichlet", "quantity") else {}
    if name == "shards" and len(labels) == 1:
        options = {"shards": 1}
    parts = partition(examples(labels, groups=groups), name=name, clients=clients, seed=PublicSeed(seed), **options)
    assert len(parts) == clients
    assert min(sizes(parts)) >= 1
    assert all(part.dtype == torch.int64 and (part.diff() > 0).all() for part in parts)
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(len(labels)))


@pytest.mark.parametrize("name", PARTITIONS)
def test_the_seed_decides_everything(name, digits):
    first, again, other = (partition(digits, name=name, clients=20, seed=seed) for seed in (SEED, PublicSeed(7), PublicSeed(8)))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize(
    ("name", "frozen"),
    [
        ("iid", [[3, 6, 7], [1, 2, 10], [4, 5, 9], [0, 8, 11]]),
        ("shards", [[0, 3, 7, 10], [1, 6, 9], [4, 11], [2, 5, 8]]),
        ("natural", [[0, 1, 10, 11], [2, 3, 8, 9], [4, 5], [6, 7]]),
    ],
)
def test_what_needs_no_dirichlet_draw_is_frozen_for_all_time(name, frozen):
    data = examples([0, 1, 2] * 4, groups=torch.arange(12) // 2)
    assert [part.tolist() for part in partition(data, name=name, clients=4, seed=SEED)] == frozen


@pytest.mark.parametrize("name", ["iid", "shards", "dirichlet", "quantity"])
def test_ten_thousand_clients_all_get_something(name):
    data = examples(np.repeat(np.arange(10), 6_000))
    parts = partition(data, name=name, clients=10_000, seed=SEED)
    assert len(parts) == 10_000
    assert min(sizes(parts)) >= 1


def test_iid_sizes_differ_by_at_most_one(digits):
    parts = partition(digits, clients=7, seed=SEED)
    assert max(sizes(parts)) - min(sizes(parts)) == 1


def test_iid_mixes_classes():
    """χ² that each of 10 clients has each of 10 classes equally often among 20,000; false alarm below 1e-6."""
    data = examples(np.arange(20_000) % 10)
    parts = partition(data, clients=10, seed=SEED)
    assert uniformity([torch.bincount(data.y_train[part], minlength=10).numpy() for part in parts]) > 1e-6


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_shards_hold_one_class_each_when_they_fit_the_classes(shards):
    data = examples(np.arange(1_000) % 10)
    parts = partition(data, name="shards", clients=20, shards=shards, seed=SEED)
    assert set(sizes(parts)) == {50}
    classes = [len(data.y_train[part].unique()) for part in parts]
    assert max(classes) == shards
    pieces = torch.stack([torch.bincount(data.y_train[part], minlength=10) for part in parts]) % (50 // shards)
    assert not pieces.any()


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_dirichlet_skews_labels_as_its_distribution_says(alpha):
    """With shares p, q of two classes over n clients, E Σp² = (α + 1)/(nα + 1), and E Σpq = 1/n as classes are independent.

    False alarm below 2e-6 for each α, by Student's t over 250 draws; a mean that is off by 0.47 standard deviations is found
    with probability 0.99, and so is α off by a factor of 2. Rounding to whole examples of 10,000 a class moves either sum by
    2e-4 at most, and filling up empty clients by 8e-4: together the slack.
    """
    data, same, across = examples(np.arange(20_000) % 2), [], []
    for trial in range(250):
        parts = partition(data, name="dirichlet", clients=5, concentration=alpha, seed=SEED.child("trial", trial))
        p, q = np.array([torch.bincount(data.y_train[part], minlength=2).numpy() for part in parts]).T / 10_000
        same.append(p @ p)
        across.append(p @ q)
    for samples, expected in ((same, (alpha + 1) / (5 * alpha + 1)), (across, 1 / 5)):
        low, high = mean_interval(samples, false_alarm=1e-6)
        assert low - 1e-3 <= expected <= high + 1e-3


def test_dirichlet_rounding_favours_nobody():
    """At huge α each of 100 clients expects half an example of each of 40 classes: χ² of who gets them; below 1e-6.

    Counts vary less than independent draws would, so the test is on the safe side.
    """
    data, totals = examples(np.repeat(np.arange(40), 50)), np.zeros(100)
    for trial in range(50):
        parts = partition(data, name="dirichlet", clients=100, concentration=1e6, seed=SEED.child("trial", trial))
        totals += sizes(parts)
    assert uniformity(totals) > 1e-6


@pytest.mark.parametrize("name", ["dirichlet", "quantity"])
@pytest.mark.parametrize("minimum", [1, 10, 1438 // 50])
def test_every_client_has_the_minimum(name, minimum, digits):
    parts = partition(digits, name=name, clients=50, concentration=0.05, minimum=minimum, seed=SEED)
    assert min(sizes(parts)) == minimum


def test_filling_up_moves_no_more_examples_than_are_missing():
    owners = np.repeat(np.arange(6), [30, 0, 12, 4, 0, 14])
    filled = _filled_up(owners, 6, 5, SEED)
    assert (owners != filled).sum() == 5 + 1 + 5
    counts = np.bincount(filled)
    assert counts[[1, 3, 4]].tolist() == [5, 5, 5]
    assert (counts[[0, 2, 5]] >= 5).all()
    assert np.bincount(_filled_up(owners, 6, 10, SEED)).tolist() == [10] * 6


def test_quantity_skews_sizes_but_not_labels():
    """χ² of the largest client's 10 classes; false alarm below 1e-6. Sizes have the moments that `dirichlet` is tested for."""
    data = examples(np.arange(50_000) % 10)
    parts = partition(data, name="quantity", clients=10, concentration=0.1, seed=SEED)
    assert max(sizes(parts)) > 10 * min(sizes(parts))
    largest = max(parts, key=len)
    assert uniformity(torch.bincount(data.y_train[largest], minlength=10)) > 1e-6


def test_natural_clients_are_the_groups():
    data = examples([0, 1, 2, 3, 0], groups=torch.tensor([50, 7, 50, 9, 7]))
    assert [part.tolist() for part in partition(data, name="natural", seed=SEED)] == [[1, 4], [3], [0, 2]]
    assert [part.tolist() for part in partition(data, name="natural", clients=3, seed=SEED)] == [[1, 4], [3], [0, 2]]


def test_natural_groups_stay_whole_when_dealt_to_fewer_clients(digits):
    parts = partition(digits, name="natural", clients=9, seed=SEED)
    owned = [set(digits.groups[part].tolist()) for part in parts]
    assert sorted(len(groups) for groups in owned) == [4] * 5 + [5] * 4
    assert set.union(*owned) == set(range(40))


def test_partitions_that_cannot_work_are_refused(digits):
    bare = load("digits")
    for name in ("iid", "dirichlet", "quantity", "shards"):
        with pytest.raises(InputError, match=r"1,439 clients are more than the 1,438 .* Use clients <= 1,438"):
            partition(digits, name=name, clients=1_439, seed=SEED)
        with pytest.raises(InputError, match=f"'{name}' needs the number of clients"):
            partition(digits, name=name, seed=SEED)
    with pytest.raises(InputError, match=r"2 shards for each of 1,000 clients are 2,000.* Use clients <= 719"):
        partition(digits, name="shards", clients=1_000, seed=SEED)
    with pytest.raises(InputError, match=r"40 groups in data set 'digits', too few for 41"):
        partition(digits, name="natural", clients=41, seed=SEED)
    with pytest.raises(InputError, match=r"'digits' has no natural groups.* such as 'dirichlet'"):
        partition(bare, name="natural", seed=SEED)
    with pytest.raises(InputError, match=r"at least 15 examples need 1,500, but there are 1,438.* minimum <= 14"):
        partition(digits, name="dirichlet", clients=100, minimum=15, seed=SEED)
    with pytest.raises(UnknownNameError, match=r"Did you mean 'dirichlet'\?"):
        partition(digits, name="dirichlett", clients=3, seed=SEED)
    with pytest.raises(InputError, match=r"partition 'iid' has no option 'shards'; it has none"):
        partition(digits, clients=3, seed=SEED, shards=2)
    with pytest.raises(InputError, match=r"partition 'dirichlet' has no option 'alpha'; it has concentration, minimum"):
        partition(digits, name="dirichlet", clients=3, seed=SEED, alpha=2)
    with pytest.raises(InputError, match="seed must be a PublicSeed"):
        partition(digits, clients=3, seed=7)


def test_regressions_have_no_classes_to_go_by():
    data = examples(torch.randn(20, 1), outputs=1, task="regression")
    for name in ("shards", "dirichlet"):
        with pytest.raises(InputError, match=f"'{name}' goes by classes.* Use 'iid', 'quantity' or 'natural'"):
            partition(data, name=name, clients=3, seed=SEED)
    assert sum(sizes(partition(data, name="quantity", clients=3, seed=SEED))) == 20


@pytest.mark.parametrize(
    ("name", "option", "bad"),
    [
        ("iid", "clients", [0, -1, 2.0, True, "3"]),
        ("shards", "shards", [0, -1, 2.0, True]),
        ("dirichlet", "minimum", [0, 1.0, True]),
        ("dirichlet", "concentration", [0, -0.5, float("nan"), float("inf"), True, "1"]),
        ("quantity", "concentration", [0, float("nan")]),
    ],
)
def test_options_must_be_positive_numbers(name, option, bad, digits):
    for value in bad:
        with pytest.raises(InputError, match=f"{option} must be a positive"):
            partition(digits, name=name, seed=SEED, **{"clients": 3, option: value})
