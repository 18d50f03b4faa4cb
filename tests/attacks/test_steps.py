"""What broadcasts tell of the server's steps: everything where weights are shown, and nearly everything where they are not."""

from dataclasses import replace
from statistics import median

import pytest
import torch
from recorded_runs import few, recorded
from torch import Tensor, nn

from sketchfed.attacks import ATTACKS, StepAttack, cosine
from sketchfed.attacks.steps import AllBroadcasts, AsSent, ByAdjoint, ByPseudoInverse
from sketchfed.audits.evidence import Evidence
from sketchfed.errors import InputError

ON_STEPS = {name: attack for name, attack in ATTACKS.items() if issubclass(attack, StepAttack)}
ON_SKETCHES = (AllBroadcasts, ByAdjoint, ByPseudoInverse)
WAYS = {
    "dbcl": {},
    "output sketched": {"output": "sketched"},
    "all sketched": {"output": "sketched", "biases": "sketched"},
    "sizes vary": {"vary": 0.2},
}


def blind(rounds: int = 20, **settings: object) -> Evidence:
    return recorded(name="dbcl", rounds=rounds, batch=32, **settings)


def true_steps(run: Evidence, index: int, names: list[str]) -> dict[str, Tensor]:
    """How weight matrices changed in a round, a folded bias beside its matrix."""
    public = run.public
    moved = public.layout.views(run.weights[index + 1] - run.weights[index])
    form = public.algorithm.given(public.seed, index).sketch
    return {name: moved[name].reshape(len(moved[name]), -1) if form is None else form.rows(name, moved) for name in names}


def cosines(attack: StepAttack, run: Evidence, role: str) -> list[float]:
    found = []
    for index, parts in attack.steps(run.view(role)).items():
        truth = true_steps(run, index, list(parts))
        assert {name: part.shape for name, part in parts.items()} == {name: part.shape for name, part in truth.items()}
        found += [cosine(part, truth[name]) for name, part in parts.items()]
    return found


def test_there_is_a_test_of_every_registered_attack():
    assert set(ON_STEPS.values()) == {AsSent, *ON_SKETCHES}
    assert [ON_STEPS[name].name for name in ON_STEPS] == list(ON_STEPS)


@pytest.mark.parametrize("ways", WAYS)
def test_all_broadcasts_together_tell_the_steps(ways):
    """A median cosine above 0.99 over all layers and rounds, from the wire or as a client that misses none."""
    run = blind(**WAYS[ways])
    for role in ("network", "client"):
        found = cosines(AllBroadcasts(), run, role)
        assert len(found) % 19 == 0
        assert median(found) > 0.99


@pytest.mark.parametrize(
    ("ways", "attack"),
    [("dbcl", ByAdjoint), ("dbcl", ByPseudoInverse), ("all sketched", ByPseudoInverse), ("sizes vary", ByAdjoint)],
)
def test_two_broadcasts_tell_little(ways, attack):
    found = cosines(attack(), blind(**WAYS[ways]), "network")
    assert len(found) % 19 == 0
    assert median(found) < 0.3


def test_steps_of_rounds_that_were_missed_are_bridged():
    """A client of three rounds in five: steps are given for all rounds between its first and its last."""
    run = blind(rounds=30, participation=0.6)
    view = run.view("client")
    took = sorted(view.replicas())
    found = AllBroadcasts().steps(view)
    assert list(found) == list(range(took[0], took[-1]))
    assert len(took) < len(found)
    assert median(cosines(AllBroadcasts(), run, "client")) > 0.3


def test_two_broadcasts_are_those_of_rounds_in_a_row():
    view = blind(rounds=10, participation=0.6).view("client")
    took = set(view.replicas())
    assert set(ByAdjoint().steps(view)) == {index for index in took if index + 1 in took}


@pytest.mark.parametrize("role", ["server", "network", "client", "colluders"])
@pytest.mark.parametrize(
    "tables",
    [
        {"algorithm": {"name": "fedavg", "global_momentum": 0.5}},
        {"algorithm": {"name": "iterative", "global_momentum": 0.5}},
        {"algorithm": {"name": "fetchsgd"}},
        {"algorithm": {"name": "dome"}, "subspace": {"size": 60}},
    ],
    ids=lambda tables: tables["algorithm"]["name"],
)
def test_where_weights_are_shown_steps_are_what_is_sent(tables, role):
    """Bit for bit, whatever the server did to make them."""
    run = recorded(tables, rounds=4)
    found = AsSent().steps(run.view(role))
    assert list(found) == [0, 1, 2]
    for index, parts in found.items():
        truth = true_steps(run, index, list(parts))
        assert len(parts) == 4
        assert all(torch.equal(parts[name], truth[name]) for name in parts)


def test_parameters_without_a_row_have_steps_too():
    class Scaled(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Linear(64, 10))
            self.scale = nn.Parameter(torch.tensor(1.0))

        def forward(self, x: Tensor) -> Tensor:
            return self.scale * super().forward(x)

    found = AsSent().steps(few(model=Scaled(), rounds=2).view("server"))
    assert {name: tuple(part.shape) for name, part in found[0].items()} == {
        "scale": (1, 1),
        "0.weight": (10, 64),
        "0.bias": (10, 1),
    }


# What they lack ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attack", ON_SKETCHES)
def test_weights_that_are_shown_need_no_estimate(attack):
    with pytest.raises(InputError, match=r"clients are shown the weights themselves.*Use 'as sent'"):
        attack().steps(recorded().view("client"))


def test_weights_that_are_not_shown_have_no_differences():
    with pytest.raises(InputError, match=r"'dbcl' shows nobody the weights, only sketches of them. Use 'all broadcasts'"):
        AsSent().steps(blind(rounds=2).view("client"))


def test_the_smoother_knows_no_server_momentum():
    run = blind(rounds=3, global_momentum=0.5)
    with pytest.raises(InputError, match="the smoother knows no server momentum"):
        AllBroadcasts().steps(run.view("network"))
    assert ByAdjoint().steps(run.view("network")).keys() == {0, 1}


@pytest.mark.parametrize("attack", ON_STEPS)
def test_one_model_has_no_step(attack):
    kind = ON_STEPS[attack]
    run = recorded(rounds=1) if kind is AsSent else blind(rounds=1)
    with pytest.raises(InputError, match="the client was not sent the models of two rounds in a row"):
        kind().steps(run.view("client"))


@pytest.mark.parametrize("attack", ON_STEPS)
def test_who_saw_nothing_is_told_so(attack):
    kind = ON_STEPS[attack]
    view = (recorded(rounds=2) if kind is AsSent else blind(rounds=2)).view("network")
    with pytest.raises(InputError, match="the network was not sent the models of two rounds in a row"):
        kind().steps(replace(view, exchanges=[]))


def test_rounds_far_apart_are_not_taken_for_a_step():
    run = blind(rounds=6)
    apart = replace(run.view("network"), exchanges=[each for each in run.exchanges if each.round in (0, 2, 4)])
    with pytest.raises(InputError, match="two rounds in a row"):
        ByAdjoint().steps(apart)
    assert list(AllBroadcasts().steps(apart)) == [0, 1, 2, 3]
