"""What gradient matching gets back: that bytes are attacked, that many attacks at once are each their own, and the write-up."""

import json
import os
from dataclasses import replace

import pytest
import torch

from sketchfed.attacks import Matching, psnr
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.seeds import PublicSeed
from sketchfed.sketches import dense, make_sketch
from sketchfed.wire import unpack
from sketchfed_lab.experiments import audit_reconstruction as experiment
from sketchfed_lab.experiments import make_settings, recorded_settings
from sketchfed_lab.experiments.audit_reconstruction import (
    algorithm_of,
    arms,
    attacked,
    messages,
    observed,
    side_by_side,
    written,
)
from sketchfed_lab.experiments.audit_reconstruction_targets import Decoder, target

SETTINGS = make_settings(experiment, recorded_settings("audit-reconstruction"))
TINY = replace(
    SETTINGS,
    data=["digits"],
    families=["srht"],
    ratios=[0.1, 0.005],
    noises=[0.0, 3.0],
    victims=2,
    validation=1,
    public=300,
    channels=4,
    iterations=70,
    variations=[0.001],
)
RUN = PublicSeed(5)
needs_data = pytest.mark.skipif("SKETCHFED_DATA" not in os.environ, reason="SKETCHFED_DATA names no folder with data sets")


@pytest.fixture(scope="module")
def digits():
    return target("digits", public=100, activation="tanh", channels=4, hidden=8, seed=PublicSeed(0))


@pytest.mark.parametrize(("family", "ratio", "noise"), [("whole", 1.0, 0.0), ("count", 0.1, 0.0), ("srht", 0.1, 0.5)])
def test_what_is_attacked_is_what_the_bytes_say(digits, family, ratio, noise):
    victims, algorithm = digits.victims(2, PublicSeed(1)), algorithm_of(family, ratio)
    sent = messages(algorithm, digits.model, victims, RUN)
    for place, (message, seen) in enumerate(zip(sent, observed(algorithm, digits.model, sent, RUN, noise=noise), strict=True)):
        bare = unpack(message).arrays["values"]
        assert float((seen.values - bare).norm()) == pytest.approx(noise * float(bare.norm()), rel=0.25)
        expected = seen.seen(victims.x[place : place + 1], victims.y[place : place + 1])
        torch.testing.assert_close(bare, expected.detach(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("family", ["whole", "srht"])
def test_victims_side_by_side_are_attacked_as_each_alone(digits, family):
    """Steps are the signs of gradients, and equal but for signs of what is nearly zero."""
    victims, algorithm = digits.victims(2, PublicSeed(1)), algorithm_of(family, 0.1)
    seen = observed(algorithm, digits.model, messages(algorithm, digits.model, victims, RUN), RUN)
    attack, decoder = Matching(iterations=40), digits.decoder()
    both = attack.reconstruct(side_by_side(seen, decoder), shape=(1, 8, 8), seed=RUN, count=2, y=victims.y).x
    alone = attack.reconstruct(seen[0], shape=(1, 8, 8), seed=RUN, y=victims.y[:1]).x
    assert float((both[0] - alone[0]).abs().median()) < 1e-4  # both begin with the same numbers


def test_ranges_of_inputs_and_sharp_categories():
    decoder = Decoder(torch.tensor([-1.0, 0, 0, 0]), torch.tensor([3.0, 1, 1, 1]), columns=(1, 3), sharpness=20.0)
    numbers, *categories = decoder(torch.tensor([[0.5, 0.0, 1.0, 0.0]]))[0].tolist()
    assert numbers == 1.0
    assert categories == pytest.approx([0, 1, 0], abs=1e-6)
    plain = Decoder(decoder.low, decoder.high)
    torch.testing.assert_close(plain.units(plain(torch.full((2, 4), 0.3))), torch.full((2, 4), 0.3))


def test_a_gaussian_sketch_is_written_down_as_it_is_drawn():
    sketch = make_sketch("gaussian", dim=50, size=20, seed=PublicSeed(3))
    torch.testing.assert_close(written(sketch).matrix, dense(sketch, dtype=torch.float32))


def test_cells_are_there_once():
    """Three sizes of three families, two noises on the whole change, and one more on a sketch that is there without."""
    settings = replace(SETTINGS, data=["mnist", "adult"], ratios=[1.0, 0.1, 0.01], noises=[0.0, 1.0])
    cells = [tuple(arm.key[name] for name in ("data", "family", "ratio", "noise")) for arm in arms(settings)]
    assert len(cells) == len(set(cells)) == 2 * (3 * 3 + 2 + 1)
    assert ("mnist", "srht", 0.1, 0.0) in cells


def test_everything_runs_and_is_not_run_twice(tmp_path, monkeypatch):
    experiment.run(TINY, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    found = {(row["key"]["family"], row["key"]["ratio"], row["key"]["noise"]): row for row in rows}
    assert len(found) == 5
    clear, small = found["whole", 1.0, 0.0], found["srht", 0.005, 0.0]
    assert min(clear["scores"]["psnr"]) > 17 > clear["chance"]["psnr"]
    assert clear["failures"] == clear["broken"] == 0
    assert clear["labels"] == 1.0
    assert max(small["scores"]["psnr"]) < 15  # 7 numbers for 64 pixels
    assert found["whole", 1.0, 3.0]["epsilon"] > found["srht", 0.1, 3.0]["epsilon"] > 1
    assert clear["bytes"] > 4 * clear["dim"] > 4 * small["size"]
    written_files = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert written_files.keys() == {"results.jsonl", "table.md", "figure.svg"}
    assert "| digits | nothing |" in written_files["table.md"]
    assert "| digits | whole change | 1 |" in written_files["table.md"]
    monkeypatch.setattr(experiment, "target", None)
    experiment.run(TINY, tmp_path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == written_files


@needs_data
def test_rows_of_a_census_come_back_through_a_twentieth():
    """178 numbers for 108 inputs; the modes of public data have about half of the categories right."""
    settings = replace(TINY, iterations=100, data=["adult"], families=["count"], ratios=[0.05], sharpness=[8.0], hidden=32)
    row = attacked(arms(settings)[0])
    assert min(row["scores"]["categories"]) > 0.8 > row["chance"]["categories"]
    assert max(row["scores"]["numbers"]) < 0.5 * row["chance"]["numbers"]


@needs_data
def test_colours_are_compared_as_pixels():
    aim = target("cifar10", public=50, activation="tanh", channels=2, hidden=8, seed=PublicSeed(0))
    pixels = aim.data.x_test[:1].movedim(-1, 1) / 255
    torch.testing.assert_close(aim.decoder().units(aim.data.prepare(aim.data.x_test[:1])), pixels, atol=1e-4, rtol=0)
    assert psnr(pixels, pixels).item() == 100


def test_what_cannot_be_attacked_is_refused():
    with pytest.raises(InputError, match=r"8 at most, got victims = 9"):
        replace(SETTINGS, victims=9)
    with pytest.raises(UnknownNameError, match=r"activation"):
        replace(SETTINGS, activation="swish")


@needs_data
def test_rows_of_unknown_columns_are_refused():
    with pytest.raises(InputError, match=r"'a9a' has neither images nor columns that are known"):
        target("a9a", public=5, activation="tanh", channels=2, hidden=2, seed=RUN)
