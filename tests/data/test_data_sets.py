"""The data sets themselves: names, options, digits always, and the published numbers of those that are stored."""

import sys
from pathlib import Path

import pytest
import torch

from sketchfed.data import ADULT_CATEGORIES, ADULT_NUMBERS, DATA_SETS, PARTITIONS, load
from sketchfed.data.files import VARIABLE
from sketchfed.data.images import CIFAR10_DEVIATION, CIFAR10_MEAN
from sketchfed.data.shakespeare import ALPHABET
from sketchfed.errors import InputError, UnknownNameError

# Class counts that the publishers or their papers state: training, then test.
COUNTS = {
    "mnist": (
        [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
        [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
    ),
    "fashion_mnist": ([6000] * 10, [1000] * 10),
    "cifar10": ([5000] * 10, [1000] * 10),
    "adult": ([24720, 7841], [12435, 3846]),
    "a9a": ([24720, 7841], [12435, 3846]),
}


def counts(y):
    return torch.bincount(y).tolist()


def test_digits_need_no_file_and_are_split_once_and_for_all(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    data = load("digits")
    assert data.x_train.shape == (1438, 64)
    assert data.x_test.shape == (359, 64)
    together = torch.cat([data.y_train, data.y_test])
    assert counts(together) == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert data.y_test[:12].tolist() == [4, 8, 9, 2, 3, 5, 0, 9, 8, 4, 2, 3]
    prepared = data.prepare(data.x_train)
    assert float(prepared.min()) == 0
    assert float(prepared.max()) == 1
    assert torch.equal(16 * prepared, data.x_train.float())


def test_names_options_and_own_functions_are_checked(tmp_path, monkeypatch):
    with pytest.raises(UnknownNameError, match=r"no data set named 'mnits'\. Did you mean 'mnist'"):
        load("mnits")
    with pytest.raises(UnknownNameError, match=r"named None.*package\.module:function for your own"):
        load(None)
    with pytest.raises(InputError, match=r"data set 'digits' has no option 'window'; it has none"):
        load("digits", window=3)
    with pytest.raises(InputError, match=r"'shakespeare' has no option 'widow'; it has window, shortest"):
        load("shakespeare", widow=3)
    (tmp_path / "own_sets.py").write_text(
        "from dataclasses import replace\nfrom sketchfed.data import load\n"
        "def few(*, count):\n    data = load('digits')\n"
        "    return replace(data, name='few', x_train=data.x_train[:count], y_train=data.y_train[:count])\n"
        "def wrong():\n    return 3\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert len(load("own_sets:few", count=5).x_train) == 5
    with pytest.raises(InputError, match=r"'own_sets:few' has no option 'cuont'; it has count"):
        load("own_sets:few", cuont=5)
    with pytest.raises(InputError, match=r"'own_sets:few' needs the option 'count'"):
        load("own_sets:few")
    with pytest.raises(InputError, match=r"'own_sets:wrong' must return a sketchfed.data.DataSet, but returned a int"):
        load("own_sets:wrong")


def test_the_page_about_data_lists_every_data_set_and_partition():
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    assert [name for name in [*DATA_SETS, *PARTITIONS] if f"| `{name}`" not in page] == []


@pytest.mark.parametrize("name", COUNTS)
def test_stored_sets_have_the_published_class_counts(name, stored):
    data = stored(name)
    assert (counts(data.y_train), counts(data.y_test)) == COUNTS[name]
    assert data.outputs == len(COUNTS[name][0])


def test_cifar10_is_standardised_with_its_own_statistics_and_in_order(stored):
    data = stored("cifar10")
    assert data.y_train[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert data.y_test[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    pixels = data.x_train.reshape(-1, 3)
    histogram = torch.stack([torch.bincount(pixels[:, channel], minlength=256) for channel in range(3)]).double()
    levels, share = torch.arange(256).double() / 255, histogram / len(pixels)
    mean = share @ levels
    assert mean.tolist() == pytest.approx(CIFAR10_MEAN, abs=5e-5)
    assert (share @ levels.square() - mean.square()).sqrt().tolist() == pytest.approx(CIFAR10_DEVIATION, abs=6e-5)
    prepared = data.prepare(data.x_train[:3])
    red = float(data.x_train[2, 5, 7, 0]) / 255
    assert float(prepared[2, 0, 5, 7]) == pytest.approx((red - CIFAR10_MEAN[0]) / CIFAR10_DEVIATION[0], rel=1e-5)


def test_adult_is_standardised_and_spread_out(stored):
    data = stored("adult")
    prepared = data.prepare(data.x_train).double()
    numbers, categories = prepared[:, : len(ADULT_NUMBERS)], prepared[:, len(ADULT_NUMBERS) :]
    assert numbers.mean(0).abs().max() < 1e-4
    assert (numbers.std(0) - 1).abs().max() < 1e-3
    assert (categories.sum(1) == len(ADULT_CATEGORIES)).all()
    assert (categories.sum(0) > 0).all()
    sex = categories[:, -sum(list(ADULT_CATEGORIES.values())[-2:]) :][:, :2]
    assert sex.sum(0).tolist() == [10771, 21790]


def test_a9a_rows_are_zeros_and_ones_of_adult(stored):
    data = stored("a9a")
    assert data.prepare(data.x_train).unique().tolist() == [0, 1]
    assert int(data.x_train.sum(1).max()) == 14
    assert torch.equal(data.y_train, stored("adult").y_train)


def test_ujiindoorloc_has_its_users_phones_and_floors(stored):
    data = stored("ujiindoorloc")
    assert (len(data.x_train), len(data.x_test)) == (19937, 1111)
    assert int(data.groups.max()) == 17
    assert int(stored("ujiindoorloc", by="phone").groups.max()) == 15
    assert [floor for floor in range(15) if not counts(data.y_train)[floor]] == [4, 9]
    assert int((data.prepare(data.x_train).sum(1) == 0).sum()) == 76
    assert stored("ujiindoorloc", target="position").y_train.shape == (19937, 2)


def test_shakespeare_keeps_most_of_the_text(stored):
    data = stored("shakespeare")
    assert int(data.groups.max()) == 140
    assert data.y_train.unique().numel() >= 60
    assert data.outputs == len(ALPHABET) == 65
    assert 0.9 * 1_060_000 > len(data.x_train) > 0.8 * 1_060_000
    assert int(torch.bincount(data.groups).min()) >= 900 - 16
    first = "".join(ALPHABET[code] for code in data.x_train[0])
    assert first == "Before we procee"
