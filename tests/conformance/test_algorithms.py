"""Every registered algorithm, and two that somebody else wrote, do what `sketchfed.testing` demands of an algorithm."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
from third_party import Diverges, Median, Scratch

import sketchfed
from sketchfed import PublicSeed
from sketchfed.algorithms import (
    ALGORITHMS,
    Algorithm,
    CodecSettings,
    FedAvg,
    Iterative,
    PrivateIterative,
    ServerSettings,
    SketchSettings,
    SubspaceSettings,
)
from sketchfed.attacks import ATTACKS
from sketchfed.attacks.inference import AlignmentAttack, PropertyAttack
from sketchfed.attacks.reconstruction import Reconstruction
from sketchfed.audits.defence import Bench, Effort
from sketchfed.audits.evidence import record
from sketchfed.audits.outside import Outside
from sketchfed.config import Config, EngineSettings
from sketchfed.errors import FaultyPartError, InputError
from sketchfed.rounds import Exchange
from sketchfed.runs.workload import from_objects
from sketchfed.testing import AlgorithmConformance, advanced
from sketchfed.testing.algorithm_cases import PROTECTIONS, clients_data, module, refusal, started, working

OPTIONS = {"dome": {"subspace": SubspaceSettings(size=8)}}
VARIANTS = {name: kind(**OPTIONS.get(name, {})) for name, kind in ALGORITHMS.items() if kind.served} | {
    "fedavg, momentum": FedAvg(global_momentum=0.5),
    "fedavg, error feedback": FedAvg(codec=CodecSettings(name="rand_k", ratio=0.3), error_feedback=True),
    "iterative, momentum, few bits": Iterative(global_momentum=0.5, sketch=SketchSettings(ratio=0.5, bits=8)),
    "iterative, plain biases": Iterative(sketch=SketchSettings(ratio=0.5, plain=["*.bias"])),
    "iterative, layers and plain biases, projection": Iterative(
        form="projection", sketch=SketchSettings(ratio=0.5, plain=["*.bias"], blocks="layer", bits=8)
    ),
    "private_iterative, layers": PrivateIterative(sketch=SketchSettings(ratio=0.5, blocks="layer")),
    "fedavg, layers": FedAvg(codec=CodecSettings(name="sketched"), sketch=SketchSettings(ratio=0.5, blocks=["1.*"])),
    "fedavg, adam": FedAvg(server_optimiser=ServerSettings(name="adam")),
    "iterative, yogi": Iterative(server_optimiser=ServerSettings(name="yogi"), sketch=SketchSettings(ratio=0.5)),
}


class TestEveryAlgorithm(AlgorithmConformance):
    algorithms: ClassVar = VARIANTS


class TestThirdParties(AlgorithmConformance):
    algorithms: ClassVar = [Median(), Scratch()]


SUMS = [
    name
    for name, each in PROTECTIONS.items()
    if each.secure is not None or (each.privacy is not None and each.privacy.placement == "sent")
]


def fedavg(codec: str) -> FedAvg:
    return FedAvg(codec=CodecSettings(name=f"third_party:{codec}"))


@pytest.mark.parametrize("protection", PROTECTIONS)
def test_an_additive_codec_of_somebody_else_runs_under_every_protection(protection):
    assert advanced(started(fedavg("Additive"), PROTECTIONS[protection]), 1).round == 1


@pytest.mark.parametrize("protection", SUMS)
@pytest.mark.parametrize(
    ("codec", "reason"),
    [
        ("RefusesSums", "declares a linear code, but its packets do not work as one .one client a packet, please"),
        ("Normalises", "declares a linear code, but a packet that stands for two equal clients does not decode"),
        ("NotLinear", "what it sends is not a linear function of the update"),
        ("Misfit", r"declares a linear code, but its adjoint returns shape .10,. for a change of 59 numbers"),
        ("Curved", "declares a linear code, but the code of a sum of two changes is not the sum of their codes"),
    ],
)
def test_a_codec_that_is_not_linear_is_refused_before_the_first_round_with_the_reason(codec, reason, protection):
    advanced(started(fedavg(codec)), 1)
    with pytest.raises(InputError, match=reason):
        started(fedavg(codec), PROTECTIONS[protection])


def test_a_codec_that_raises_in_place_of_a_code_is_refused_with_what_it_raised():
    with pytest.raises(InputError, match=r"declares a linear code, but its packets do not work as one .KeyError: 'signs'"):
        started(fedavg("Fails"), PROTECTIONS[SUMS[0]])


def sketched(algorithm: str, sketch: str) -> Algorithm:
    return ALGORITHMS[algorithm](sketch=SketchSettings(name=f"third_party:{sketch}", ratio=0.5))


@pytest.mark.parametrize("protection", SUMS)
def test_a_linear_sketch_of_somebody_else_runs_under_every_protection(protection):
    assert advanced(started(sketched("iterative", "Leading"), PROTECTIONS[protection]), 1).round == 1


@pytest.mark.parametrize("protection", [SUMS[0], "secure sums"])
@pytest.mark.parametrize(
    ("algorithm", "sketch", "reason"),
    [
        ("iterative", "Rooted", "declares a linear code, but the code of a sum of two changes is not the sum of their codes"),
        ("private_iterative", "Rooted", "the code of a sum of two changes is not the sum of their codes"),
        (
            "iterative",
            "Unequal",
            r"do not work as one .*sketch 'leading'.* should have returned 59 numbers .* not shape .1, 30.",
        ),
        ("dbcl", "Unequal", r"its packets do not work as one .*sketch 'leading'.* should have returned"),
        ("iterative", "Squaring", "declares a linear code, but its adjoint is not linear"),
    ],
)
def test_a_sketch_that_is_not_linear_is_refused_before_the_first_round_with_the_reason(algorithm, sketch, reason, protection):
    with pytest.raises(InputError, match=reason):
        started(sketched(algorithm, sketch), PROTECTIONS[protection])


FAULTY = {
    "draws outside its seed": (sketched("iterative", "Forgetful"), "sketch 'forgetful' .*encoded other bytes the second time"),
    "decodes at random": (fedavg("LooseDecoder"), "codec 'loose_decoder' .*gave other weights the second time"),
    "refuses itself": (fedavg("RefusesItself"), "codec 'refuses_itself' .*refuses a packet that its own client made"),
    "raises": (fedavg("Raises"), "codec 'raises' .*raised KeyError: 'values', when a client encoded a change"),
    "loses its clients": (Diverges(), "algorithm 'diverges' .*gave clients that `follow` an update other weights"),
}


@pytest.mark.parametrize(
    ("fault", "protection"),
    [*((fault, "nothing") for fault in FAULTY), *(("draws outside its seed", each) for each in ("secure sums", SUMS[0]))],
)
def test_a_faulty_part_of_somebody_else_is_refused_before_the_first_round(fault, protection):
    """Whatever protects the run: noise and masks would hide the fault."""
    (algorithm, reason), protected, asked = FAULTY[fault], PROTECTIONS[protection], list[Exchange]()
    config = Config(
        algorithm=working(algorithm, **protected.changes),
        privacy=protected.privacy,
        secure=protected.secure,
        engine=EngineSettings(workers=1),
    )
    parts = [(each.x, each.y) for each in clients_data()]
    with pytest.raises(FaultyPartError, match=reason):
        sketchfed.run(config, model=module(), clients=parts, test=parts[0], on_exchange=asked.extend)
    assert asked == []


@dataclass(frozen=True, kw_only=True)
class Picky(FedAvg):
    """Takes no noise on what is sent."""

    name = "picky"
    refused_placements: ClassVar = {"sent": "it counts votes (and votes have no noise). Use privacy.placement = 'steps'."}


@pytest.mark.parametrize("protection", PROTECTIONS)
def test_a_placement_that_an_algorithm_refuses_is_refused_with_its_reason(protection, tmp_path):
    noise = PROTECTIONS[protection].privacy
    assert ("votes" in (refusal(Picky(), PROTECTIONS[protection]) or "")) == (noise is not None and noise.placement == "sent")
    AlgorithmConformance().test_a_protection_works_or_is_refused_before_the_first_round(Picky(), protection, tmp_path)


def test_an_audit_never_takes_a_median_for_a_mean():
    """Every attack that reads updates says that it is not applicable, and why."""
    parts = [(each.x, each.y) for each in clients_data()]
    config = Config(algorithm=working(Median(), rounds=2), engine=EngineSettings(workers=1))
    run, _ = record(config, from_objects(module(), parts, parts[0], None, "classification"))
    outside, seed = Outside.of(run.workload, PublicSeed(1)), PublicSeed(2)
    effort = Effort(victims=1, iterations=1, judged=1, member_rounds=1, canaries=0, shadows=4)
    found = list(Bench(recorded=run, outside=outside, wanted=outside.property, effort=effort, seed=seed).findings())
    readers = [name for name, kind in ATTACKS.items() if issubclass(kind, Reconstruction | PropertyAttack | AlignmentAttack)]
    read = [finding for finding in found if finding.attack in readers]
    assert {finding.attack for finding in read} == set(readers)
    assert {finding.role for finding in read} == set(run.roles)
    assert {finding.verdict for finding in read} == {"not applicable"}
    assert all("nobody has said what the messages of algorithm 'median' reveal" in finding.reason for finding in read)
