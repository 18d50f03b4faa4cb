"""Contributions that are not finite count as zero: of the client, or of each example by itself."""

import pytest
import torch

from sketchfed.algorithms import Replica, RoundContext
from sketchfed.errors import WireError
from sketchfed.models import build
from sketchfed.protection import ClientWork
from sketchfed.runs.workload import loss_for
from sketchfed.seeds import PublicSeed
from sketchfed.training import Examples, LocalWork, OwnLoop, Turn, make_trainer
from sketchfed.training.total import TotalTrainer

SEED = PublicSeed(3)
WORK = LocalWork(rate=0.1, steps=2, batch=3)
KEPT = torch.tensor([0, 1, 3, 4, 5])


@pytest.fixture(params=["mlp", "logistic"])
def inner(request):
    return make_trainer(build(request.param, shape=(4,), outputs=3, seed=SEED), loss_for("classification", None))


@pytest.fixture
def weights(inner):
    return torch.linspace(-0.5, 0.5, inner.dim)


def examples(spoilt: float | None = None) -> Examples:
    """Six examples. The third one has this value in it."""
    x = torch.linspace(-1, 1, 24).reshape(6, 4).clone()
    if spoilt is not None:
        x[2, 1] = spoilt
    return Examples(x, torch.arange(6) % 3)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_example_that_breaks_the_model_counts_as_zero_and_the_others_count_as_ever(inner, weights, value):
    whole = examples()
    total, broken, others = TotalTrainer(inner), examples(value), Examples(whole.x[KEPT], whole.y[KEPT])
    rows = total.gradients(weights, broken).clone()
    assert not rows[2].any()
    torch.testing.assert_close(rows[KEPT], inner.gradients(weights, others), rtol=1e-5, atol=1e-6)
    found = total.clipped_sum(weights, broken, 1.0)
    torch.testing.assert_close(found, inner.clipped_sum(weights, others, 1.0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_client_whose_training_breaks_changes_nothing(inner, weights, value):
    assert torch.equal(TotalTrainer(inner).train(weights, examples(value), WORK, Turn(SEED)), weights)


def test_training_that_does_not_break_is_left_alone(inner, weights):
    total = TotalTrainer(inner)
    assert torch.equal(total.train(weights, examples(), WORK, Turn(SEED)), inner.train(weights, examples(), WORK, Turn(SEED)))
    assert torch.equal(total.clipped_sum(weights, examples(), 0.1), inner.clipped_sum(weights, examples(), 0.1))
    assert torch.equal(total.gradients(weights, examples()), inner.gradients(weights, examples()))


class Raising:
    """A loss that raises an exception for one value among the inputs of a linear model."""

    def __init__(self) -> None:
        self.module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Identity())

    def __call__(self, outputs, targets):
        if not bool(torch.isfinite(outputs).all()):
            raise ValueError("cannot take a logarithm of this")
        return torch.nn.functional.cross_entropy(outputs, targets)


def test_a_client_whose_loss_raises_changes_nothing_and_answers(caplog):
    loss = Raising()
    inner = make_trainer(loss.module, loss)
    weights = torch.linspace(-0.5, 0.5, inner.dim)
    with pytest.raises(ValueError, match="logarithm"):
        inner.train(weights, examples(float("nan")), WORK, Turn(SEED))
    assert torch.equal(TotalTrainer(inner).train(weights, examples(float("nan")), WORK, Turn(SEED)), weights)
    assert "Nobody else is told" in caplog.text
    assert "logarithm" in caplog.text


def diverges(model, data, context):
    context.kept["turns"] = 1
    with torch.no_grad():
        model[0].weight.add_(1.0)
    if context.settings["how"] == "raises":
        raise RuntimeError("a certain example")
    return {"share": float("nan")}


@pytest.mark.parametrize("how", ["raises", "returns NaN"])
def test_a_loop_of_the_users_own_that_fails_counts_as_zero_and_keeps_nothing(how):
    loop = OwnLoop(torch.nn.Sequential(torch.nn.Linear(4, 3)), diverges, {"how": how}, name="diverges")
    weights, turn = torch.zeros(loop.dim), Turn(SEED)
    assert torch.equal(TotalTrainer(loop).train(weights, None, WORK, turn), weights)
    assert not turn.kept


def test_a_message_that_does_not_fit_is_no_exception_of_training(inner, weights):
    """A server could otherwise make all clients but one count as zero, and read that one's update in the sum."""

    def refuse(model, data, context):
        raise WireError("the message asks for another function")

    loop = OwnLoop(build("mlp", shape=(4,), outputs=3, seed=SEED), refuse, {}, name="refuse")
    with pytest.raises(WireError):
        TotalTrainer(loop).train(torch.zeros(loop.dim), examples(), WORK, Turn(SEED))


@pytest.mark.parametrize("spoilt", [False, True])
def test_what_a_client_keeps_is_as_before_if_its_update_counts_as_zero(spoilt):
    """The user's function changes what is kept, in place too, before it fails."""

    def train(model, data, context):
        context.kept["rounds"] = context.kept["rounds"] + 1
        context.kept["state"] += float("nan")
        if not spoilt:
            raise ValueError("no")
        next(model.parameters()).data.fill_(float("nan"))

    module = torch.nn.Linear(2, 1)
    trainer = TotalTrainer(OwnLoop(module, train, {}, name="train"))
    replica, context = Replica(round=0, weights=torch.zeros(3)), RoundContext(round=0, seed=SEED, client=0)
    kept = {"rounds": 4, "state": torch.ones(2)}
    work = ClientWork(trainer=trainer, replica=replica, examples=examples(), memory=None, context=context, kept=kept)
    assert not work.trained(WORK).values.any()
    assert work.kept["rounds"] == 4
    assert torch.equal(work.kept["state"], torch.ones(2))
