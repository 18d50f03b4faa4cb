"""What a view says of clients' work is what their examples would look like: for every algorithm and codec, from the wire."""

from itertools import product
from statistics import median

import pytest
import torch
from recorded_runs import alignment, compared, distance, recorded
from torch import nn

from codec_variants import VARIANTS
from sketchfed.algorithms import ALGORITHMS, round_seed
from sketchfed.attacks import ROLES
from sketchfed.audits.evidence import record
from sketchfed.codecs import CODECS
from sketchfed.config import load_config
from sketchfed.errors import UnknownNameError
from sketchfed.runs.workload import from_objects
from sketchfed.sketches import SKETCHES

ROUNDING = 1e-4
SVD = {"name": "incremental_svd", "size": 60}
EXACT = {
    "fedavg": {},
    "several steps": {"algorithm": {"local_steps": 3}},
    "several passes": {"algorithm": {"local_steps": 5, "batch": 200}},
    "whole data": {"algorithm": {"local_steps": None, "batch": None}},
    "whole data, twice": {"algorithm": {"local_steps": None, "local_epochs": 2, "batch": 100}},
    "momentum and decay": {"algorithm": {"local_steps": 4, "local_momentum": 0.9, "weight_decay": 0.1}},
    "a shrinking rate": {"algorithm": {"final_rate": 0.1, "global_rate": 0.7}},
    "few take part": {"algorithm": {"participation": 0.6, "rounds": 5}},
    "prediction": {"algorithm": {"prediction": True, "participation": 0.8}},
    "prediction of sketches": {"codec": {"name": "sketched"}, "algorithm": {"prediction": True}},
    **{f"sketched, {family}": {"codec": {"name": "sketched"}, "sketch": {"name": family}} for family in SKETCHES},
    "iterative": {"algorithm": {"name": "iterative", "local_steps": 2}},
    "iterative, few take part": {"algorithm": {"name": "iterative", "participation": 0.4, "global_momentum": 0.5, "rounds": 6}},
    "iterative, all of it": {"algorithm": {"name": "iterative"}, "sketch": {"ratio": 1.0}},
    "dbcl": {"algorithm": {"name": "dbcl"}},
    "dbcl, several steps": {"algorithm": {"name": "dbcl", "local_steps": 3, "local_momentum": 0.5}},
    "dbcl, srht": {"algorithm": {"name": "dbcl", "local_steps": 2}, "sketch": {"name": "srht"}},
    "dbcl, sizes that vary": {"algorithm": {"name": "dbcl", "vary": 0.4}},
    "dbcl, output sketched": {"algorithm": {"name": "dbcl", "output": "sketched"}},
    "dbcl, output withheld": {"algorithm": {"name": "dbcl", "output": "withheld"}},
    "dbcl, biases sketched": {"algorithm": {"name": "dbcl", "biases": "sketched"}},
    "dome": {"algorithm": {"name": "dome", "participation": 0.8, "rounds": 5}, "subspace": SVD},
    "dome, fresh": {"algorithm": {"name": "dome"}, "subspace": {"size": 60}},
    "dome, frozen": {"algorithm": {"name": "dome"}, "subspace": {"name": "frozen", "size": 60}},
    "dome, whole": {"algorithm": {"name": "dome"}, "subspace": {"name": "whole"}},
    "dome, means removed": {"algorithm": {"name": "dome", "remove_mean": True}, "subspace": SVD},
    "dome, as printed": {"algorithm": {"name": "dome", "paper": True}, "subspace": {"name": "history_pca", "size": 40}},
    "dome, smooth": {"algorithm": {"name": "dome"}, "subspace": SVD | {"image": [8, 8], "frequencies": 20}},
    "dome, centred": {"algorithm": {"name": "dome"}, "subspace": SVD | {"image": [8, 8], "frequencies": 20, "centre": True}},
}
FOR_THE_SERVER_ALONE = {
    "server momentum": {"algorithm": {"global_momentum": 0.5}},
    "fetchsgd": {"algorithm": {"name": "fetchsgd"}},
    "dbcl, all sketched": {"algorithm": {"name": "dbcl", "output": "sketched", "biases": "sketched"}},
    "dbcl, all withheld": {"algorithm": {"name": "dbcl", "output": "withheld", "biases": "withheld"}},
}
"""What broadcasts tell of clients' work is no linear function of one round."""
CASES = EXACT | FOR_THE_SERVER_ALONE
FOR_COLLUDERS = ("fedavg", "few take part", "prediction", "sketched, srht", "iterative, few take part", "dbcl", "dome")
"""Several clients together: one of each kind of knowledge."""
LINEAR = ("dense", "rand_k", "rand_k_spatial", "rand_proj_spatial")


def test_there_is_a_case_of_every_algorithm():
    """The private one is where noise is (test_view_noise.py), and those of graphs where neighbours are (test_neighbours.py)."""
    there = {case.get("algorithm", {}).get("name", "fedavg") for case in CASES.values()}
    between = {name for name in ALGORITHMS if name.startswith("gossip")}
    assert there | {"private_iterative"} | between == set(ALGORITHMS)


@pytest.mark.parametrize("case", CASES)
def test_the_server_sees_what_examples_would_look_like(case):
    run = recorded(CASES[case])
    found = list(compared(run, "server"))
    for update, seen, values in found:
        assert distance(seen, values) < ROUNDING, update.round
        assert update.count == len(run.behind(update.round, update.clients).x)
    rounds = [index for index in range(run.config.algorithm.rounds) if run.public.trains(index)]
    assert [(each.round, each.clients) for each, _, _ in found] == [(i, (c,)) for i in rounds for c in run.replied(i)]


def test_who_reads_the_wire_sees_as_much():
    run = recorded(CASES["iterative, few take part"])
    server, network = (list(compared(run, role)) for role in ("server", "network"))
    assert [each[0].clients for each in server] == [each[0].clients for each in network]
    assert all(torch.equal(one, other) for (_, _, one), (_, _, other) in zip(server, network, strict=True))


@pytest.mark.parametrize(("case", "role"), [*product(EXACT, ["client"]), *product(FOR_COLLUDERS, ["colluders"])])
def test_clients_see_the_mean_of_the_others(case, role):
    """What they sent themselves is taken off: what is left is a function of the others' examples alone."""
    run = recorded(EXACT[case])
    members, found = set(run.view(role).members), list(compared(run, role))
    assert found
    for update, seen, values in found:
        assert distance(seen, values) < ROUNDING, update.round
        assert set(update.clients) == set(run.replied(update.round)) - members
        assert update.count == len(run.behind(update.round, update.clients).x)


@pytest.mark.parametrize("case", FOR_THE_SERVER_ALONE)
def test_clients_see_nothing_where_rounds_are_mixed(case):
    run = recorded(FOR_THE_SERVER_ALONE[case])
    assert not [*run.view("client").updates(), *run.view("colluders").updates()]


def test_clients_see_rounds_that_they_missed_where_updates_are_replayed():
    run = recorded(CASES["iterative, few take part"], rounds=8)
    (client,) = run.view("client").members
    took = [index for index in range(8) if client in run.replied(index)]
    assert len(took) < max(took)
    assert [update.round for update, _, _ in compared(run, "client")] == list(range(max(took)))


def test_clients_that_are_sent_whole_models_see_two_rounds_in_a_row_only():
    run = recorded(CASES["few take part"], rounds=8)
    (client,) = run.view("client").members
    took = {index for index in range(8) if client in run.replied(index)}
    assert [update.round for update, _, _ in compared(run, "client")] == [i for i in sorted(took) if i + 1 in took]


@pytest.mark.parametrize("variant", [name for name, (codec, _) in VARIANTS.items() if codec != "sketched"])
def test_codecs_are_looked_through_as_far_as_they_can_be(variant):
    """Linear ones exactly, but for rounding. What others decode is what they would make of the true change.

    That is so for most: a rounding error of training may change which coordinates are the largest, and with it all dice.
    """
    name, options = VARIANTS[variant]
    run = recorded({"codec": {"name": name, **options}}, rounds=2)
    codec, found = run.config.algorithm.codec.codec(run.public.dim, None), list(compared(run, "server"))
    apart = []
    for update, _, values in found:
        truth = run.behind(update.round, update.clients)
        change, shared = update.observation.change(truth.x, truth.y).detach(), round_seed(run.public.seed, update.round)
        apart.append(distance(codec.decode([codec.encode(change, shared, update.clients[0])], shared), values))
    assert median(apart) < ROUNDING
    if name in LINEAR and options.get("bits", 32) == 32 and "precision" not in options:
        assert max(distance(seen, values) for _, seen, values in found) < ROUNDING
    elif options.get("size") != 1:  # one number of many may well be zero
        assert median(alignment(seen, values) for _, seen, values in found) > 0.15


def test_every_codec_is_looked_through():
    assert {name for name, _ in VARIANTS.values()} == set(CODECS)


@pytest.mark.parametrize(("bits", "least"), [(8, 0.999), (4, 0.98), (1, 0.15)])
@pytest.mark.parametrize("tables", [{"codec": {"name": "sketched"}}, {"algorithm": {"name": "iterative"}}], ids=["up", "both"])
def test_sketches_in_few_bits_are_seen_as_they_were_rounded(tables, bits, least):
    run = recorded(tables | {"sketch": {"bits": bits}})
    for role in ("server", "client"):
        assert min(alignment(seen, values) for _, seen, values in compared(run, role)) > least


@pytest.mark.parametrize("case", [{"name": "iterative", "form": "projection"}, {"name": "fedavg", "error_feedback": True}])
def test_what_error_feedback_adds_is_in_what_is_seen(case):
    """In the first round nothing is owed yet; later, more and more."""
    tables = {"codec": {"name": "sketched"}} if case["name"] == "fedavg" else {}
    for role in ("server", "client"):
        found = {update.round: distance(seen, values) for update, seen, values in compared(recorded(tables, **case), role)}
        assert found[0] < ROUNDING < 0.1 < found[1]


def frozen() -> nn.Module:
    """A model of which the first layer is not trained, and has weights that everybody knows."""
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    module[0].requires_grad_(False)
    return module


def test_what_is_not_trained_is_part_of_the_model():
    clients = [(torch.rand(5, 4), torch.arange(5) % 3) for _ in range(3)]
    workload = from_objects(frozen(), clients, clients[0], None, "classification")
    run, _ = record(load_config({"algorithm": {"rounds": 2, "local_steps": 1}}), workload)
    for role in ("server", "client"):
        assert max(distance(seen, values) for _, seen, values in compared(run, role)) < ROUNDING


def test_roles_that_a_run_has_not_are_refused_with_those_it_has():
    run = recorded()
    assert set(run.roles) | {"secure server", "neighbour"} == set(ROLES)
    with pytest.raises(UnknownNameError, match="no role named 'secure server'"):
        run.view("secure server")
