"""Rényi divergences: published values, discrete noise, and the conversion to ε."""

import math
from dataclasses import replace

import numpy as np
import pytest
from charges import claim, spent
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import logsumexp

from sketchfed.privacy.accounting import accounted, epsilon_of
from sketchfed.privacy.claims import Charge
from sketchfed.privacy.divergences import (
    ALL_ORDERS,
    gaussian_epsilon,
    renyi,
    renyi_epsilons,
)

MNIST = 60_000


# Published values.


@pytest.mark.parametrize(
    ("multiplier", "batch", "epochs", "published"),
    [
        (1.12, 256, 60, 2.92),  # TensorFlow Privacy, tutorials/README.md of 2019
        (0.6, 256, 30, 9.74),
        (1.2, 256, 10, 1.20),
        (1.3, 256, 20, 1.34),  # Bu, Dong, Long, Su 2020, Fig. 4, the moments accountant's
        (0.7, 256, 70, 8.68),
    ],
)
def test_renyi_divergences_give_the_published_figures_for_mnist(multiplier, batch, epochs, published):
    """Those used the plain conversion ε = D + ln(1/δ)/(α − 1); the better one, and PLD, must be below."""
    orders = tuple(order for order in ALL_ORDERS if order < 64)
    steps = epochs * MNIST // batch
    divergence = steps * renyi(multiplier, batch / MNIST, orders)
    plain = (divergence + math.log(1e5) / (np.asarray(orders) - 1)).min()
    assert plain == pytest.approx(published, abs=0.02)
    by_rdp = spent(multiplier, steps, sampling=batch / MNIST, about=claim(accountant="rdp"))
    assert spent(multiplier, steps, sampling=batch / MNIST) < by_rdp < published


def test_the_moments_accountant_s_example_of_abadi_et_al():
    """Abadi et al. 2016, Sec. 4: q = 0.01, σ = 4, 10,000 steps, δ = 1e-5: ε ≈ 1.26, where strong composition had 9.34."""
    orders = tuple(float(order) for order in range(2, 34))  # they took moments 1 to 32
    divergence = 10_000 * renyi(4.0, 0.01, orders)
    assert (divergence + math.log(1e5) / (np.asarray(orders) - 1)).min() == pytest.approx(1.26, abs=0.005)
    assert spent(4.0, 10_000, sampling=0.01) < spent(4.0, 10_000, sampling=0.01, about=claim(accountant="rdp")) < 1.26


OPACUS = {  # opacus 1.6.0, accountants.analysis.rdp.compute_rdp at these orders
    (0.01, 0.78): [3.0115973526e-4, 4.1731777753e-4, 8.5472922400e-4, 1.0619709225e-3, 1.3127421134],
    (256 / MNIST, 1.1): [1.7479784543e-5, 2.3395776010e-5, 4.1425745894e-5, 4.7533352361e-5, 9.8341061780e-5],
    (0.1, 4.0): [4.8213448231e-4, 6.4473670180e-4, 1.1383703587e-3, 1.3048954499e-3, 2.6744986198e-3],
    (1.0, 2.0): [0.1875, 0.25, 0.4375, 0.5, 1.0],
}


OPACUS_ORDERS = (1.5, 2.0, 3.5, 4.0, 8.0)


OPACUS_EPSILON = {(0.01, 0.78, 300): 2.8276144, (256 / MNIST, 1.1, 14_062): 2.5965559, (0.01, 4.0, 10_000): 1.0354901}


@pytest.mark.parametrize(("sampling", "multiplier"), OPACUS)
def test_renyi_divergences_are_those_of_opacus(sampling, multiplier):
    found, theirs = renyi(multiplier, sampling, OPACUS_ORDERS), np.array(OPACUS[sampling, multiplier])
    whole = [1, 3, 4]
    assert found[whole] == pytest.approx(theirs[whole], rel=1e-6)
    assert (found >= theirs * (1 - 1e-6)).all()  # at the others the series of dp_accounting is an upper bound
    assert (found <= theirs * 1.4).all()


@pytest.mark.parametrize(("sampling", "multiplier", "times"), OPACUS_EPSILON)
def test_epsilon_by_rdp_is_that_of_opacus(sampling, multiplier, times):
    found = spent(multiplier, times, sampling=sampling, about=claim(accountant="rdp"))
    assert found == pytest.approx(OPACUS_EPSILON[sampling, multiplier, times], rel=1e-4)


def test_opacus_itself_agrees_where_it_is_installed():
    analysis = pytest.importorskip("opacus.accountants.analysis.rdp", exc_type=ImportError)
    found = analysis.compute_rdp(q=0.02, noise_multiplier=0.9, steps=1, orders=list(OPACUS_ORDERS))
    assert renyi(0.9, 0.02, OPACUS_ORDERS)[[1, 3, 4]] == pytest.approx(found[[1, 3, 4]], rel=1e-6)


# Rényi divergences and discrete noise.


def discrete(deviation, mean=0, reach=60):
    """The logarithms of the masses of a discrete Gaussian on −reach..reach."""
    loose = -((np.arange(-reach, reach + 1) - mean) ** 2) / (2 * deviation**2)
    return loose - logsumexp(loose)


def mixed_with(sampling, base, shifted):
    return np.logaddexp(math.log1p(-sampling) + base, math.log(sampling) + shifted) if sampling < 1 else shifted


def divergence(p, q, order):
    """D of that order of two distributions whose logarithms are given."""
    return logsumexp(order * p + (1 - order) * q) / (order - 1)


@pytest.mark.parametrize(("deviation", "shift"), [(0.6, 1), (1.3, 2), (4.0, 3)])
@pytest.mark.parametrize("sampling", [0.05, 0.5])
def test_sampled_discrete_noise_is_as_good_as_continuous_at_whole_orders(deviation, shift, sampling):
    base = discrete(deviation)
    mixed = mixed_with(sampling, base, discrete(deviation, shift))
    orders = (2.0, 3.0, 5.0, 8.0)
    found = [divergence(mixed, base, order) for order in orders]
    assert found == pytest.approx(renyi(deviation / shift, sampling, orders), rel=1e-9)
    assert all(divergence(base, mixed, order) <= more * (1 + 1e-9) for order, more in zip(orders, found, strict=True))


def test_at_other_orders_coarse_discrete_noise_can_be_worse_than_continuous():
    """Why sampled discrete charges use whole orders only."""
    base = discrete(0.5)
    found = divergence(mixed_with(0.001, base, discrete(0.5, 1)), base, 1.1)
    x = np.linspace(-40, 40, 400_001)
    like = stats.norm.logpdf(x, 0, 0.5)
    mixed = mixed_with(0.001, like, stats.norm.logpdf(x, 1, 0.5))
    continuous = divergence(mixed + math.log(x[1] - x[0]) / 1.1, like, 1.1)  # the width of a cell once in the integral
    assert found / continuous == pytest.approx(1.032, abs=2e-3)


@pytest.mark.parametrize("order", [1.5, 2.5, 3.7, 12.0])
def test_unsampled_discrete_noise_is_as_good_at_every_order(order):
    """Canonne, Kamath, Steinke 2020, Thm 4: exactly at whole orders, better between them."""
    found = divergence(discrete(0.5, 1), discrete(0.5), order)
    assert found <= renyi(0.5, 1.0, (order,))[0] * (1 + 1e-9)


@pytest.mark.parametrize("sampling", [0.1, 1.0])
def test_slack_covers_that_a_sum_of_discrete_gaussians_is_not_one(sampling):
    one, far = discrete(0.5, reach=40), 25
    base = np.array(
        [
            logsumexp(one[max(0, at) : 81 + min(0, at)] + one[::-1][max(0, -at) : 81 + min(0, -at)])
            for at in range(-far, far + 1)
        ]
    )
    like = discrete(0.5 * math.sqrt(2), reach=far)
    slack = np.abs(base - like).max()
    mixed = mixed_with(sampling, base[1:], base[:-1])
    for order in (2, 3, 5):
        bound = renyi(0.5 * math.sqrt(2), sampling, (float(order),))[0] + (2 * order - 1) / (order - 1) * slack
        assert divergence(mixed, base[1:], order) <= bound
    assert 1e-4 < slack < 0.3


def test_discrete_charges_that_do_not_say_how_coarse_they_are_are_accounted_by_rdp_and_say_so():
    charge = Charge(multiplier=4.0, sampling=0.1, discrete=True)
    assert epsilon_of({charge: 50}, claim()) == epsilon_of({charge: 50}, claim(accountant="rdp"))
    assert accounted(claim(), {charge: 50}).text.endswith("(RDP)")
    assert accounted(claim(), [Charge(multiplier=1.0)]).text.endswith("(PLD)")
    assert epsilon_of({replace(charge, slack=1e-3): 50}, claim()) > epsilon_of({charge: 50}, claim())


@pytest.mark.parametrize(
    ("multiplier", "sampling", "times"), [(1.0, 1.0, 1), (20.0, 1.0, 200), (0.8, 0.01, 300), (4.0, 0.1, 200)]
)
def test_rdp_is_never_below_pld(multiplier, sampling, times):
    tight = spent(multiplier, times, sampling=sampling)
    assert tight <= spent(multiplier, times, sampling=sampling, about=claim(accountant="rdp")) <= 1.4 * tight


@given(st.floats(1e-6, 5e-3), st.floats(1e-9, 1e-2))
def test_the_conversion_from_renyi_divergences_is_above_the_truth(pull, delta):
    orders = ALL_ORDERS
    found = renyi_epsilons(np.asarray(orders)[None] * pull / 2, orders, delta)[0]
    assert found >= gaussian_epsilon(1 / math.sqrt(pull), delta)
