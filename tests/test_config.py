import sys
from dataclasses import FrozenInstanceError, dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config_refusal import refusal
from sketchfed.algorithms import ALGORITHMS, FedAvg, Iterative
from sketchfed.algorithms.settings import default_global_rate
from sketchfed.codecs import CODECS
from sketchfed.config import Config, load_config
from sketchfed.data import DATA_SETS
from sketchfed.errors import InputError
from sketchfed.models import MODELS
from sketchfed.sketches import SKETCHES

FULL = """
name = "mnist-tenth"
seed = 3

[data]
name = "mnist"
clients = 100
partition = "dirichlet"
concentration = 0.3

[model]
name = "mlp"
hidden = [200, 200]

[algorithm]
name = "iterative"
rounds = 200
participation = 0.1
local_steps = 5
batch = 10

[sketch]
name = "srht"
ratio = 0.1
bits = 4
"""


@pytest.fixture
def own_parts(tmp_path, monkeypatch):
    """A current folder with a module of somebody's own functions."""
    (tmp_path / "own_parts.py").write_text(
        "def data(*, size=3, kind='round', scale, rows=None): ...\n"
        "def any_data(**options): ...\n"
        "def model(shape, outputs, width=7, depth=2): ...\n"
        "def any_model(*, shape=(1,), outputs, **options): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("own_parts", None)


@pytest.mark.parametrize("image", [[28.0, 28.0], ["a", 8], [8, True]])
def test_a_list_with_a_wrong_entry_is_refused_whole(image):
    with pytest.raises(InputError, match=r"subspace\.image must be an integer, got "):
        load_config({"algorithm": {"name": "dome"}, "subspace": {"image": image}})


def test_a_full_file_becomes_frozen_settings(tmp_path):
    (tmp_path / "full.toml").write_text(FULL)
    config = load_config(tmp_path / "full.toml")
    assert config == load_config(str(tmp_path / "full.toml"))
    assert (config.name, config.seed, config.label) == ("mnist-tenth", 3, "iterative srht 1/10 4 bits")
    assert (config.data.name, config.data.clients, config.data.partition) == ("mnist", 100, "dirichlet")
    assert config.data.split_options() == ({}, {"concentration": 0.3})
    assert config.model.options == {"hidden": [200, 200]}
    assert isinstance(config.algorithm, Iterative)
    assert (config.algorithm.rounds, config.algorithm.participation, config.algorithm.batch) == (200, 0.1, 10)
    assert (config.algorithm.sketch.ratio, config.algorithm.sketch.bits) == (0.1, 4)
    with pytest.raises(FrozenInstanceError):
        config.algorithm.sketch.bits = 8  # type: ignore[misc]


def test_nothing_at_all_is_a_configuration():
    assert load_config({}) == Config() == load_config(Config())
    assert isinstance(Config().algorithm, FedAvg)


@pytest.mark.parametrize(
    ("table", "names"),
    [("data", DATA_SETS), ("model", MODELS), ("algorithm", ALGORITHMS)],
    ids=["data", "model", "algorithm"],
)
def test_every_key_but_the_name_has_a_default(table, names):
    for name in names:
        noise = {"privacy": {"epsilon": 3.0}} if name == "private_iterative" else {}
        assert load_config({table: {"name": name}, **noise}).to_tables()[table]["name"] == name


def test_every_sketch_and_codec_needs_its_name_only():
    for name in SKETCHES:
        assert load_config({"algorithm": {"name": "iterative"}, "sketch": {"name": name}}).algorithm.sketch.name == name
    for name in CODECS:
        assert load_config({"codec": {"name": name}}).algorithm.codec.name == name
    assert load_config({"algorithm": {"name": "fetchsgd"}, "sketch": {"ratio": 0.2}}).algorithm.sketch.name == "count"


def test_the_tables_given_are_left_alone():
    tables = {"algorithm": {"name": "iterative"}, "sketch": {"ratio": 0.5}}
    load_config(tables, ["sketch.bits=4", "engine.workers=1"])
    assert tables == {"algorithm": {"name": "iterative"}, "sketch": {"ratio": 0.5}}


# --- to a file and back


names = st.text("abcXYZ 019_-.äö", max_size=12).filter(lambda name: not name.startswith("."))


rates = st.floats(1e-6, 10, allow_nan=False)


shares = st.floats(0, 0.99)


def some(**keys):
    """Tables with any of these keys."""
    return st.fixed_dictionaries({}, optional=keys)


partitions = st.sampled_from(
    [{}, {"partition": "shards", "shards": 3}, {"partition": "dirichlet", "concentration": 0.25}, {"partition": "natural"}]
)


data_sets = st.sampled_from([{"name": "digits"}, {"name": "mnist"}, {"name": "ujiindoorloc", "target": "position"}])


data = st.builds(
    lambda *parts: {key: value for part in parts for key, value in part.items()},
    *(some(clients=st.integers(1, 10**6), validation=shares), partitions, data_sets),
)


hidden = st.lists(st.integers(1, 10**4), min_size=1, max_size=3)


models = st.one_of(
    some(name=st.just("mlp"), hidden=hidden), st.builds(lambda name: {"name": name}, st.sampled_from(sorted(MODELS)))
)


local_work = some(
    rounds=st.integers(1, 10**6),
    participation=st.floats(1e-3, 1),
    batch=st.integers(1, 10**4),
    local_rate=rates,
    local_momentum=shares,
    weight_decay=rates,
    global_rate=rates,
    final_rate=st.floats(0.01, 1),
)


momentum = some(global_momentum=shares)


how_long = st.sampled_from([{}, {"local_steps": 5}, {"local_epochs": 2}])


sizes = st.one_of(st.just({}), st.builds(lambda ratio: {"ratio": ratio}, st.floats(0.01, 1)), st.just({"size": 77}))


bits = some(bits=st.sampled_from([32, 16, 8, 4, 3, 2]))


families = st.one_of(
    st.builds(lambda name: {"name": name}, st.sampled_from(sorted(SKETCHES))), st.just({"name": "sparse", "nonzeros": 2})
)


rules = st.sampled_from([{}, {"name": "incremental_svd", "share": 0.25}, {"name": "history_pca"}, {"name": "fresh"}])


ways = st.sampled_from(["plain", "sketched", "withheld"])


codecs = st.one_of(
    st.builds(lambda name: {"name": name}, st.sampled_from(sorted(CODECS))),
    st.builds(lambda size: {"name": "top_k", "bits": 4, **size}, sizes),
    st.builds(lambda size: {"name": "qsgd", "bucket": 64, "norm_bound": 5.0, **size}, sizes),
    st.builds(lambda belief: {"name": "rand_k_spatial", "correlation": belief}, st.sampled_from([0.0, "avg"])),
)


def merged(*parts):
    return st.builds(lambda *all_parts: {key: value for part in all_parts for key, value in part.items()}, *parts)


@st.composite
def configurations(draw):
    name = draw(
        st.sampled_from(sorted(name for name, kind in ALGORITHMS.items() if kind.served and kind.noise_defaults is None))
    )
    own = {
        "fedavg": some(error_feedback=st.booleans(), prediction=st.booleans()),
        "iterative": some(form=st.sampled_from(["unbiased", "projection"])),
        "gossip_exact": some(grid=st.integers(1, 40)),
        "fetchsgd": some(rows=st.sampled_from([1, 3, 5, 9]), fetched=st.integers(1, 99), masking=st.booleans()),
        "dbcl": some(vary=st.floats(0, 0.9), exclude=st.just(["3"]), output=ways, biases=ways, public_start=st.booleans()),
        "dome": some(beta1=shares, beta2=shares, debias=st.booleans(), remove_mean=st.booleans(), floor=rates),
    }[name]
    rest = st.just({}) if name == "dome" else momentum
    work = draw(merged(local_work, how_long, rest, own))
    tables = {"data": draw(data), "model": draw(models), "algorithm": {"name": name, **work}}
    if name == "iterative":
        tables["sketch"] = draw(merged(families, sizes, bits, some(bits_down=st.sampled_from([8, 4]))))
    elif name == "gossip_exact":
        tables["sketch"] = draw(merged(families, sizes, some(bits_down=st.sampled_from([8, 4]))))
    elif name == "dome":
        tables["subspace"] = draw(st.one_of(merged(rules, some(size=st.integers(2, 999))), st.just({"name": "whole"})))
    elif name == "dbcl":
        tables["sketch"] = draw(merged(families, sizes))
    elif name == "fetchsgd":
        tables["sketch"] = draw(merged(sizes, st.just({"name": "count"})))
    elif draw(st.booleans()):
        tables["codec"] = {"name": "sketched"}
        tables["sketch"] = draw(merged(families, sizes, bits))
    else:
        tables["codec"] = draw(codecs)
    tables |= draw(some(name=names, seed=st.integers(0, 2**64 - 1), engine=some(workers=st.integers(0, 8))))
    return tables


@given(tables=configurations())
@settings(max_examples=150, deadline=None)
def test_a_configuration_survives_its_file(tables, tmp_path_factory):
    config = load_config(tables)
    file = tmp_path_factory.getbasetemp() / "survives.toml"
    file.write_text(config.to_toml(), encoding="utf-8")
    assert load_config(file) == config


@given(tables=configurations())
@settings(max_examples=50, deadline=None)
def test_what_is_completed_stays_as_it_is(tables):
    config = replace(load_config(tables), model=Config().model)
    complete = config.completed(dim=5_000, sizes=[5] * 12)
    assert complete.completed(dim=5_000, sizes=[5] * 12) == complete == load_config(complete.to_tables())
    assert complete.label == config.label


def test_completing_spells_every_default_out():
    tables = {
        "data": {"name": "ujiindoorloc", "partition": "dirichlet", "minimum": 3},
        "algorithm": {"name": "iterative"},
        "sketch": {"ratio": 0.02},
    }
    complete = load_config(tables).completed(dim=10_000, sizes=[5] * 7).to_tables()
    assert complete["data"] | complete["model"] == {
        **{"clients": 7, "partition": "dirichlet", "validation": 0.0, "concentration": 0.5, "minimum": 3},
        **{"target": "floor", "by": "user", "name": "mlp", "hidden": [64, 64]},
    }
    algorithm = complete["algorithm"]
    assert (algorithm["rounds"], algorithm["local_epochs"], algorithm["form"]) == (100, 1, "unbiased")
    assert algorithm["global_rate"] == default_global_rate(0.02)
    assert complete["sketch"] == {"name": "srht", "ratio": 0.02, "bits": 32}
    tenth = load_config({"algorithm": {"name": "iterative"}}).completed(dim=10_000, sizes=[5] * 7)
    assert (tenth.algorithm.sketch.ratio, tenth.algorithm.sketch.size) == (0.1, None)
    fetching = load_config({"algorithm": {"name": "fetchsgd"}}).completed(dim=10_000, sizes=[5] * 7)
    assert (fetching.algorithm.fetched, fetching.algorithm.global_rate) == (100, pytest.approx(0.1))


# --- somebody's own data and models


def test_own_functions_are_named_with_their_options(own_parts):
    config = load_config(
        {
            "data": {"name": "own_parts:data", "partition": "dirichlet", "scale": 2, "minimum": 4},
            "model": {"name": "own_parts:model", "width": 9},
        }
    )
    assert config.data.split_options() == ({"scale": 2}, {"minimum": 4})
    complete = config.completed(dim=100, sizes=[5] * 3)
    assert complete.data.options == {"size": 3, "kind": "round", "scale": 2, "concentration": 0.5, "minimum": 4}
    assert complete.model.options == {"width": 9, "depth": 2}
    assert load_config(complete.to_tables()) == complete


def test_own_functions_that_take_anything_are_given_anything(own_parts):
    config = load_config(
        {
            "data": {"name": "own_parts:any_data", "partition": "shards", "shards": 3, "colour": "red"},
            "model": {"name": "own_parts:any_model", "width": 9},
        }
    )
    assert config.data.split_options() == ({"colour": "red"}, {"shards": 3})
    assert config.completed(dim=100, sizes=[5] * 3).model.options == {"width": 9}


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ({"data": {"name": "own_parts:data", "scael": 2}}, "there is no key in [data] named 'scael'. Did you mean 'scale'?"),
        ({"model": {"name": "own_parts:model", "wdith": 2}}, "there is no key in [model] named 'wdith'. Did you mean 'width'?"),
        ({"model": {"name": "own_parts:model", "outputs": 2}}, "there is no key in [model] named 'outputs'"),
        ({"data": {"name": "own_parts:nothing"}}, "module 'own_parts' has no 'nothing'"),
        ({"model": {"name": "own_part:model"}}, "there is no module 'own_part'"),
        ({"data": {"name": "own_parts.py:data"}}, "there is no module 'own_parts.py'"),
        ({"model": {"name": "own parts:model"}}, "write 'package.module:function'"),
    ],
)
def test_own_functions_that_do_not_fit_are_refused(own_parts, tables, why):
    assert why in refusal(tables)


def test_labels_say_what_is_sent():
    def label(**tables):
        return load_config(tables).label

    assert label() == "fedavg"
    assert label(codec={"name": "sketched"}, sketch={"ratio": 0.01}) == "fedavg srht 1/100"
    assert label(codec={"name": "top_k"}, algorithm={"error_feedback": True}) == "fedavg top_k 1/10 error feedback"
    assert label(codec={"name": "rand_k", "size": 50, "bits": 4}) == "fedavg rand_k 50 4 bits"
    assert label(codec={"name": "qsgd", "bits": 2}, algorithm={"prediction": True}) == "fedavg qsgd 2 bits prediction"
    assert label(algorithm={"name": "iterative", "form": "projection"}) == "iterative srht 1/10 projection"
    assert label(algorithm={"name": "iterative"}, sketch={"bits": 4, "bits_down": 8}) == "iterative srht 1/10 4/8 bits"
    assert label(algorithm={"name": "fetchsgd"}, sketch={"size": 5_000}) == "fetchsgd count 5,000"


@dataclass(frozen=True, kw_only=True)
class Needy(Iterative):
    """An algorithm of somebody else, with a setting that has no default."""

    strength: int

    name = "needy"


def test_an_algorithm_may_have_a_setting_without_default_beside_tables():
    tables = {"algorithm": {"name": f"{__name__}:Needy", "strength": 3}, "sketch": {"bits": 8}}
    found = load_config(tables)
    assert (type(found.algorithm), found.algorithm.strength, found.algorithm.sketch.bits) == (Needy, 3, 8)
    assert load_config(found.to_tables()) == found
    lacking = refusal(tables | {"algorithm": {"name": f"{__name__}:Needy"}})
    assert lacking == "algorithm.strength has no default. Write strength = … in [algorithm]."


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"training": {"optimiser": "adam"}}, "fedavg adam"),
        ({"training": {"optimiser": "torch.optim:RMSprop", "optimiser_state": "kept"}}, "fedavg RMSprop kept"),
        ({"algorithm": {"local_momentum": 0.9}}, "fedavg local momentum 0.9"),
        ({"algorithm": {"global_momentum": 0.5}}, "fedavg server momentum 0.5"),
        ({"model": {"buffers": "average"}}, "fedavg averaged buffers"),
        ({"model": {"buffers": "local", "personal": ["head.*"]}}, "fedavg local buffers personal layers"),
        ({"algorithm": {"name": "fetchsgd", "global_momentum": 0.5}}, "fetchsgd server momentum 0.5 count 1/10"),
    ],
)
def test_a_label_tells_baselines_apart(tables, words):
    assert words in load_config(tables).label
