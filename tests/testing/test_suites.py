"""The public suites: how they run, and that they find what is wrong with a part."""

import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import pytest
import torch

from sketchfed import PublicSeed
from sketchfed.algorithms import Algorithm, FedAvg, Iterative, PrivateIterative
from sketchfed.algorithms.forms import WholeModel
from sketchfed.codecs import Dense
from sketchfed.errors import DivergedError, InputError, WireError
from sketchfed.sketches.count import Count
from sketchfed.testing import AlgorithmConformance, CodecConformance, SketchConformance, demands

SUITES = [SketchConformance, CodecConformance, AlgorithmConformance]


@dataclass(frozen=True, kw_only=True)
class Forgetful(Dense):
    """Declares a linear code, and then decodes the first packet alone."""

    def _decode(self, packets, seed, knowledge):
        return super()._decode(packets[:1], seed, knowledge)


@dataclass(frozen=True, kw_only=True)
class Trusting(Dense):
    """Reads whatever array comes first."""

    def norm(self, packet, seed):
        return float(next(iter(packet.arrays.values()), torch.zeros(1)).double().norm())


@dataclass(frozen=True, kw_only=True)
class Skewed(Count):
    """Twice as long as it should be."""

    def apply(self, x):
        return 2 * super().apply(x)


@dataclass(frozen=True, kw_only=True)
class Median(FedAvg):
    """Inherits the code of FedAvg, though sums have no median."""

    def server(self, state, packets, seed, *, noise=0.0):
        if len(packets) < 2:
            raise WireError("a median needs several changes.")
        return super().server(state, packets, seed, noise=noise)


@dataclass(frozen=True, kw_only=True)
class Moving(FedAvg):
    """Its default grows each time it is filled in."""

    def resolved(self, dim, clients=None, module=None):
        found = super().resolved(dim, clients, module)
        return type(self)(codec=found.codec, global_rate=2 * found.global_rate)


@dataclass(frozen=True, kw_only=True)
class Careless(FedAvg):
    """Throws the velocity away after each round."""

    def server(self, state, packets, seed, *, noise=0.0):
        after, update = super().server(state, packets, seed, noise=noise)
        return replace(after, replica=replace(after.replica, velocity=None)), update


@dataclass(frozen=True, kw_only=True)
class Withheld(Iterative):
    """Clients that come back do not get the velocity."""

    def given(self, seed, index):
        return WholeModel()


@dataclass(frozen=True, kw_only=True)
class Open(Iterative):
    """Leaves the size of its sketch open."""

    def resolved(self, dim, clients=None, module=None):
        return replace(super().resolved(dim, clients, module), sketch=self.sketch)


@dataclass(frozen=True, kw_only=True)
class Coarse(Iterative):
    """Sends what its code says, though rounded sketches have none; it finds out in round 1."""

    client = Algorithm.client


@dataclass(frozen=True, kw_only=True)
class Deaf(Iterative):
    """Sends 32 bits whatever was asked for."""

    def _codec(self, dim):
        return replace(super()._codec(dim), bits=32)


@dataclass(frozen=True, kw_only=True)
class Shy(Count):
    """Cuts large numbers off."""

    def _apply(self, x):
        return super()._apply(x.clamp(-1000, 1000))


@dataclass(frozen=True, kw_only=True)
class Numb(Count):
    """Does not feel small numbers."""

    def _adjoint(self, y):
        return super()._adjoint(torch.where(y.abs() < 1e-4, 0.0, y))


def test_parts_are_named_after_themselves_or_as_a_mapping_says():
    class Codecs(CodecConformance):
        codecs = [Dense(dim=8), Dense(dim=9), Forgetful(dim=8)]  # noqa: RUF012

    class Sketches(SketchConformance):
        sketches = [Count, partial(Count)]  # noqa: RUF012

    assert list(Codecs().cases()) == ["dense", "dense 2", "dense 3"]
    assert list(Sketches().cases()) == ["count", "Count"]


def test_checks_that_apply_to_no_part_are_left_out_and_come_back_with_other_parts():
    class Noiseless(AlgorithmConformance):
        algorithms: ClassVar = [FedAvg()]

    class Noisy(Noiseless):
        algorithms: ClassVar = [PrivateIterative()]

    noise, code = "test_an_algorithm_that_needs_noise_is_refused_without_it", "test_a_client_sends_its_change_through_the_code"
    assert getattr(Noiseless, noise) is None
    assert getattr(Noisy, noise) is getattr(AlgorithmConformance, noise)
    assert getattr(Noiseless, code) is getattr(Noisy, code) is getattr(AlgorithmConformance, code)


@pytest.mark.parametrize("suite", SUITES)
def test_every_check_says_what_it_demands(suite):
    found = demands(suite)
    assert len(found) > 8
    assert [name for name, text in found.items() if not text.endswith((".", ")."))] == []


def test_codecs_that_do_not_conform_are_found():
    suite = CodecConformance()
    suite.test_additive_codecs_decode_sums_of_packets_and_others_refuse_them(Dense(dim=96))
    with pytest.raises(AssertionError):
        suite.test_additive_codecs_decode_sums_of_packets_and_others_refuse_them(Forgetful(dim=96))
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        suite.test_packets_that_do_not_fit_are_refused_by_check_and_by_decode(Trusting(dim=96))


def test_sketches_that_do_not_conform_are_found():
    suite = SketchConformance()
    suite.test_the_adjoint_passes_the_dot_test(Count, torch.float64)
    with pytest.raises(AssertionError, match="adjoint is not the transpose of apply"):
        suite.test_the_adjoint_passes_the_dot_test(Skewed, torch.float64)
    with pytest.raises(AssertionError, match=r"apply, compared with .* is off by 1 of its length"):
        suite.test_apply_and_adjoint_are_the_dense_matrix(Skewed, 31, 5, torch.float64)
    with pytest.raises(AssertionError, match=r"RᵀRh is .* on average, h is .*: E\[RᵀR\] is not the identity"):
        suite.test_the_round_trip_is_unbiased(Skewed)
    with pytest.raises(AssertionError, match=r"E‖RᵀRh‖² is .*, but 1 \+ exact_alpha = "):
        suite.test_the_second_moment_is_exact_alpha_and_below_alpha(Skewed)
    with pytest.raises(AssertionError):
        suite.test_equal_fields_are_the_same_operator_and_other_seeds_are_not(
            lambda dim, size, seed: Count(dim=dim, size=size, seed=PublicSeed(1))
        )


def test_algorithms_that_do_not_conform_are_found(tmp_path):
    suite = AlgorithmConformance()
    algorithm: Algorithm = Moving()
    with pytest.raises(AssertionError):
        suite.test_resolving_twice_changes_nothing(algorithm)
    with pytest.raises(InputError, match="declares a linear code, but its packets do not work as one"):
        suite.test_a_protection_works_or_is_refused_before_the_first_round(Median(), "secure sums", tmp_path)


@dataclass(frozen=True, kw_only=True)
class Tardy(FedAvg):
    """Takes no noise on what is sent, and says so again when it makes its second step."""

    refused_placements: ClassVar = {"sent": "it counts votes, and votes have no noise."}

    def server(self, state, packets, seed, *, noise=0.0):
        if state.replica.round:
            raise ValueError(self.refused_placements["sent"])
        return super().server(state, packets, seed, noise=noise)


def test_a_refusal_that_comes_after_clients_have_worked_is_found(tmp_path, monkeypatch):
    suite = AlgorithmConformance()
    suite.test_a_protection_works_or_is_refused_before_the_first_round(Tardy(), "noise on what clients send", tmp_path)
    monkeypatch.setattr("sketchfed.protection.resolve.check_privacy", lambda *settings, **secure: None)
    with pytest.raises(AssertionError, match="it is refused too late: clients had been asked for train"):
        suite.test_a_protection_works_or_is_refused_before_the_first_round(Tardy(), "noise on what clients send", tmp_path)


def test_a_sketch_that_is_linear_at_one_scale_only_is_found():
    suite = SketchConformance()
    suite.test_a_sketch_is_linear(Count)
    with pytest.raises(AssertionError, match="vectors of length 10000"):
        suite.test_a_sketch_is_linear(Shy)
    with pytest.raises(AssertionError, match=r"vectors of length 0\.001"):
        suite.test_a_sketch_is_linear(Numb)


def test_defaults_that_stay_open_are_found():
    with pytest.raises(AssertionError, match="resolved leaves defaults of 'sketch' open"):
        AlgorithmConformance().test_resolving_twice_changes_nothing(Open())


def test_a_velocity_that_gets_lost_is_found():
    suite = AlgorithmConformance()
    suite.test_server_momentum_counts_or_is_refused(FedAvg())
    with pytest.raises(AssertionError, match=r"global_momentum = 0\.9 has no effect"):
        suite.test_server_momentum_counts_or_is_refused(Careless())
    with pytest.raises((AssertionError, WireError)):
        suite.test_server_momentum_counts_or_is_refused(Withheld())


def test_sketches_of_few_bits_that_do_not_work_are_found():
    suite = AlgorithmConformance()
    suite.test_a_sketch_of_few_bits_is_sent_in_fewer_bytes_or_is_refused(Iterative())
    with pytest.raises(DivergedError, match="rounded to its own levels"):
        suite.test_a_sketch_of_few_bits_is_sent_in_fewer_bytes_or_is_refused(Coarse())
    with pytest.raises(AssertionError, match="clients send"):
        suite.test_a_sketch_of_few_bits_is_sent_in_fewer_bytes_or_is_refused(Deaf())


def test_without_pytest_the_suites_say_what_they_need(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytest", None)
    monkeypatch.delitem(sys.modules, "sketchfed.testing")
    with pytest.raises(ModuleNotFoundError, match=r"sketchfed\.testing needs pytest"):
        import sketchfed.testing  # noqa: F401
