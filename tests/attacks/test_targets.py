"""Which updates come from the same examples, and several of them as one observation."""

from dataclasses import replace

import pytest
import torch
from recorded_runs import few, recorded

from sketchfed.attacks import Joint, Target, inferred, repeated
from sketchfed.attacks.reconstruction import JointMatching
from sketchfed.audits.evidence import Evidence
from sketchfed.errors import InputError

TINY = {"data": {"clients": 300}, "engine": {"workers": 1, "evaluate_every": 1_000}}
"""Clients with 4 or 5 examples each: a batch of one or two comes again now and then."""


def truth(run: Evidence, index: int, client: int) -> frozenset[bytes]:
    return frozenset(row.numpy().tobytes() for row in run.behind(index, [client]).x)


@pytest.mark.parametrize(
    "tables",
    [
        {"algorithm": {"batch": 1}},
        {"algorithm": {"batch": 2}},
        {"algorithm": {"name": "dbcl", "batch": 1}},
        {"algorithm": {"batch": 1, "local_steps": 2}},
        {
            "algorithm": {"batch": 8, "local_steps": None},
            "privacy": {"noise_multiplier": 1.0, "delta": 1e-4, "unit": "example", "batches": "passes", "accountant": "rdp"},
        },
    ],
    ids=["one example", "two", "dbcl", "two steps", "passes"],
)
def test_updates_are_grouped_as_the_truth_says(tables):
    run = recorded(TINY | tables, rounds=12, participation=0.05)
    groups: dict[tuple[int, frozenset[bytes]], list[int]] = {}
    for index in range(12):
        for client in run.replied(index):
            groups.setdefault((client, truth(run, index, client)), []).append(index)
    found = repeated(run.view("server").updates(), most=12)
    wanted = {(client, tuple(rounds)) for (client, _), rounds in groups.items() if len(rounds) > 1}
    assert {(t.first.clients[0], tuple(update.round for update in t.updates)) for t in found} == wanted
    assert wanted
    assert [len(target.updates) for target in found] == sorted((len(t.updates) for t in found), reverse=True)


def test_clients_that_use_all_they_have_repeat_it_in_every_round():
    run = few(each=3, rounds=5)
    found = repeated(run.view("server").updates())
    assert [(target.first.clients, target.count, len(target.updates)) for target in found] == [((c,), 3, 5) for c in range(4)]


def test_no_more_updates_are_taken_than_asked_for():
    found = repeated(few(rounds=6).view("server").updates(), most=2)
    assert {tuple(update.round for update in target.updates) for target in found} == {(0, 1)}


def test_of_means_and_of_hidden_batches_nothing_is_known_to_come_again():
    run = few(rounds=3)
    assert repeated(run.view("client").updates()) == []
    noise = {"noise_multiplier": 1.0, "delta": 1e-3, "unit": "example", "accountant": "rdp"}
    hidden = few({"privacy": noise}, rounds=3, batch=1)
    assert repeated(hidden.view("server").updates()) == []


def test_a_mean_of_one_other_client_is_known_to_come_again():
    """Two colluders of three: what is left of the mean is one client's, all of whose examples come in every round."""
    (target,) = repeated(few(clients=3, rounds=5).view("colluders").updates())
    assert target.first.clients == (2,)
    assert len(target.updates) == 4


def joint(run: Evidence) -> tuple[Target, Joint]:
    target = repeated(run.view("server").updates())[0]
    assert isinstance(target.observation, Joint)
    return target, target.observation


@pytest.mark.parametrize("algorithm", ["fedavg", "iterative", "dbcl"])
def test_a_joint_observation_is_all_of_them_each_of_norm_one(algorithm):
    run = few(name=algorithm, rounds=4, each=2)
    target, observed = joint(run)
    examples = run.behind(0, target.first.clients)
    torch.testing.assert_close(observed.seen(examples.x, examples.y).detach(), observed.values, rtol=1e-3, atol=1e-5)
    parts = torch.split(observed.values, [len(update.observation.values) for update in target.updates])
    assert [float(part.norm()) for part in parts] == pytest.approx([1.0] * 4)
    assert observed.module is target.first.observation.module


def test_a_target_of_one_update_is_observed_as_it_is():
    (update, *_) = few().view("server").updates()
    assert Target(updates=(update,)).observation is update.observation


def test_an_update_of_nothing_stays_nothing():
    target, _ = joint(few(rounds=2))
    nothing = [replace(u.observation, values=torch.zeros_like(u.observation.values)) for u in target.updates]
    assert not Joint(parts=tuple(nothing)).values.any()


def test_labels_are_inferred_from_all_updates():
    """Through sketches of 20 numbers one update says little: of 20 clients, twice as many labels are right by eight of them."""
    run = few({"sketch": {"size": 20}}, name="iterative", clients=20, rounds=8)
    right = [0, 0]
    for target in repeated(run.view("server").updates()):
        y = int(run.behind(0, target.first.clients).y)
        right[0] += int(inferred(target.first.observation, count=1)) == y
        right[1] += int(inferred(target.observation, count=1)) == y
    assert right[1] >= max(10, 2 * right[0])


def test_sketches_of_sizes_that_vary_are_joined():
    target, observed = joint(few(name="dbcl", vary=0.4, rounds=4))
    assert len({len(update.observation.weights) for update in target.updates}) > 1
    assert inferred(observed, count=1).shape == (1,)


def test_where_nothing_comes_again_it_is_said_in_words():
    with pytest.raises(InputError, match="knows of no two updates that come from the same examples"):
        JointMatching().targets(recorded(batch=1, rounds=2).view("server"))
