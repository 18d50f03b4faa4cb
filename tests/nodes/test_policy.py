"""What a policy file says, and what it refuses."""

import re
import sys

import pytest
import torch
from torch import nn

import command_line
from sketchfed.config import load_config
from sketchfed.errors import InputError, SketchfedError
from sketchfed.models import MODELS
from sketchfed.nodes.policy import KEYS, PARTS, Policy, dataset_name
from sketchfed.nodes.rules import REGISTRIES, Offer, check, check_built
from sketchfed.nodes.sizes import parameters_of
from sketchfed.nodes.template import allowing, commented
from sketchfed.parts import Registry

NOISE = {"epsilon": 3.0, "delta": 1e-5, "noise_multiplier": 2.0}
RUN = {"algorithm": {"name": "iterative", "participation": 0.5}, "privacy": NOISE, "secure": {}, "model": {"name": "mlp"}}


def policy(tmp_path, text: str, **settings: object) -> Policy:
    (tmp_path / "policy.toml").write_text(text)
    return Policy.load(tmp_path / "policy.toml", settings)


def refusal(chosen: Policy, **tables: object) -> str:
    """What a policy says against a run of 20 clients on examples of 64 numbers; empty if nothing."""
    run = {key: table for key, table in {**RUN, **tables}.items() if table is not None}
    try:
        check(chosen, Offer(tables=run, clients=20, shape=(64,), outputs=10))
    except InputError as error:
        return str(error)
    return ""


RULES = {
    "[allow]\nmodels = []": ("allow.models", {}),
    '[allow]\nmodels = ["lenet"]': ("allow.models", {}),
    "[allow]\nalgorithms = []": ("allow.algorithms", {}),
    "[allow]\nmechanisms = []": ("allow.mechanisms", {"privacy": {**NOISE, "name": "gaussian"}}),
    '[allow]\nsketches = ["count"]': ("allow.sketches", {"sketch": {"name": "srht"}}),
    '[allow]\nlosses = ["squares"]': ("allow.losses", {"model": {"name": "mlp", "loss": "cross_entropy"}}),
    "[allow]\nmetrics = []": ("allow.metrics", {"model": {"name": "mlp", "metric": "accuracy"}}),
    '[allow]\ncodecs = ["dense"]': ("allow.codecs", {"codec": {"name": "eden"}}),
    '[allow]\ndata = ["mnist"]': ("allow.data", {"data": {"name": "digits"}}),
    "[allow]\npartitions = []": ("allow.partitions", {"data": {"partition": "iid"}}),
    '[allow]\ncombine_rules = ["mean"]': ("allow.combine_rules", {"algorithm": {"combine": "median"}}),
    '[allow]\noptimisers = ["sgd"]': ("allow.optimisers", {"training": {"optimiser": "adam"}}),
    "[allow]\nschedules = []": ("allow.schedules", {"training": {"step_schedule": "linear"}}),
    '[allow]\ngraphs = ["ring"]': ("allow.graphs", {"graph": {"name": "star"}}),
    '[allow]\nserver_optimisers = ["sgd"]': ("allow.server_optimisers", {"algorithm": {"server": "adam"}}),
    "[demand]\nsecure = true": ("demand.secure", {"secure": {"aggregation": False}}),
    "[demand]\nepsilon = 2": ("demand.epsilon", {}),
    "[demand]\nepsilon = 4": ("demand.epsilon", {"privacy": {"noise_multiplier": 1.0}}),
    "[demand]\ndelta = 1e-6": ("demand.delta", {}),
    "[demand]\nnoise_multiplier = 2.5": ("demand.noise_multiplier", {}),
    '[demand]\nunit = ["example"]': ("demand.unit", {}),
    '[demand]\nobservers = ["server"]': ("demand.observers", {"privacy": {**NOISE, "observer": "public"}}),
    "[demand]\ncohort = 8": ("demand.cohort", {}),
    "[demand]\ncolluders = 0.1": ("demand.colluders", {}),
    "[limits]\nparameters = 1000": ("limits.parameters", {}),
    "[limits]\nclients = 19": ("limits.clients", {}),
    "[limits]\nclients = 20": ("limits.clients", {"data": {"clients": 21}}),
    "[limits]\nrounds = 99": ("limits.rounds", {}),
    "[limits]\nsteps = 4": ("limits.steps", {"algorithm": {"local_steps": 5}}),
    "[limits]\nmemory = 100": ("limits.memory", {}),
    "[data.data]\nlifetime_epsilon = 8": ("data.data.lifetime_epsilon", {"privacy": None}),
    '[data."*"]\nlifetime_epsilon = 8': ("data.*.lifetime_epsilon", {"privacy": {**NOISE, "insecure_noise_seed": 1}}),
}


@pytest.mark.parametrize(("text", "key", "tables"), [(text, *rest) for text, rest in RULES.items()], ids=RULES.keys())
def test_each_rule_refuses_by_its_line(tmp_path, text, key, tables):
    said = refusal(policy(tmp_path, f"# whose\n{text}\n"), **tables)
    assert re.search(rf"\(.*policy\.toml:3: {re.escape(key)} = ", said), said
    assert refusal(Policy.load(), **tables) == "", "without the rule it is allowed"


def test_every_rule_of_a_run_is_tried():
    tried = {key for key, _ in RULES.values()}
    # The first two are tried below. The others are not about a run's settings, and the node's tests try them.
    untried = {"allow.loops", "allow.batch_losses", "allow.plain", "demand.identities", "limits.enrolments"}
    assert {key for key in KEYS if key not in tried} == untried


@pytest.mark.parametrize("listed", [["f1", "evil:metric"], [["evil:metric"]], [3], [None, "evil:metric"]])
def test_each_metric_of_a_list_must_be_allowed(listed):
    assert "allow.metrics" in refusal(Policy.load(), model={"name": "mlp", "metric": listed})
    assert refusal(Policy.load(), model={"name": "mlp", "metric": ["f1", "auroc"]}) == ""


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("train", "loops"),
        ("evaluate", "loops"),
        ("collate", "loops"),
        ("batch_loss", "batch_losses"),
        ("optimiser", "optimisers"),
        ("round_schedule", "schedules"),
        ("step_schedule", "schedules"),
    ],
)
def test_a_function_of_training_runs_only_if_the_owner_listed_it(key, kind, tmp_path):
    loop = {"training": {key: "evil:train"}}
    said = refusal(Policy.load(), **loop)
    assert f"refuses training.{key} = 'evil:train'. The node's owner may add it to allow.{kind}" in said
    assert refusal(policy(tmp_path, f'[allow]\n{kind} = ["built-in", "evil:train"]'), **loop) == ""


def test_options_of_a_training_loop_name_nothing_that_is_not_allowed(tmp_path):
    option = {"training": {"train": "evil:train", "model": "subprocess:run"}}
    assert "subprocess:run" in refusal(policy(tmp_path, '[allow]\nloops = ["evil:train"]'), **option)


def test_a_sum_is_opened_over_at_least_the_cohort(tmp_path):
    chosen = policy(tmp_path, "[demand]\ncohort = 8")
    assert refusal(chosen, secure={"survivors": 0.8}) == ""
    assert "opened over 7 clients" in refusal(chosen, secure={"survivors": 0.7})


@pytest.mark.parametrize("split", [{"groups": 3}, {"group_size": 3}, {"groups": 10**12}], ids=str)
def test_each_sum_of_a_round_in_groups_is_opened_over_at_least_the_cohort(tmp_path, split):
    """A group of 3 out of 10 clients is opened over 3, however many clients the round has."""
    chosen = policy(tmp_path, "[demand]\ncohort = 4")
    assert refusal(chosen, secure={"survivors": 0.8}) == ""
    assert "policy.toml:2: demand.cohort" in refusal(chosen, secure={"survivors": 0.8, **split})


def test_the_smallest_group_counts(tmp_path):
    """10 clients in 3 groups are 4, 3 and 3."""
    assert "opened over 3 clients" in refusal(policy(tmp_path, "[demand]\ncohort = 4"), secure={"survivors": 1.0, "groups": 3})
    assert refusal(policy(tmp_path, "[demand]\ncohort = 3"), secure={"survivors": 1.0, "groups": 3}) == ""


@pytest.mark.parametrize(
    "settings", [{"secure": {"clip": 1.0, "group_size": 3}}, {"algorithm": {"participation": 0.2}}], ids=str
)
def test_what_was_built_is_checked_for_its_cohort_once_more(tmp_path, settings):
    built = load_config(settings).completed(dim=43, sizes=[10] * 20).protection(dim=43, sizes=[10] * 20)
    check_built(policy(tmp_path, "[demand]\ncohort = 3"), built, "data")
    with pytest.raises(InputError, match=r"policy\.toml:2: demand\.cohort = 5"):
        check_built(policy(tmp_path, "[demand]\ncohort = 5"), built, "data")


def test_entry_points_count_only_where_they_are_listed(tmp_path):
    for name in ("of_a_package", "package.module:Thing"):
        assert "allow.server_optimisers" in refusal(Policy.load(), algorithm={"server": name})
        assert "allow.codecs" in refusal(Policy.load(), codec={"name": name})
        assert refusal(policy(tmp_path, f'[allow]\ncodecs = ["{name}"]'), codec={"name": name}) == ""
        assert "allow.combine_rules" in refusal(Policy.load(), algorithm={"combine": name})
        assert refusal(policy(tmp_path, f'[allow]\ncombine_rules = ["{name}"]'), algorithm={"combine": name}) == ""


@pytest.mark.parametrize("table", ["algorithm", "model", "sketch", "codec", "subspace", "privacy", "secure"])
def test_a_reference_is_refused_wherever_it_stands(table):
    for value in ("evil:thing", ["evil:thing"], {"deep": {"er": "evil:thing"}}):
        assert "allow." in refusal(Policy.load(), **{table: {**RUN.get(table, {}), "option": value}})


def test_a_server_says_nothing_of_engines():
    assert "engine" in refusal(Policy.load(), engine={"name": "local"})


@pytest.mark.parametrize(
    "value", ["many", -1, 1.5, True, None, [], {}, float("inf"), float("nan"), 10**400], ids=lambda value: str(value)[:9]
)
@pytest.mark.parametrize(
    "place", ["algorithm.rounds", "algorithm.participation", "privacy.epsilon", "secure.survivors", "sketch.size"]
)
def test_numbers_that_are_none_raise_nothing_but_our_errors(tmp_path, place, value):
    table, key = place.split(".")
    chosen = policy(tmp_path, "[demand]\nepsilon = 3\nsecure = true\ncohort = 3")
    refusal(chosen, **{table: {**RUN.get(table, {}), key: value}})


@pytest.mark.parametrize("table", ["algorithm", "privacy", "secure", "model"])
def test_what_is_no_table_is_refused(table):
    assert "must be a table" in refusal(Policy.load(), **{table: 3})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[demand]\nepsilon = -1", "policy.toml:2: demand.epsilon must be a positive number"),
        ("[demand]\nepsilo = 1", "Did you mean 'demand.epsilon'"),
        ("[demands]\nepsilon = 1", "Did you mean 'demand'"),
        ("[demand]\nobservers = []", "policy.toml:2"),
        ("[allow]\nmodels = 'mlp'", "a list of names"),
        ("[data.x]\nlifetime_delta = 1e-5", "needs lifetime_epsilon"),
        ("[data.x]\nlifetime_epsilon = 'all'", "policy.toml:2"),
        ("[demand", "not valid TOML"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(tmp_path, text, said):
    with pytest.raises(SketchfedError, match=re.escape(said)):
        policy(tmp_path, text)


def test_a_policy_that_is_not_there_is_no_policy_that_allows():
    with pytest.raises(InputError, match="cannot read"):
        Policy.of({"policy": "/nowhere/policy.toml"})


def test_shorthands_tighten_and_never_loosen(tmp_path):
    chosen = policy(tmp_path, "[demand]\nepsilon = 2\nsecure = true\n[data.a]\nlifetime_epsilon = 9", epsilon=3, secure=False)
    assert chosen["demand.epsilon"] == 2
    assert chosen["demand.secure"]
    assert chosen.lifetime("a").epsilon == 3
    assert chosen.lifetime("b").epsilon == 3
    assert Policy.load(None, {"epsilon": "3"})["demand.epsilon"] == 3
    for wrong in ("much", 0, -1, "nan"):
        with pytest.raises(InputError, match="epsilon must be a positive number"):
            Policy.load(None, {"epsilon": wrong})


def test_who_demands_protection_gives_no_weights_to_other_strategies(tmp_path):
    assert Policy.load()["allow.plain"]
    for text in ("[demand]\nepsilon = 3", "[demand]\nsecure = true", "[data.a]\nlifetime_epsilon = 1"):
        assert not policy(tmp_path, text)["allow.plain"]
    assert policy(tmp_path, "[allow]\nplain = true\n[demand]\nepsilon = 3")["allow.plain"]


def test_no_server_names_the_data_set():
    assert dataset_name({"dataset": "ward-7", "partition-id": 3}) == "ward-7"
    assert dataset_name({"partition-id": 3}) == "partition-3"
    assert dataset_name({}) == "data"


IMAGES = {"lenet": (1, 28, 28), "cnn_mnist": (1, 28, 28), "cnn_cifar": (3, 32, 33)}


@pytest.mark.parametrize("name", MODELS.built_in)
def test_parameters_are_counted_without_building(name):
    shape = IMAGES.get(name, (3, 4))
    module = MODELS[name](shape=shape, outputs=10)
    assert parameters_of(name, shape, 10, {}) == sum(part.numel() for part in module.parameters())


def wide(*, shape, outputs, width=10):
    return nn.Linear(width, width)


def stubborn(*, shape, outputs):
    return nn.Linear(2, int(torch.ones(1).sum()))


def test_models_of_others_are_counted_on_the_meta_device():
    assert parameters_of(f"{__name__}:wide", (3,), 2, {"width": 10**6}) == 10**12 + 10**6
    assert parameters_of(f"{__name__}:stubborn", (3,), 2, {}) is None, "it is counted when it is built"


def test_the_commented_policy_is_the_default_and_its_lines_are_valid(tmp_path):
    assert {key: rule.value for key, rule in policy(tmp_path, commented()).rules.items()} == {
        key: rule.value for key, rule in Policy.load().rules.items()
    }
    lines = [re.sub(r"^# (\w+ = |\[data\.)", r"\1", line) for line in commented().splitlines()]
    chosen = policy(tmp_path, "\n".join(lines))
    assert all(rule.source != "default" for rule in chosen.rules.values())
    assert chosen.lifetime("ward-7").epsilon == 8.0


def test_a_rehearsal_allows_what_its_own_configurations_name(tmp_path):
    named = {
        "data": {"name": "mine:load"},
        "codec": {"name": "fold"},
        "model": {"name": "mlp"},
        "algorithm": {"combine": "best"},
    }
    chosen = policy(tmp_path, allowing([named, named]))
    assert chosen["allow.data"] == ["built-in", "mine:load"]
    assert chosen["allow.codecs"] == ["built-in", "fold"]
    assert chosen["allow.combine_rules"] == ["built-in", "best"]
    assert refusal(chosen, **named) == ""


def test_all_kinds_of_parts_are_on_some_list():
    """All registries that the modules of a configuration know, but for engines, of which a server says nothing."""
    load_config({})
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "sketchfed"]
    found = {each.group: each for module in modules for each in vars(module).values() if isinstance(each, Registry)}
    not_named_in_runs = {"sketchfed.engines", "sketchfed.attacks", "sketchfed.knowledge"}
    listed = {registry.group for registry in REGISTRIES.values()}
    assert listed == {group for group in found if group.startswith("sketchfed.")} - not_named_in_runs
    assert set(REGISTRIES) == set(PARTS)


def test_the_command_line_writes_a_policy_and_says_what_it_thinks_of_a_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command_line.run("policy", "init", "policy.toml").exit_code == 0
    assert "exists already" in command_line.refused(monkeypatch, capsys, "policy", "init", "policy.toml")
    (tmp_path / "run.toml").write_text('[algorithm]\nname = "iterative"\nrounds = 20\n')
    allowed = command_line.run("policy", "check", "policy.toml", "run.toml")
    assert allowed.exit_code == 0, allowed.output
    assert "limits.rounds" in allowed.stdout
    (tmp_path / "strict.toml").write_text("[limits]\nrounds = 10\n")
    refused = command_line.run("policy", "check", "strict.toml", "run.toml")
    assert refused.exit_code == 1
    assert "refused: this node's policy refuses algorithm.rounds = 20" in refused.stdout
    assert "strict.toml:2: limits.rounds = 10" in refused.stdout
