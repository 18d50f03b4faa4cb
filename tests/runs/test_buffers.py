"""BatchNorm and other buffers: averaged, kept by each client, or refused. Personal parameters."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional

import sketchfed
from sketchfed.errors import InputError

TRUTH = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
ROUNDS = {"rounds": 4, "local_steps": 3, "local_rate": 0.1}


def pair(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(size, 6, generator=torch.Generator().manual_seed(seed)) * (1 + seed / 2) + seed
    return x, (x @ TRUTH).argmax(1)


CLIENTS = [pair(12, seed) for seed in range(3)]
TEST = pair(40, 1)


def net() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def given(model=None, **others):
    return {"model": model or net(), "clients": CLIENTS, "test": TEST, **others}


def run(model_table=None, algorithm=None, tables=None, **others):
    config = {"algorithm": {**ROUNDS, **(algorithm or {})}, **(tables or {})}
    return sketchfed.run({**config, "model": model_table} if model_table else config, **given(**others))


def descended(model: nn.Module, client: int, *, decay: float = 0.0, momentum: float = 0.0) -> None:
    """Three steps of plain torch on a client's data."""
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=momentum, weight_decay=decay
    )
    model.train()
    for _ in range(3):
        optimizer.zero_grad()
        functional.cross_entropy(model(CLIENTS[client][0]), CLIENTS[client][1]).backward()
        optimizer.step()


def averaged(states: list[dict[str, torch.Tensor]], names: list[str]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in names}


@pytest.mark.parametrize("own", [{}, {"local_momentum": 0.9, "weight_decay": 0.01}], ids=["plain", "momentum and decay"])
def test_averaged_buffers_are_those_of_fedavg_on_the_state_dict(own):
    reference = net()
    names = [name for name in reference.state_dict() if "num_batches" not in name]
    for _ in range(4):
        copies = [deepcopy(reference) for _ in CLIENTS]
        for client, copy in enumerate(copies):
            descended(copy, client, decay=own.get("weight_decay", 0.0), momentum=own.get("local_momentum", 0.0))
        reference.load_state_dict({**reference.state_dict(), **averaged([copy.state_dict() for copy in copies], names)})
    found = run({"buffers": "average"}, own)
    for name in names:
        assert torch.allclose(found.module.state_dict()[name], reference.state_dict()[name], atol=1e-4), name
    assert found.metrics[-1]["accuracy"] == pytest.approx(
        float((reference.eval()(TEST[0]).argmax(1) == TEST[1]).float().mean()), abs=0.03
    )


def test_a_loop_of_ones_own_averages_buffers_too():
    def train(model, data, context):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            functional.cross_entropy(model(data[0]), data[1]).backward()
            optimizer.step()

    loop = sketchfed.run({"algorithm": {"rounds": 4}, "model": {"buffers": "average"}}, **given(train=train))
    assert torch.allclose(loop.weights, run({"buffers": "average"}).weights, atol=1e-5)


LOSSY = {
    "sketch": ({"name": "iterative"}, {"sketch": {"ratio": 0.2}}),
    "sketch of 2 bits": ({"name": "iterative"}, {"sketch": {"ratio": 0.2, "bits": 2}}),
    "sketch up": ({}, {"codec": {"name": "sketched"}, "sketch": {"ratio": 0.2, "bits": 4}}),
    "top_k": ({}, {"codec": {"name": "top_k", "ratio": 0.1}}),
    "qsgd": ({}, {"codec": {"name": "qsgd"}}),
    "sign": ({"error_feedback": True}, {"codec": {"name": "sign"}}),
    "float16": ({}, {"codec": {"name": "dense", "precision": "float16"}}),
    "adam": ({"server": "adam"}, {}),
    "momentum": ({"global_momentum": 0.9, "global_rate": 0.1}, {}),
    "global rate": ({"global_rate": 0.3}, {}),
    "weights": ({"weighting": "examples"}, {}),
    "layers": ({"name": "iterative"}, {"sketch": {"ratio": 0.3, "blocks": "layer", "plain": ["*.bias"]}}),
}


@pytest.mark.parametrize("way", LOSSY)
def test_whatever_happens_to_parameters_buffers_become_the_clients_mean(way):
    """After one round, all ways hold the same buffers, because all clients began with the same weights."""
    algorithm, tables = LOSSY[way]
    exact = run({"buffers": "average"}, {"rounds": 1}).module
    found = run({"buffers": "average"}, {**algorithm, "rounds": 1}, tables).module
    for name in ("1.running_mean", "1.running_var"):
        assert torch.allclose(found.get_buffer(name), exact.get_buffer(name), atol=1e-5), name
    assert exact.get_buffer("1.running_mean").norm() > 0.1


def test_averaged_buffers_are_counted_in_bytes():
    """Sixteen numbers of four bytes, beside what GroupNorm sends."""
    without = run(model=nn.Sequential(nn.Linear(6, 8), nn.GroupNorm(1, 8), nn.ReLU(), nn.Linear(8, 3)))
    found = run({"buffers": "average"})
    assert found.dim - without.dim == 16
    assert found.metrics[-1]["uplink_bytes"] - without.metrics[-1]["uplink_bytes"] == 16 * 4 * 3 * 4


def test_local_buffers_stay_with_each_client_as_in_fedbn():
    reference, own = net(), {}
    names = [name for name, _ in reference.named_parameters()]
    for _ in range(4):
        copies = [deepcopy(reference) for _ in CLIENTS]
        for client, copy in enumerate(copies):
            copy.load_state_dict({**copy.state_dict(), **own.get(client, {})})
            descended(copy, client)
            own[client] = {name: buffer.clone() for name, buffer in copy.named_buffers()}
        reference.load_state_dict({**reference.state_dict(), **averaged([copy.state_dict() for copy in copies], names)})
    found = run({"buffers": "local"})
    assert torch.allclose(found.weights, torch.nn.utils.parameters_to_vector(reference.parameters()), atol=1e-4)
    assert found.dim == sum(parameter.numel() for parameter in net().parameters())


@pytest.mark.parametrize("tables", [{}, {"secure": {"clip": 500.0}}], ids=["clear", "secure sums"])
def test_negative_variances_of_one_client_do_not_stop_the_run(tables):
    def broken(model, data, context):
        if context.client == 0:
            model[1].running_var.fill_(-60.0)
        else:
            model[1].running_var.mul_(1.0)

    def evaluate(model, data, context):
        return {"loss": float(functional.cross_entropy(model(data[0]), data[1]))}

    found = run({"buffers": "average"}, {"local_steps": None}, tables, train=broken, evaluate=evaluate)
    assert len(found.metrics) == 4
    assert found.module[1].running_var.min() >= 0


def test_secure_sums_add_buffers_and_noise_refuses_them():
    exact, summed = run({"buffers": "average"}), run({"buffers": "average"}, tables={"secure": {"clip": 30.0}})
    assert torch.allclose(exact.weights, summed.weights, atol=1e-3)
    noise = {"privacy": {"unit": "client", "noise_multiplier": 1.0, "delta": 1e-3, "clip": 1.0}}
    with pytest.raises(InputError, match="a running variance can become negative"):
        run({"buffers": "average"}, tables=noise)
    assert run({"buffers": "local"}, tables=noise).metrics[-1]["epsilon"] > 0


def test_buffers_of_which_nothing_is_said_are_refused_with_the_choice():
    with pytest.raises(InputError, match=r"changes the buffer '1.running_mean'.*model.buffers = 'average'.*'local'"):
        run()


class Counting(nn.Module):
    """A layer with a buffer of its own that training changes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)
        self.register_buffer("peak", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.peak.copy_(torch.maximum(self.peak, x.detach().abs().max()))
        return self.inner(x)


def test_other_buffers_are_named():
    with pytest.raises(InputError, match=r"model.running = \['peak'\]"):
        run(model=Counting())
    found = run({"buffers": "average", "running": ["peak"]}, model=Counting())
    expected = torch.stack([x.abs().max() for x, _ in CLIENTS]).mean()
    assert found.module.peak > 0.5 * expected


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"running": ["peak"]}, "nothing says what happens to them"),
        ({"buffers": "average", "running": ["nothing.*"]}, "'nothing.*' matches no buffer. There are 1.running_mean"),
        ({"personal": ["head.*"]}, "'head.*' matches no trainable parameter. There are 0.weight"),
        ({"personal": ["*"]}, "leaves no trainable parameter"),
        ({"buffers": "sum"}, "buffers"),
    ],
)
def test_names_that_fit_nothing_are_refused(table, why):
    with pytest.raises(InputError, match=why.replace("*", r"\*")):
        run(table)


def test_averaging_cumulative_statistics_is_refused():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=None), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(InputError, match="momentum=None"):
        run({"buffers": "average"}, model=model)
    assert run({"buffers": "local"}, model=model).accuracy is not None


@pytest.mark.parametrize("name", ["fetchsgd", "dome", "dbcl"])
def test_algorithms_that_step_in_their_own_way_refuse_averaged_buffers(name):
    with pytest.raises(InputError, match=r"model.buffers = 'average' does not go with algorithm"):
        run({"buffers": "average"}, {"name": name, "global_rate": 1.0})


def test_one_example_is_evaluated_with_the_averaged_statistics():
    found = run({"buffers": "average"})
    model, (x, _) = found.module.eval(), TEST
    assert torch.allclose(model(x[:1]), model(x)[:1], atol=1e-5)


@pytest.mark.parametrize("placement", ["steps", "sent"])
def test_privacy_for_examples_refuses_personal_layers(placement):
    noise = {"unit": "example", "placement": placement, "noise_multiplier": 1.0, "delta": 1e-3}
    with pytest.raises(InputError, match=r"the gradient of every example depends on the personal layers.*unit = 'client'"):
        run({"personal": ["3.*"]}, {"batch": 4}, {"privacy": noise})
    client = {"unit": "client", "noise_multiplier": 1.0, "delta": 1e-3}
    assert run({"personal": ["3.*"], "buffers": "local"}, tables={"privacy": client}).metrics[-1]["epsilon"] > 0


def test_personal_parameters_never_leave_the_client():
    """As in FedPer (Arivazhagan et al. 2019): the last layer belongs to each client."""
    plain = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    reference, heads = deepcopy(plain), {}
    names = ["0.weight", "0.bias"]
    for _ in range(4):
        copies = [deepcopy(reference) for _ in CLIENTS]
        for client, copy in enumerate(copies):
            copy.load_state_dict({**copy.state_dict(), **heads.get(client, {})})
            descended(copy, client)
            heads[client] = {name: p.detach().clone() for name, p in copy.named_parameters() if name not in names}
        reference.load_state_dict({**reference.state_dict(), **averaged([copy.state_dict() for copy in copies], names)})
    found = run({"personal": ["2.*"]}, model=plain)
    assert found.dim == 6 * 8 + 8
    assert torch.allclose(found.module[0].weight, reference[0].weight, atol=1e-5)
    assert torch.equal(found.module[2].weight, plain[2].weight), "nobody else has a client's head"


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("table", [{"buffers": "average"}, {"buffers": "local"}, {"buffers": "local", "personal": ["3.*"]}])
def test_interrupted_runs_go_on_to_the_same_bits(table, optimiser, tmp_path):
    config = {"algorithm": {**ROUNDS, "participation": 0.67}, "training": {"optimiser": optimiser}, "model": table}
    whole = sketchfed.run(config, **given())

    def stop(line):
        if line["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sketchfed.run({**config, "engine": {"checkpoint_seconds": 0.0}}, folder=tmp_path / "run", on_round=stop, **given())
    assert torch.equal(sketchfed.resume(tmp_path / "run", **given()).weights, whole.weights)


@pytest.mark.parametrize("table", [{"buffers": "average"}, {"buffers": "local"}])
def test_results_do_not_depend_on_the_number_of_threads(table):
    one, three = (run(table, tables={"engine": {"workers": workers}}).weights for workers in (1, 3))
    assert torch.equal(one, three)


def test_the_users_own_module_is_left_alone():
    model = net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    run({"buffers": "local", "personal": ["3.*"]}, model=model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())
