"""The public suites: how they run, and that they find what is wrong with a part."""

import sys
from dataclasses import dataclass
from functools import partial

import pytest
import torch

from sketchfed import PublicSeed
from sketchfed.algorithms import Algorithm, FedAvg
from sketchfed.codecs import Dense
from sketchfed.errors import InputError, WireError
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


def test_parts_are_named_after_themselves_or_as_a_mapping_says():
    class Codecs(CodecConformance):
        codecs = [Dense(dim=8), Dense(dim=9), Forgetful(dim=8)]  # noqa: RUF012

    class Sketches(SketchConformance):
        sketches = [Count, partial(Count)]  # noqa: RUF012

    assert list(Codecs().cases()) == ["dense", "dense 2", "dense 3"]
    assert list(Sketches().cases()) == ["count", "Count"]


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
    with pytest.raises(AssertionError):
        suite.test_the_adjoint_passes_the_dot_test(Skewed, torch.float64)
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


def test_without_pytest_the_suites_say_what_they_need(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytest", None)
    monkeypatch.delitem(sys.modules, "sketchfed.testing")
    with pytest.raises(ModuleNotFoundError, match=r"sketchfed\.testing needs pytest"):
        import sketchfed.testing  # noqa: F401
