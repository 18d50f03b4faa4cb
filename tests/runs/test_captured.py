"""Which share of the gradient's energy a round's packets carry: measured where an algorithm adapts, and only there."""

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import pytest
import tiny
import torch
from torch import Tensor, nn
from torch.nn import functional

import sketchfed
from sketchfed.algorithms import ALGORITHMS, Iterative, RoundContext
from sketchfed.codecs.linear import LinearCode
from sketchfed.config import load_config
from sketchfed.errors import StorageError
from sketchfed.runs import captured
from sketchfed.runs.starting import prepare
from sketchfed.runs.workload import from_config, from_objects
from sketchfed.seeds import PublicSeed
from sketchfed.vectors import Layout

SEED = PublicSeed(3)


@dataclass(frozen=True, eq=False)
class Half:
    """Keeps the first half of the coordinates, and remembers what it is applied to."""

    context: RoundContext

    def apply(self, x: Tensor) -> Tensor:
        Watched.asked.append((self.context.round, self.context.replica.weights.clone(), x.clone()))
        return x[: len(x) // 2] if Watched.answer is None else Watched.answer**0.5 * x

    def adjoint(self, y: Tensor) -> Tensor:
        return pytest.fail("nothing is decoded")


@dataclass(frozen=True, kw_only=True)
class Watched(Iterative):
    """Declares an orthonormal code, as algorithms do that adapt to gradients; what it sends is that of `Iterative`."""

    name = "watched"
    asked: ClassVar[list[tuple[int, Tensor, Tensor]]] = []
    answer: ClassVar[float | None] = None

    def code(self, dim: int, context: RoundContext) -> LinearCode:
        return LinearCode(kind=self.name, shape=(dim // 2,), map=Half(context), orthonormal=True)


@pytest.fixture
def watched(monkeypatch):
    """What `Watched` is asked in this test; configurations may name it."""
    asked = []
    monkeypatch.setattr(Watched, "asked", asked)
    monkeypatch.setitem(ALGORITHMS.built_in, "watched", Watched)
    return asked


def tables(*, rounds=4, **engine):
    made = tiny.tables("projection", rounds=rounds, **engine)
    return made | {"algorithm": made["algorithm"] | {"name": "watched", "form": "unbiased"}}


def shares(run) -> list[float | None]:
    return [line["captured"] for line in run.metrics]


def mean_gradient(weights: Tensor) -> Tensor:
    """By autograd over all examples of the tiny problem, hidden layer of five."""
    x, y = tiny.points(48)
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    flat = weights.clone().requires_grad_()
    loss = functional.cross_entropy(torch.func.functional_call(module, Layout.of(module).views(flat), (x,)), y)
    (gradient,) = torch.autograd.grad(loss, flat)
    return gradient


def test_it_is_asked_of_the_mean_gradient_where_the_clients_start(watched):
    config = load_config(tables())
    first = torch.cat([parameter.detach().reshape(-1) for parameter in from_config(config).module.parameters()])
    run = sketchfed.run(config)
    assert [index for index, _, _ in watched] == [0, 1, 2, 3]
    assert torch.equal(watched[0][1], first)
    for _, weights, gradient in watched:
        wanted = mean_gradient(weights)
        assert float(functional.cosine_similarity(gradient, wanted, dim=0)) == pytest.approx(-1, abs=1e-6)
        assert float(gradient.norm() / wanted.norm()) == pytest.approx(2**20 * 48, rel=1e-5)
    assert shares(run) == [pytest.approx(float(g[:21].square().sum() / g.square().sum())) for _, _, g in watched]


def test_only_rounds_that_are_scored_are_measured(watched):
    run = sketchfed.run(tables(rounds=5, evaluate_every=2))
    assert [share is None for share in shares(run)] == [line["loss"] is None for line in run.metrics]
    assert [index for index, _, _ in watched] == [1, 3, 4]


def test_workers_and_interruptions_do_not_change_it(watched, tmp_path):
    def stop(line):
        if line["round"] == 2:
            raise KeyboardInterrupt

    whole = sketchfed.run(tables(workers=1))
    assert shares(sketchfed.run(tables(workers=3))) == shares(whole)
    with pytest.raises(KeyboardInterrupt):
        sketchfed.run(tables(checkpoint_seconds=0), folder=tmp_path, on_round=stop)
    assert shares(sketchfed.resume(tmp_path)) == shares(whole)


def test_measuring_changes_nothing_else(watched, monkeypatch):
    """Also where the model draws from torch's generator."""
    objects = {"clients": [tiny.points(16, first=16 * n) for n in range(3)], "test": tiny.points(30, first=100)}
    work = {"algorithm": {"name": "watched", "rounds": 3, "local_steps": 2}}

    def weights() -> Tensor:
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 3))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.linspace(-0.5, 0.5, parameter.numel()).reshape(parameter.shape))
        return sketchfed.run(work, model=model, **objects).weights

    measured = weights()
    assert len(watched) == 3
    monkeypatch.setattr(Watched, "code", Iterative.code)
    assert torch.equal(weights(), measured)
    assert len(watched) == 3


@pytest.mark.parametrize("kind", tiny.ALGORITHMS)
def test_for_algorithms_that_do_not_adapt_nothing_is_computed(kind, monkeypatch):
    monkeypatch.setattr(captured, "training_sample", lambda *_: pytest.fail("a sample was drawn"))
    config = load_config(tiny.tables(kind, rounds=2))
    if config.algorithm.name != "dome":
        assert shares(sketchfed.run(config)) == [None, None]


@pytest.mark.parametrize(("answer", "told"), [(1 + 1e-7, 1.0), (0.0, 0.0), (0.25, 0.25)])
def test_it_is_at_most_one(watched, monkeypatch, answer, told):
    monkeypatch.setattr(Watched, "answer", answer)
    assert shares(sketchfed.run(tables(rounds=1))) == [told]


def test_without_a_gradient_there_is_no_share(watched):
    code = Watched().code(3, RoundContext(round=0, seed=SEED, client=0))
    for parts in ([torch.zeros(3)], [torch.tensor([1.0, 0, 0]), torch.tensor([-1.0, 0, 0])], [torch.full((3,), torch.nan)]):
        assert captured.captured_share(code, parts) is None
    assert watched == []


def test_dome_tells_what_its_subspace_holds():
    algorithm = {"name": "dome", "rounds": 3}
    some = sketchfed.run({"data": tiny.DATA, "algorithm": algorithm, "subspace": {"size": 8}})
    assert all(0 < share < 1 for share in shares(some))
    whole = sketchfed.run({"data": tiny.DATA, "algorithm": algorithm, "subspace": {"name": "whole"}})
    assert shares(whole) == [1.0] * 3


# --- the sample


def given(sizes):
    """A workload whose examples are their own numbers."""
    ends = torch.tensor([0, *sizes]).cumsum(0).tolist()
    numbers = [torch.arange(start, end).float() for start, end in pairwise(ends)]
    clients = [(part[:, None], part[:, None]) for part in numbers]
    return from_objects(nn.Linear(1, 1), clients, clients[0], None, "regression")


def drawn(sizes, seed=SEED) -> list[int]:
    return [int(x) for chunk in captured.training_sample(given(sizes), seed) for x in chunk.x]


def test_few_examples_are_all_taken():
    assert drawn([5, 1, 7]) == list(range(13))


def test_of_many_a_fixed_number_is_drawn_from_each_client_in_proportion():
    sizes = [6_000, 3_000, 1, 999]
    rows = drawn(sizes)
    assert len(rows) == len(set(rows)) == captured.EXAMPLES
    counts = torch.histogram(torch.tensor(rows).float(), torch.tensor([0.0, 6_000, 9_000, 9_001, 10_000])).hist
    assert all(abs(count - captured.EXAMPLES * size / 10_000) < 1 for count, size in zip(counts, sizes, strict=True))
    assert rows == drawn(sizes)
    assert rows != drawn(sizes, PublicSeed(4))


def test_it_is_drawn_once(watched, monkeypatch):
    made, sample = [], captured.training_sample
    monkeypatch.setattr(captured, "training_sample", lambda *given: made.append(1) or sample(*given))
    loop = prepare(load_config(tables()))
    assert made == []
    loop.finish()
    assert made == [1]


# --- runs from before it was measured


def older(folder) -> None:
    """Take the key away from a run's metrics."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["captured"]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_run_from_before_goes_on(tmp_path):
    run = sketchfed.run(tiny.tables("fedavg", rounds=3), folder=tmp_path)
    older(tmp_path)
    assert sketchfed.resume(tmp_path).metrics == run.metrics


def test_another_missing_key_is_still_refused(tmp_path):
    sketchfed.run(tiny.tables("fedavg", rounds=3), folder=tmp_path)
    text = (tmp_path / "metrics.jsonl").read_text().replace('"participants"', '"captured"')
    (tmp_path / "metrics.jsonl").write_text(text)
    with pytest.raises(StorageError, match="should hold rounds 1 to 3"):
        sketchfed.resume(tmp_path)
