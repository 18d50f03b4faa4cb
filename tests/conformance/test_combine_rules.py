"""Every registered combine rule does what `sketchfed.testing` demands, and every algorithm runs with it or refuses it."""

from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from third_party import Median as MedianServer
from third_party import Scratch

from federation import advanced, federation, weights_of
from pairs import thinned
from sketchfed.algorithms import (
    ALGORITHMS,
    CodecSettings,
    CombineSettings,
    FedAvg,
    Iterative,
    ServerSettings,
    SketchSettings,
    SubspaceSettings,
)
from sketchfed.codecs import CODECS
from sketchfed.combining import COMBINE_RULES, CenteredClipping, Krum, TrimmedMean
from sketchfed.errors import InputError
from sketchfed.testing import CombineRuleConformance, data_of
from sketchfed.testing.algorithm_cases import PROTECTIONS, Protected, module, own_noise, working

OPTIONS = {"dome": {"subspace": SubspaceSettings(size=8)}}
SUMMED = "gossip_exact"
"""The algorithm that adds up integers, so it refuses every rule but the mean."""
SERVED = [name for name, kind in ALGORITHMS.items() if kind.served and name != SUMMED]
ALL = {name: ALGORITHMS[name](**OPTIONS.get(name, {})) for name in SERVED} | {
    "few bits": Iterative(sketch=SketchSettings(ratio=0.5, bits=8)),
    "projection": Iterative(sketch=SketchSettings(ratio=0.5), form="projection"),
    **{
        f"codec {name}": FedAvg(codec=CodecSettings(name=name, **({} if name in ("dense", "sketched") else {"size": 20})))
        for name in CODECS
        if name not in ("qsgd", "sign", "eden", "correlated")
    },
    **{f"codec {name}": FedAvg(codec=CodecSettings(name=name)) for name in ("qsgd", "sign", "eden", "correlated")},
    "error feedback": FedAvg(codec=CodecSettings(name="top_k", size=20), error_feedback=True),
    "prediction": FedAvg(codec=CodecSettings(name="rand_k", size=20), prediction=True),
    "server optimiser, codec": FedAvg(codec=CodecSettings(name="top_k", size=20), server_optimiser=ServerSettings(name="yogi")),
    "server optimiser, sketch": Iterative(sketch=SketchSettings(ratio=0.5), server_optimiser=ServerSettings(name="adam")),
}
ROBUST = [name for name in COMBINE_RULES if name != "mean"]


class TestEveryRule(CombineRuleConformance):
    rules: ClassVar = {name: kind() for name, kind in COMBINE_RULES.items()} | {
        "trimmed mean, 40 %": TrimmedMean(byzantine=0.4),
        "trimmed mean, nothing trimmed": TrimmedMean(byzantine=0.0),
        "multi-Krum": Krum(byzantine=0.3, best=0.5),
        "wide clipping": CenteredClipping(radius=3.0),
    }


def combining(algorithm, rule, protected=None, clients=8, **settings):
    """A tiny federation with a combine rule, before its first round."""
    protected = protected or Protected(privacy=own_noise(algorithm))
    made = working(replace(algorithm, combine=CombineSettings(name=rule)), **protected.changes)
    data = data_of(clients, loss="cross_entropy")
    return federation(
        made, data, module=module(), loss="cross_entropy", privacy=protected.privacy, secure=protected.secure, **settings
    )


@pytest.mark.parametrize(("name", "rule"), thinned(ALL, ROBUST, every=3))
def test_every_algorithm_and_codec_runs_with_every_rule(name, rule):
    server = advanced(combining(ALL[name], rule), 3)
    assert server.round == 3
    assert torch.isfinite(weights_of(server)).all()


@pytest.mark.parametrize("rule", ROBUST)
def test_exact_sums_refuse_rules_that_look_at_single_updates(rule):
    with pytest.raises(InputError, match="looks at single updates"):
        ALGORITHMS[SUMMED](combine=CombineSettings(name=rule))


ALIKE = [
    *(n for n in SERVED if n != "private_iterative"),
    "projection",
    *(f"codec {n}" for n in ("dense", "sketched", "top_k")),
]
"""Those of which clients with equal data send equal packets."""


@pytest.mark.parametrize("name", ALIKE)
def test_equal_clients_make_the_round_that_a_mean_makes(name):
    """What a rule makes of equal packets is that packet, so decoders do the same with it."""
    data = [data_of(1, loss="cross_entropy")[0]] * 5

    def trained(rule):
        algorithm = working(replace(ALL[name], combine=CombineSettings(name=rule)), batch=None)
        return advanced(federation(algorithm, data, module=module(), loss="cross_entropy"), 3)

    robust, plain = (weights_of(trained(rule)) for rule in ("geometric_median", "mean"))
    torch.testing.assert_close(robust, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "protection", "rule"),
    thinned(["fedavg", "iterative", "fetchsgd", "dbcl", "dome"], PROTECTIONS, ROBUST, every=5),
)
def test_a_protection_goes_with_a_rule_or_is_refused_before_the_first_round(name, protection, rule):
    """Rules are post-processing of noise that clients add. They break the bound behind central noise."""
    protected = PROTECTIONS[protection]
    if protected.secure is not None:
        refused = "under secure sums the server gets one sum per round"
    elif protected.privacy is not None and protected.privacy.observer == "public":
        refused = "the noise would not cover it"
    else:
        server = advanced(combining(ALL[name], rule, protected), 2)
        assert server.epsilon is None if protected.privacy is None else 0 < server.epsilon < float("inf")
        return
    with pytest.raises(InputError, match=refused):
        combining(ALL[name], rule, protected)


@pytest.mark.parametrize(
    ("algorithm", "reason"),
    [
        (MedianServer(), "its packets cannot be decoded one by one .a packet of kind 'dense' was expected"),
        (Scratch(), "what it sends is not a linear function"),
        (FedAvg(codec=CodecSettings(name="third_party:RefusesSums")), "declares a linear code, but its packets do not work as"),
        (FedAvg(codec=CodecSettings(name="third_party:Normalises")), "does not decode to their common change"),
    ],
    ids=["own server", "no code", "refuses sums", "normalises"],
)
def test_what_a_rule_cannot_read_is_refused_before_the_first_round(algorithm, reason):
    advanced(combining(algorithm, "mean"), 1)
    with pytest.raises(InputError, match=reason):
        combining(algorithm, "median")


@pytest.mark.parametrize("rule", ROBUST)
def test_too_few_clients_are_refused_before_the_first_round(rule):
    with pytest.raises(InputError, match="3 are the least"):
        combining(FedAvg(), rule, clients=2)


def test_clients_that_come_back_and_interrupted_cohorts_work_with_a_rule():
    """With half of the clients a round and clients that share nothing, all replicas are those of the server."""
    algorithm = replace(Iterative(sketch=SketchSettings(ratio=0.5)), participation=0.5)
    apart = advanced(combining(algorithm, "median", apart=True), 6)
    joint = advanced(combining(algorithm, "median"), 6)
    assert torch.equal(weights_of(apart), weights_of(joint))
