"""The table of docs/privacy.md that says how near a charge of discrete noise is to the exact ε."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from outcomes import exact_epsilon, neighbours

from sketchfed.privacy import DiscreteGaussian
from sketchfed.privacy.accounting import epsilon_of
from sketchfed.privacy.claims import Charge, Claim

PAGE = Path(__file__).parents[2] / "docs" / "privacy.md"
CLAIM = Claim(unit="client", adjacency="add-remove", observer="server", delta=1e-5)
RELEASES = ((1.0, 1), (1.0, 10), (1.0, 100), (0.1, 50), (0.02, 300))
PLANNED = {
    "planned, 3 of 3 stay, multiplier 0.5: 353": {"multiplier": 0.5, "clients": 3, "least": 3},
    "planned, 7 of 10 stay, multiplier 1: 590": {"multiplier": 1.0, "clients": 10, "least": 7},
    "planned, 70 of 100 stay, 50 vectors each, multiplier 0.8: 331": {
        "multiplier": 0.8,
        "clients": 100,
        "least": 70,
        "units": 50,
    },
}


def rows():
    """The cells of every row of the table."""
    text = PAGE.read_text(encoding="utf-8").split("### How near the charge is")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines[2:]]


@pytest.mark.slow
@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row[0]}-{row[1]}")
def test_the_table_has_the_charge_over_the_exact_epsilon(row):
    noise, longest, *ratios = row
    if noise in PLANNED:
        setting = PLANNED[noise]
        mechanism = DiscreteGaussian.planned(size=9_098, clip=1.0, **setting)
        charge = mechanism.charge(setting["least"])
        assert (round(charge.deviation), round(mechanism.sensitivity)) == (int(noise.rsplit(" ", 1)[1]), int(longest))
        shift = math.floor(mechanism.sensitivity)
    else:
        shift = int(longest)
        charge = Charge(multiplier=float(noise) / shift, discrete=True, deviation=float(noise), size=1_000)
    for (sampling, times), ratio in zip(RELEASES, ratios, strict=True):
        exact = exact_epsilon(*neighbours(charge.deviation, (shift,), sampling), CLAIM.delta, times)
        if ratio == "–":
            assert exact > 200
        else:
            charged = epsilon_of({replace(charge, sampling=sampling): times}, CLAIM)
            assert charged / exact == pytest.approx(float(ratio), abs=1.1e-3)
