"""What the adversary may have beside the wire, and who is a canary."""

from dataclasses import replace

import pytest
import torch
from scipy.stats import binom

from sketchfed import PublicSeed
from sketchfed.audits.canaries import with_canaries
from sketchfed.audits.intervals import median_interval
from sketchfed.audits.outside import Outside
from sketchfed.config import load_config
from sketchfed.errors import InputError
from sketchfed.runs.workload import from_config

SEED = PublicSeed(5)


@pytest.fixture(scope="module")
def workload():
    return from_config(load_config({"data": {"name": "digits", "clients": 4}}))


def rows(x):
    return {row.numpy().tobytes() for row in x}


def test_what_the_adversary_knows_is_held_out_and_shared_with_nobody(workload):
    outside = Outside.of(workload, SEED)
    trained = rows(workload.dataset.prepare(workload.dataset.x_train))
    assert rows(outside.known.x).isdisjoint(rows(outside.others.x))
    assert len(rows(outside.known.x) & trained) <= 1  # two people may write alike
    assert outside.image == (1, 8, 8)
    assert outside.pictures(outside.known.x[:2]).shape == (2, 1, 8, 8)


def test_the_recogniser_knows_what_it_was_shown(workload):
    outside = Outside.of(workload, SEED)
    said = outside.recogniser(outside.known.x[:50]).argmax(1)
    assert torch.equal(said, outside.known.y[:50])
    others = outside.recogniser(outside.others.x).argmax(1)
    assert float((others == outside.others.y).float().mean()) > 0.85


def test_a_quarter_has_the_property_of_images_and_some_have_that_of_columns(workload):
    outside = Outside.of(workload, SEED)
    assert float(outside.property.has(outside.known.x).float().mean()) == pytest.approx(0.25, abs=0.02)
    columns = Outside(known=outside.known, others=outside.others, image=None)
    assert 0.05 < float(columns.property.has(outside.known.x).float().mean()) < 0.6


def test_canaries_are_in_the_data_where_the_coin_says_so_and_wrongly_labelled(workload):
    changed, canaries = with_canaries(workload, 40, SEED)
    data = changed.dataset
    true = {row.numpy().tobytes(): int(label) for row, label in zip(
        workload.dataset.prepare(workload.dataset.x_test), workload.dataset.y_test, strict=True
    )}  # fmt: skip
    assert all(true[x.numpy().tobytes()] != int(y) for x, y in zip(*canaries.examples, strict=True))
    held = [rows(data.prepare(data.x_train[part])) for part in changed.parts]
    for x, client, there in zip(canaries.examples.x, canaries.clients, canaries.included, strict=True):
        assert (x.numpy().tobytes() in held[int(client)]) == there
    assert rows(data.prepare(data.x_test)).isdisjoint(rows(canaries.examples.x))
    assert len(data.x_test) == len(workload.dataset.x_test) - 40
    assert len(workload.parts[0]) < len(changed.parts[0])


def test_about_half_of_the_canaries_are_there(workload):
    """False alarm below 1e-6 by the binomial distribution."""
    _, canaries = with_canaries(workload, 80, SEED)
    low, high = binom.interval(1 - 1e-6, 80, 0.5)
    assert low <= canaries.included.sum() <= high


def test_too_many_canaries_are_refused(workload):
    with pytest.raises(InputError, match="quarter of the 359 held-out"):
        with_canaries(workload, 200, SEED)


def test_the_interval_of_a_median_misses_as_rarely_as_it_says():
    """400 samples of nine; an interval that misses with 4 % misses more than 40 times with a chance below 1e-6."""
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(400, 9, generator=generator).exp()
    missed = sum(not low <= 1.0 <= high for _, low, high in (median_interval(row.tolist()) for row in samples))
    assert missed <= binom.isf(1e-6, 400, 2 * binom.cdf(1, 9, 0.5))


def test_few_values_give_their_range():
    assert median_interval([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)
    assert median_interval([4.0]) == (4.0, 4.0, 4.0)


def test_rows_of_a_table_have_no_pictures(workload):
    outside = replace(Outside.of(workload, SEED), image=None)
    with pytest.raises(InputError, match=r"examples of shape \(64,\) are not known to be images. Give image = "):
        outside.pictures(outside.known.x[:2])
