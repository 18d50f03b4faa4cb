"""Every registered attack on examples is strong where nothing defends, and says in words what it lacks."""

from dataclasses import replace
from functools import cache
from statistics import median

import pytest
import torch
from observed import convolutional, decibels, digits
from recorded_runs import few, recorded
from torch import Tensor, nn

from sketchfed.attacks import ATTACKS, Guess, Reconstruction
from sketchfed.attacks.matching import MOST, Matching
from sketchfed.attacks.reconstruction import DeepLeakage, FirstLayer, GradientMatching, JointMatching
from sketchfed.attacks.targets import Target
from sketchfed.audits.evidence import Evidence
from sketchfed.errors import InputError
from sketchfed.seeds import PublicSeed

SEED = PublicSeed(5)
ON_EXAMPLES = {name: attack for name, attack in ATTACKS.items() if issubclass(attack, Reconstruction)}
QUICK = GradientMatching(matching=Matching(iterations=150))
UNKNOWN = 12.0
"""What is less than so many decibels shows nothing: the mean digit comes to about ten."""


@cache
def undefended() -> Evidence:
    """One step of one example from each of five clients, in plain."""
    return recorded({"model": {"hidden": [32]}}, batch=1, rounds=1)


def flat(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*layers)


def found(attack: Reconstruction, run: Evidence, role: str = "server", victims: int = 4) -> list[tuple[float, Target, Guess]]:
    """How close it comes to the truth, in decibels, for the first so many targets."""
    view, scores = run.view(role), []
    for number, target in enumerate(attack.targets(view)[:victims]):
        guess = attack.reconstruct(target, view.public, SEED.child("victim", number))
        truth = run.behind(target.first.round, target.first.clients)
        assert guess.x.shape == truth.x.shape
        assert 0 <= float(guess.x.min()) <= float(guess.x.max()) <= 1
        scores.append((decibels(guess.x, truth.x), target, guess))
    return scores


def strength(attack: Reconstruction, run: Evidence, **given: object) -> float:
    return median(score for score, _, _ in found(attack, run, **given))


def test_there_is_a_test_of_every_registered_attack():
    assert set(ON_EXAMPLES.values()) == {GradientMatching, JointMatching, DeepLeakage, FirstLayer}
    assert [ON_EXAMPLES[name].name for name in ON_EXAMPLES] == list(ON_EXAMPLES)


def test_matching_finds_examples_where_nothing_defends():
    """At least 25 dB; it comes to some 80 in these few iterations."""
    scores = found(QUICK, undefended(), victims=3)
    assert median(score for score, _, _ in scores) >= 25
    truths = [undefended().behind(0, target.first.clients) for _, target, _ in scores]
    assert [int(guess.y) for _, _, guess in scores] == [int(truth.y) for truth in truths]


def test_matching_finds_examples_through_a_sketch_of_a_tenth():
    """At least 18 dB; it comes to some 25 in these few iterations."""
    run = recorded({"model": {"hidden": [32]}, "codec": {"name": "sketched"}, "sketch": {"ratio": 0.1}}, batch=1, rounds=1)
    assert strength(QUICK, run, victims=3) >= 18


@pytest.mark.parametrize("name", ["qsgd", "wangni", "top_k"])
def test_matching_sees_through_codecs_that_leave_out_what_is_small(name):
    """What was not sent is known to be small: at least 15 dB in a fifth of the iterations, where 20 are usual."""
    run = recorded({"model": {"hidden": [32]}, "codec": {"name": name}}, batch=1, rounds=1)
    attack = GradientMatching(matching=Matching(iterations=80, variation=0))
    assert strength(attack, run, victims=3) >= 15


def test_matching_finds_a_batch():
    """Two examples together, in any order."""
    run = few(each=2, clients=2)
    view = run.view("server")
    (target, *_) = GradientMatching().targets(view)
    guess, truth = GradientMatching().reconstruct(target, view.public, SEED), run.behind(0, (0,))
    assert sorted(guess.y.tolist()) == sorted(truth.y.tolist())
    assert max(decibels(guess.x[order], truth.x) for order in ([0, 1], [1, 0])) >= 18


def test_matching_unrolls_local_steps():
    """Three steps on one example, seen as one change."""
    assert strength(QUICK, few(local_steps=3), victims=1) >= 25


def test_equal_seeds_give_equal_guesses_and_steps_are_counted():
    run, attack, steps = undefended(), GradientMatching(matching=Matching(iterations=7)), []
    (target, *_) = attack.targets(run.view("server"))
    guesses = [attack.reconstruct(target, run.public, SEED, lambda: steps.append(1)) for _ in range(2)]
    assert torch.equal(guesses[0].x, guesses[1].x)
    assert len(steps) == 14


def test_the_first_layer_gives_its_input_away():
    """At least 60 dB, by a division."""
    assert strength(FirstLayer(), undefended()) >= 60


STILL_READ = {
    "after several steps": {"local_steps": 3},
    "with momentum": {"local_steps": 2, "local_momentum": 0.9},
    "where another layer is sketched": {"name": "dbcl", "exclude": ["1"], "output": "sketched"},
}


@pytest.mark.parametrize("case", STILL_READ)
def test_the_first_layer_still_gives_its_input_away(case):
    assert strength(FirstLayer(), few(**STILL_READ[case])) >= 60


def test_the_first_layer_of_sketched_weights_gives_away_what_comes_again():
    """Sketches to 32 of 64 numbers, four rounds of the same examples: at least 60 dB; one round leaves half unknown."""
    scores = found(FirstLayer(), few(name="dbcl", rounds=4))
    assert {len(target.updates) for _, target, _ in scores} == {4}
    assert median(score for score, _, _ in scores) >= 60
    assert strength(FirstLayer(), few(name="dbcl", rounds=1)) < 20


def test_units_that_are_not_active_are_passed_over():
    """A model of one unit, which dark images leave at rest: nothing can be divided there, and bright ones are read."""
    model = flat(nn.Linear(64, 1), nn.ReLU(), nn.Linear(1, 10))
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.copy_(-digits(12)[0].sum((1, 2, 3)).median())
    run = few(model=model, clients=12)
    at_rest = {u.clients for u in run.view("server").updates() if not u.observation.values[:64].any()}
    read = {target.first.clients for target in FirstLayer().targets(run.view("server"))}
    assert read
    assert at_rest
    assert read == {(client,) for client in range(12)} - at_rest


def test_joint_matching_finds_what_single_updates_do_not_show():
    """Sketches of 30 of 2,410 numbers: one says next to nothing, eight of the same example say most."""
    run, quick = few({"sketch": {"size": 30}}, name="iterative", rounds=8), Matching(iterations=80)
    alone, together = (strength(kind(matching=quick), run, victims=1) for kind in (GradientMatching, JointMatching))
    assert alone < UNKNOWN
    assert together >= alone + 5


def test_deep_leakage_finds_examples_of_a_smooth_model():
    """A small LeNet with sigmoids, as in its paper; four starts, of which one that fails does not matter: at least 30 dB."""
    attack = DeepLeakage(matching=replace(DeepLeakage().matching, restarts=4))
    scores = found(attack, few(model=convolutional()), victims=2)
    assert min(score for score, _, _ in scores) >= 30
    assert [int(guess.y) for _, _, guess in scores] == digits(2)[1].tolist()


@pytest.mark.parametrize("role", ["client", "colluders"])
def test_clients_find_what_the_only_other_one_trained_on(role):
    run = few(clients=2 if role == "client" else 3, rounds=3)
    assert strength(FirstLayer(), run, role=role) >= 60


# What they lack ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attack", ON_EXAMPLES)
def test_too_many_examples_are_refused(attack):
    with pytest.raises(InputError, match=f"is of 9 examples or more; at most {MOST} are looked for together"):
        ON_EXAMPLES[attack]().targets(few(each=9, clients=2).view("server"))


@pytest.mark.parametrize("attack", ON_EXAMPLES)
@pytest.mark.parametrize(
    "case",
    [
        {"rounds": 1},
        {"rounds": 3, "global_momentum": 0.5},
        {"rounds": 3, "name": "fetchsgd"},
        {"rounds": 3, "name": "dbcl", "output": "sketched", "biases": "sketched"},
        {"rounds": 4, "participation": 0.25},
    ],
    ids=["one round", "momentum", "fetchsgd", "all sketched", "no two rounds in a row"],
)
def test_views_that_tell_nothing_of_a_round_are_refused(attack, case):
    run = few(**case)
    with pytest.raises(InputError, match="the client sees nothing that is a function of a round's changes alone"):
        ON_EXAMPLES[attack]().targets(run.view("client"))


LACKING = {
    "a sketch": (lambda: few(name="iterative"), "was seen through a sketch"),
    "several examples": (lambda: few(each=2), "of several examples together the division gives a mixture"),
    "a convolution": (lambda: few(model=convolutional()), "is not the weight of a dense layer"),
    "a sketched convolution": (lambda: few(name="dbcl", model=convolutional()), "is not the weight of a dense layer"),
    "no bias": (lambda: few(model=flat(nn.Linear(64, 8, bias=False), nn.ReLU(), nn.Linear(8, 10))), "without bias"),
    "sketched biases": (lambda: few(name="dbcl", biases="sketched"), "without bias"),
}


@pytest.mark.parametrize("what", LACKING)
def test_the_first_layer_attack_says_what_it_lacks(what):
    make, message = LACKING[what]
    with pytest.raises(InputError, match=message):
        FirstLayer().targets(make().view("server"))


class Hiding(nn.Sequential):
    """A model of which autograd does not see what goes in."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.detach())


@pytest.mark.parametrize("attack", [GradientMatching, DeepLeakage])
def test_models_that_hide_their_inputs_from_autograd_are_refused(attack):
    run = few(model=Hiding(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)))
    (target, *_) = attack().targets(run.view("server"))
    with pytest.raises(InputError, match="some operation in it has no second derivative"):
        attack().reconstruct(target, run.public, SEED)
    assert strength(FirstLayer(), run) >= 60


def test_an_attack_that_makes_no_guesses_is_none():
    with pytest.raises(TypeError, match="abstract"):
        Reconstruction()
