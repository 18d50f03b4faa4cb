"""The trainer for dense layers does what autograd and torch.optim.SGD do, and takes nothing else for its own."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch
from torch import nn

from problems import SEED, by_torch, dense_model, examples
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.seeds import PublicSeed
from sketchfed.training import LOSSES, AutogradTrainer, LocalWork, PerceptronTrainer, Turn, make_trainer
from sketchfed.training.perceptron import LEAST_COMPILED
from sketchfed.vectors import flatten, load

MODELS = {
    "mlp": {"hidden": [8, 5]},
    "mlp, deep": {"hidden": [5, 5, 5, 5]},
    "logistic": {},
    "linear": {},
}
WORK = {
    "one step": LocalWork(rate=0.1, steps=1),
    "five steps": LocalWork(rate=0.1, steps=5),
    "batches, ragged": LocalWork(rate=0.1, batch=5, epochs=2),
    "batches of one": LocalWork(rate=0.05, batch=1),
    "steps in batches": LocalWork(rate=0.1, batch=5, steps=7),
    "momentum": LocalWork(rate=0.1, steps=6, momentum=0.9),
    "decay": LocalWork(rate=0.1, steps=6, decay=0.2),
    "all": LocalWork(rate=0.05, batch=4, epochs=3, momentum=0.5, decay=0.1),
}

KERNELS = ["cross_entropy", "squares"]
"""Losses with hand-written steps."""


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("loss", KERNELS)
@pytest.mark.parametrize("name", MODELS)
def test_it_trains_as_autograd_and_torch_do(name, loss, work):
    module, data = dense_model(name.partition(",")[0], **MODELS[name]), examples(loss=loss)
    weights = flatten(module)
    fast, slow = PerceptronTrainer(module, LOSSES[loss]), AutogradTrainer(module, LOSSES[loss])
    assert isinstance(make_trainer(module, loss), PerceptronTrainer)
    trained = fast.train(weights, data, WORK[work], Turn(SEED))
    assert (trained - weights).norm() > 1e-2, "nothing was learned, so nothing was compared"
    assert torch.allclose(trained, slow.train(weights, data, WORK[work], Turn(SEED)), rtol=0, atol=1e-5)
    assert torch.allclose(trained, by_torch(module, LOSSES[loss], weights, data, WORK[work]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("loss", KERNELS)
def test_it_scores_as_autograd_does(loss):
    module, data = dense_model("mlp", hidden=[8, 5]), examples(50, loss=loss)
    fast, slow, weights = PerceptronTrainer(module, LOSSES[loss]), AutogradTrainer(module, LOSSES[loss]), flatten(module)
    assert torch.allclose(fast.outputs(weights, data.x), module(data.x), atol=1e-6)
    total, right = fast.score(weights, data)
    assert total == pytest.approx(50 * LOSSES[loss](module(data.x), data.y).item(), rel=1e-5)
    assert right == (int((module(data.x).argmax(1) == data.y).sum()) if loss == "cross_entropy" else 0)
    assert slow.score(weights, data) == (pytest.approx(total, rel=1e-5), right)


def test_the_loss_of_squares_has_the_residual_as_its_gradient():
    """½‖output − target‖², averaged over examples and summed over outputs."""
    outputs, targets = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True), torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    loss = LOSSES["squares"](outputs, targets)
    loss.backward()
    assert loss.item() == (1 + 4 + 4 + 9) / 2 / 2
    assert torch.equal(outputs.grad, (outputs - targets).detach() / 2)


def test_images_are_flattened():
    module = nn.Sequential(nn.Flatten(), nn.Linear(6, 4))
    data, work = examples(shape=(1, 2, 3)), LocalWork(rate=0.1, steps=3)
    trainer = make_trainer(module, "cross_entropy")
    assert isinstance(trainer, PerceptronTrainer)
    trained = trainer.train(flatten(module), data, work, Turn(SEED))
    assert torch.allclose(trained, by_torch(module, LOSSES["cross_entropy"], flatten(module), data, work), atol=1e-5)


def test_a_layer_need_not_be_flattened_to():
    assert isinstance(make_trainer(nn.Sequential(nn.Linear(6, 4)), "squares"), PerceptronTrainer)


def hooked(register: str) -> nn.Module:
    module = dense_model("mlp", hidden=[5])
    getattr(module[1], register)(lambda *_: None)
    return module


def frozen(parameter: str) -> nn.Module:
    module = dense_model("mlp", hidden=[5])
    module.get_parameter(parameter).requires_grad_(False)
    return module


def tied() -> nn.Module:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.ReLU(), layer)


class Doubled(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


class Residual(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :4] + super().forward(x)


OTHERS = {
    "frozen weight": frozen("1.weight"),
    "frozen bias": frozen("3.bias"),
    "forward hook": hooked("register_forward_hook"),
    "forward pre-hook": hooked("register_forward_pre_hook"),
    "backward hook": hooked("register_full_backward_hook"),
    "backward pre-hook": hooked("register_full_backward_pre_hook"),
    "tied layers": tied(),
    "no bias": nn.Sequential(nn.Linear(6, 4, bias=False)),
    "other activation": nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)),
    "activation last": nn.Sequential(nn.Linear(6, 4), nn.ReLU()),
    "no activation between": nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4)),
    "dropout": nn.Sequential(nn.Linear(6, 5), nn.Dropout(), nn.Linear(5, 4)),
    "own layer": nn.Sequential(Doubled(6, 4)),
    "own container": Residual(nn.Linear(6, 4)),
    "one layer": nn.Linear(6, 4),
    "nested": nn.Sequential(nn.Sequential(nn.Linear(6, 4))),
    "flattened otherwise": nn.Sequential(nn.Flatten(0), nn.Linear(6, 4)),
    "parametrised": nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 4))),
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_is_not_just_dense_layers_is_left_to_autograd(case):
    assert isinstance(make_trainer(OTHERS[case], "cross_entropy"), AutogradTrainer)


def test_other_losses_are_left_to_autograd_and_unknown_ones_are_refused():
    assert isinstance(make_trainer(dense_model("linear"), nn.functional.l1_loss), AutogradTrainer)
    with pytest.raises(UnknownNameError, match=r"no loss named 'crossentropy'\. Did you mean 'cross_entropy'"):
        make_trainer(dense_model("linear"), "crossentropy")


def test_the_weights_given_are_left_alone_and_those_of_the_module_do_not_matter():
    module, data, work = dense_model("mlp", hidden=[5]), examples(), LocalWork(rate=0.1, batch=5, momentum=0.9, decay=0.1)
    weights = flatten(module)
    before, trainer = weights.clone(), PerceptronTrainer(module, LOSSES["cross_entropy"])
    load(module, torch.zeros_like(weights))
    trained = trainer.train(weights, data, work, Turn(SEED))
    assert torch.equal(weights, before)
    assert trained.data_ptr() != weights.data_ptr()
    assert torch.equal(flatten(module), torch.zeros_like(weights))
    assert not torch.equal(trained, trainer.train(torch.zeros_like(weights), data, work, Turn(SEED)))


def test_threads_do_not_change_a_bit():
    module, work = dense_model("mlp", hidden=[40, 40]), LocalWork(rate=0.1, batch=5, epochs=2, momentum=0.5)
    trainer, weights = PerceptronTrainer(module, LOSSES["cross_entropy"]), flatten(module)
    data = [examples(30 + client) for client in range(12)]
    alone = [trainer.train(weights, own, work, Turn(SEED)) for own in data]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda own: trainer.train(weights, own, work, Turn(SEED)), data))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


@pytest.mark.parametrize(
    ("loss", "data"),
    [
        ("cross_entropy", examples(shape=(7,))),
        ("cross_entropy", examples(40, outputs=9)),
        ("squares", examples(outputs=9, loss="squares")),
    ],
)
def test_data_that_does_not_fit_is_refused_before_training(loss, data):
    trainer = make_trainer(dense_model("mlp", hidden=[5]), loss)
    trainer.check(examples(loss=loss))
    with pytest.raises(InputError, match=r"cannot be trained on examples of shape \(\d,\): |outputs have shape \(23, 4\) and"):
        trainer.check(data)


WIDE = {"mlp, wide": [300, 70], "mlp, odd": [203, 101], "mlp, one hidden layer": [517]}


@pytest.mark.parametrize("work", ["one step", "five steps", "batches, ragged", "batches of one", "steps in batches"])
@pytest.mark.parametrize("loss", KERNELS)
@pytest.mark.parametrize("name", WIDE)
def test_the_kernel_for_larger_models_trains_as_autograd_does(name, loss, work):
    module = nn.Sequential(*_layers(101, *WIDE[name], 4))
    data, weights = examples(23, shape=(101,), loss=loss), flatten(module)
    data = data._replace(x=data.x / 5)
    fast, slow = make_trainer(module, loss), AutogradTrainer(module, LOSSES[loss])
    assert fast.dim >= LEAST_COMPILED
    before = weights.clone()
    trained = fast.train(weights, data, WORK[work], Turn(SEED))
    assert torch.equal(weights, before)
    assert (trained - weights).norm() > 1e-2, "nothing was learned, so nothing was compared"
    assert torch.allclose(trained, slow.train(weights, data, WORK[work], Turn(SEED)), rtol=0, atol=1e-5)


def test_the_kernel_comes_to_the_same_bits_in_any_number_of_threads():
    module, data = nn.Sequential(*_layers(101, 300, 70, 4)), examples(23, shape=(101,))
    trainer, weights, work = make_trainer(module, "cross_entropy"), flatten(module), LocalWork(rate=0.1, batch=5)
    alone = [trainer.train(weights, data, work, Turn(PublicSeed(seed))) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda seed: trainer.train(weights, data, work, Turn(PublicSeed(seed))), range(4)))
    assert all(map(torch.equal, alone, together))


def _layers(*widths: int) -> list[nn.Module]:
    torch.manual_seed(5)
    return [layer for i, o in pairwise(widths) for layer in (nn.Linear(i, o), nn.ReLU())][:-1]
