"""Configurations that cannot work are refused with the place, the value and what to change."""

import pytest

from config_refusal import refusal
from sketchfed.config import load_config
from sketchfed.errors import UnknownNameError

# --- what is refused, and what it says


UNKNOWN = [
    ({"algoritm": {"name": "fedavg"}}, "there is no table or key named 'algoritm'. Did you mean 'algorithm'?"),
    ({"sed": 3}, "there is no table or key named 'sed'. Did you mean 'seed'?"),
    ({"algorithm": {"name": "iteratve"}}, "there is no algorithm named 'iteratve'. Did you mean 'iterative'?"),
    ({"algorithm": {"name": ["fedavg"]}}, "there is no algorithm named ['fedavg']"),
    ({"algorithm": {"rouns": 3}}, "there is no key in [algorithm] named 'rouns'. Did you mean 'rounds'?"),
    ({"algorithm": {"form": "projection"}}, "there is no key in [algorithm] named 'form'"),
    ({"algorithm": {"name": "iterative", "form": "projecton"}}, "named 'projecton'. Did you mean 'projection'?"),
    ({"privacy": {"epsilon": 1.0, "adjacency": "zero_out"}}, "named 'zero_out'. Did you mean 'zero-out'?"),
    ({"data": {"name": "minst"}}, "there is no data set named 'minst'. Did you mean 'mnist'?"),
    ({"data": {"partition": "dirichelt"}}, "there is no partition named 'dirichelt'. Did you mean 'dirichlet'?"),
    ({"data": {"cleints": 3}}, "there is no key in [data] named 'cleints'. Did you mean 'clients'?"),
    ({"data": {"partition": "dirichlet", "concentraton": 3}}, "named 'concentraton'. Did you mean 'concentration'?"),
    ({"data": {"concentration": 0.3}}, "there is no key in [data] named 'concentration'"),
    ({"model": {"name": "mpl"}}, "there is no model named 'mpl'. Did you mean 'mlp'?"),
    ({"model": {"hiden": [3]}}, "there is no key in [model] named 'hiden'. Did you mean 'hidden'?"),
    ({"model": {"name": "logistic", "hidden": [3]}}, "there is no key in [model] named 'hidden'"),
    ({"algorithm": {"name": "iterative"}, "sketch": {"name": "srth"}}, "there is no sketch named 'srth'. Did you mean 'srht'?"),
    (
        {"algorithm": {"name": "iterative"}, "sketch": {"bit": 4}},
        "there is no key in [sketch] named 'bit'. Did you mean 'bits'?",
    ),
    ({"algorithm": {"name": "iterative"}, "sketch": {"nonzeros": 4}}, "there is no key in [sketch] named 'nonzeros'"),
    ({"codec": {"name": "dence"}}, "there is no codec named 'dence'. Did you mean 'dense'?"),
    ({"privacy": {"epsilom": 3.0}}, "there is no key in [privacy] named 'epsilom'. Did you mean 'epsilon'?"),
    ({"privacy": {"epsilon": 3.0, "unit": "clients"}}, "there is no privacy.unit named 'clients'. Did you mean 'client'?"),
    ({"secure": {"survivers": 0.9}}, "there is no key in [secure] named 'survivers'. Did you mean 'survivors'?"),
    ({"engine": {"name": "lokal"}}, "there is no engine named 'lokal'. Did you mean 'local'?"),
]


@pytest.mark.parametrize(("tables", "why"), UNKNOWN, ids=[why for _, why in UNKNOWN])
def test_unknown_tables_keys_and_names_are_refused_with_the_nearest(tables, why):
    with pytest.raises(UnknownNameError) as refused:
        load_config(tables)
    assert why in str(refused.value)
    assert " Known: " in str(refused.value)


WRONG_TYPES = [
    ({"seed": "7"}, "seed must be an integer, got '7'."),
    ({"seed": True}, "seed must be an integer, got True."),
    ({"name": 7}, "name must be text, got 7."),
    ({"data": 5}, "[data] must be a table, got data = 5."),
    ({"data": {"clients": "many"}}, "data.clients must be an integer, got 'many'."),
    ({"data": {"name": 5}}, "data.name must be text in quotes, got 5."),
    ({"algorithm": {"rounds": 2.5}}, "algorithm.rounds must be an integer, got 2.5."),
    ({"algorithm": {"rounds": True}}, "algorithm.rounds must be an integer, got True."),
    ({"algorithm": {"local_rate": "fast"}}, "algorithm.local_rate must be a number, got 'fast'."),
    ({"algorithm": {"error_feedback": 1}}, "algorithm.error_feedback must be true or false, got 1."),
    ({"algorithm": {"name": "iterative"}, "sketch": {"bits": "4"}}, "sketch.bits must be an integer, got '4'."),
    ({"algorithm": {"name": "iterative"}, "sketch": {"name": []}}, "sketch.name must be text in quotes, got []."),
    ({"codec": {"name": "top_k", "ratio": "few"}}, "codec.ratio must be a number, got 'few'."),
    ({"codec": {"name": "top_k", "bits": "4"}}, "codec.bits must be an integer, got '4'."),
    ({"codec": {"name": "top_k", "size": True}}, "codec.size must be an integer, got True."),
    ({"privacy": {"epsilon": "3"}}, "privacy.epsilon must be a number, got '3'."),
    ({"secure": {"bits": 16.5}}, "secure.bits must be an integer, got 16.5."),
    ({"model": {"hidden": "wide"}}, "model.hidden must be a list, got 'wide'."),
    ({"model": {"hidden": [20, 2.5]}}, "model.hidden[1] must be an integer, got [20, 2.5]."),
]


@pytest.mark.parametrize(("tables", "why"), WRONG_TYPES, ids=[why for _, why in WRONG_TYPES])
def test_wrong_types_are_refused_with_their_place_and_value(tables, why):
    assert refusal(tables).startswith(why)


ITERATIVE = {"name": "iterative"}


IMPOSSIBLE = [
    ({"algorithm": {"local_steps": 3, "local_epochs": 2}}, "contradict each other", "Remove one."),
    ({"algorithm": ITERATIVE, "sketch": {"ratio": 0.1, "size": 5}}, "both set the size", "Remove one."),
    ({"sketch": {"ratio": 0.1}}, "[sketch] is not used by algorithm 'fedavg'", "remove [sketch]."),
    ({"codec": {"name": "dense"}, "sketch": {}}, "[sketch] is not used by algorithm 'fedavg'", "remove [sketch]."),
    ({"algorithm": ITERATIVE, "codec": {"name": "dense"}}, "'iterative' does not use [codec]", "Remove that table"),
    ({"algorithm": {"name": "fetchsgd"}, "codec": {}}, "'fetchsgd' does not use [codec]", "Remove that table"),
    ({"algorithm": {"name": "iterative", "sketch": {"ratio": 0.1}}}, "write [sketch] as a table of its own", "not inside"),
    ({"algorithm": {"name": "fetchsgd"}, "sketch": {"name": "srht"}}, "got sketch.name = 'srht'", "Use 'count'."),
    ({"algorithm": {"name": "fetchsgd"}, "sketch": {"name": "count", "bits": 4}}, "sketch.bits = 4", "Remove it."),
    ({"algorithm": {"name": "fetchsgd"}, "sketch": {"bits_down": 4}}, "'fetchsgd' sends float32 only", "Remove it"),
    ({"codec": {"name": "sketched"}, "sketch": {"bits_down": 4}}, "sketch.bits_down = 4 has no effect", "Remove it"),
    ({"codec": {"name": "dense", "level": 3}}, "codec 'dense' has no option", "'level'"),
    ({"codec": {"name": "top_k", "ratio": 0.1, "size": 5}}, "codec.ratio = 0.1 and codec.size = 5", "Remove one."),
    ({"codec": {"name": "top_k", "ratio": 1.5}}, "got 1.5", "above 0 and at most 1"),
    ({"codec": {"name": "dense", "ratio": 0.5}}, "codec 'dense' has no option 'ratio'", "It has"),
    ({"codec": {"name": "sketched", "ratio": 0.1}}, "codec 'sketched' has no option 'ratio'", "[sketch]"),
    ({"algorithm": ITERATIVE, "sketch": {"bits": 5}}, "got bits = 5", "32, 16, 8, 4, 3, 2 or 1 bits"),
    ({"algorithm": ITERATIVE, "sketch": {"bits_down": 0}}, "got bits = 0", "32, 16, 8, 4, 3, 2 or 1 bits"),
    ({"algorithm": ITERATIVE, "sketch": {"ratio": 1.5}}, "got 1.5", "above 0 and at most 1"),
    ({"algorithm": ITERATIVE, "sketch": {"ratio": float("nan")}}, "got nan", "above 0 and at most 1"),
    ({"algorithm": ITERATIVE, "sketch": {"size": 0}}, "got 0", "at least 1"),
    ({"algorithm": {"participation": 0}}, "got 0", "above 0 and at most 1"),
    ({"algorithm": {"participation": 1.01}}, "got 1.01", "above 0 and at most 1"),
    ({"algorithm": {"rounds": 0}}, "got 0", "at least 1"),
    ({"algorithm": {"batch": 0}}, "got 0", "at least 1"),
    ({"algorithm": {"local_rate": -0.1}}, "got -0.1", "must be a positive number"),
    ({"algorithm": {"local_rate": float("inf")}}, "got inf", "must be a positive number"),
    ({"algorithm": {"global_momentum": 1}}, "got 1", "from 0 to below 1"),
    ({"algorithm": {"weight_decay": -1}}, "got -1", "must not be negative"),
    ({"data": {"clients": 0}}, "got 0", "at least 1"),
    ({"data": {"validation": 1.0}}, "got 1.0", "from 0 to below 1"),
    ({"engine": {"workers": -1}}, "got -1", "must not be negative"),
    ({"engine": {"evaluate_every": 0}}, "and 0", "at least 1"),
    ({"engine": {"checkpoint_seconds": -1}}, "got -1", "must not be negative"),
    ({"engine": {"target_accuracy": 97}}, "got 97", "at most 1"),
    ({"seed": -1}, "got -1", "from 0 to 2^64 - 1"),
    ({"seed": 2**64}, "got 18446744073709551616", "from 0 to 2^64 - 1"),
]


@pytest.mark.parametrize(("tables", "given", "remedy"), IMPOSSIBLE, ids=[str(tables) for tables, _, _ in IMPOSSIBLE])
def test_what_cannot_work_is_refused_with_what_to_change(tables, given, remedy):
    said = refusal(tables)
    assert given in said
    assert remedy in said


@pytest.mark.parametrize("name", ["a/b", "..", ".hidden", "a\\b", "../up", "c:", "what?", "new\nline", "bell\a"])
def test_a_name_that_is_no_folder_is_refused(name):
    assert "name becomes the name of a folder" in refusal({"name": name})
