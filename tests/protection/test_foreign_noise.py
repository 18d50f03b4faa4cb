"""No ε is stated for a mechanism of somebody else that adds too little noise or does not clip."""

from dataclasses import dataclass

import pytest

from sketchfed.config import load_config
from sketchfed.errors import InputError
from sketchfed.privacy import GaussianNoise


@dataclass(frozen=True, kw_only=True)
class Silent(GaussianNoise):
    name = "silent"

    def noised(self, total, secret):
        return total


@dataclass(frozen=True, kw_only=True)
class Quiet(GaussianNoise):
    name = "quiet"

    def noised(self, total, secret):
        return total + (super().noised(total, secret) - total) * 0.9


@dataclass(frozen=True, kw_only=True)
class Stuck(GaussianNoise):
    """The same noise for every secret: it cancels in the difference of two rounds."""

    name = "stuck"

    def noised(self, total, secret):
        from sketchfed.seeds import SecretSeed

        return super().noised(total, SecretSeed.insecure(1))


@dataclass(frozen=True, kw_only=True)
class Unclipped(GaussianNoise):
    name = "unclipped"

    def clipped_sum(self, rows):
        return rows.sum(0)


@dataclass(frozen=True, kw_only=True)
class Unprivate(GaussianNoise):
    name = "unprivate"
    private = False


@dataclass(frozen=True, kw_only=True)
class Loud(GaussianNoise):
    name = "loud"

    def noised(self, total, secret):
        return total + (super().noised(total, secret) - total) * 1.5


def protection(kind, **privacy):
    name = f"{__name__}:{kind.__name__}"
    settings = {"name": name, "epsilon": 3.0, "delta": 1e-3, "observer": "public", **privacy}
    algorithm = {"name": "fedavg", "rounds": 10, "batch": 10}
    config = load_config({"algorithm": algorithm, "privacy": settings}).completed(dim=1_000, sizes=[200] * 20)
    return config.protection(dim=1_000, sizes=[200] * 20)


@pytest.mark.parametrize(
    "where", [{}, {"observer": "server"}, {"unit": "example", "observer": "server", "placement": "steps", "delta": 1e-5}]
)
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Silent, "deviation of 0, but"),
        (Quiet, "deviation of 0.898, but 1"),
        (Stuck, "same noise from two secrets"),
        (Unclipped, "leaves a vector of norm 3"),
        (Unprivate, "adds no noise"),
    ],
)
def test_a_mechanism_that_does_not_keep_its_word_is_refused(kind, message, where):
    with pytest.raises(InputError, match=message):
        protection(kind, **where)


def test_more_noise_than_asked_for_is_nobodys_harm():
    assert protection(Loud).budget.multiplier > 0
