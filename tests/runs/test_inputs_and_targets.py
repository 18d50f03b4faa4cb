"""Inputs and targets of every form under a loss of outputs and targets, against torch and scikit-learn."""

import copy

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import sketchfed
from sketchfed.errors import InputError

WORDS, LENGTH, KINDS = 9, 5, 3


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Tagger(nn.Module):
    """Classes for each token, in the last dimension, or in dimension 1 as torch's losses have them."""

    def __init__(self, *, second: bool = False, kinds: int = KINDS) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head, self.second = nn.Embedding(WORDS, 8), nn.Linear(8, kinds), second

    def forward(self, tokens):
        scores = self.head(self.embed(tokens))
        return scores.movedim(-1, 1) if self.second else scores


class Shaped(nn.Module):
    """Numbers `(n, 2, 4)`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 8)

    def forward(self, x):
        return self.layer(x).unflatten(1, (2, 4))


def fixed(layer):
    torch.manual_seed(0)
    return layer()


def tags(count, seed):
    tokens = torch.randint(0, WORDS, (count, LENGTH), generator=seeded(seed))
    return tokens, tokens % KINDS


def padded_tags(count, seed):
    tokens, kinds = tags(count, seed)
    return tokens, torch.where(tokens > 6, -100, kinds)


def masks(count, seed):
    images = torch.randn(count, 1, 6, 4, generator=seeded(seed))
    return images, (images[:, 0] > 0).long() + (images[:, 0] > 1)


def labels(count, seed):
    x = torch.randn(count, 4, generator=seeded(seed))
    return x, (x[:, :3] > 0.3).float()


def shapes(count, seed):
    x = torch.randn(count, 4, generator=seeded(seed))
    return x, torch.stack([x, 2 * x], 1)


def classes(count, seed):
    x = torch.randn(count, 4, generator=seeded(seed))
    return x, x[:, :3].argmax(1)


def sentences(count, seed):
    tokens = torch.randint(0, WORDS, (count, LENGTH), generator=seeded(seed))
    return tokens, tokens[:, 0] % KINDS


def flat_cross_entropy(outputs, targets):
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def half_squares(outputs, targets):
    return 0.5 * (outputs - targets).square().flatten(1).sum(1).mean()


def several(outputs, targets):
    return functional.binary_cross_entropy_with_logits(outputs, targets)


ONE_WORD = "a class for each text"
TASKS = {
    "a class for each token": (Tagger, tags, flat_cross_entropy, {"loss": "cross_entropy"}),
    "torch's order of dimensions": (lambda: Tagger(second=True), tags, functional.cross_entropy, {}),
    "tokens without a target": (Tagger, padded_tags, flat_cross_entropy, {"loss": "cross_entropy"}),
    "segmentation": (lambda: fixed(lambda: nn.Conv2d(1, 3, 3, padding=1)), masks, functional.cross_entropy, {}),
    "several labels": (lambda: fixed(lambda: nn.Linear(4, 3)), labels, several, {"loss": "binary_cross_entropy"}),
    "regression of any shape": (Shaped, shapes, half_squares, {"task": "regression"}),
    ONE_WORD: (
        lambda: fixed(lambda: nn.Sequential(nn.Embedding(WORDS, 4), nn.Flatten(), nn.Linear(4 * LENGTH, KINDS))),
        sentences,
        functional.cross_entropy,
        {},
    ),
}
WORK = {"rounds": 2, "local_steps": 2, "local_rate": 0.3}


def by_torch(model, clients, loss):
    """Two rounds of the mean of two full steps of each client."""
    for _ in range(WORK["rounds"]):
        ends = []
        for x, y in clients:
            own = _copy(model)
            for _ in range(WORK["local_steps"]):
                found = torch.autograd.grad(loss(own(x), y), list(own.parameters()))
                with torch.no_grad():
                    for parameter, gradient in zip(own.parameters(), found, strict=True):
                        parameter -= WORK["local_rate"] * gradient
            ends.append(nn.utils.parameters_to_vector(own.parameters()).detach())
        nn.utils.vector_to_parameters(torch.stack(ends).mean(0), model.parameters())
    return model


def _copy(model):
    return copy.deepcopy(model)


@pytest.mark.parametrize("name", TASKS)
def test_training_is_what_torch_does(name):
    make, draw, loss, given = TASKS[name]
    clients, test = [draw(10, seed) for seed in range(3)], draw(300, 99)
    run = sketchfed.run({"algorithm": WORK}, model=make(), clients=clients, test=test, **given)
    model = by_torch(make(), clients, loss)
    torch.testing.assert_close(run.weights, nn.utils.parameters_to_vector(model.parameters()).detach(), rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        assert run.loss == pytest.approx(float(loss(model(test[0]), test[1])), rel=1e-4)


class Rows(IterableDataset):
    """Pairs one after the other."""

    def __init__(self, pair) -> None:
        self._pair = pair

    def __iter__(self):
        return iter(zip(*self._pair, strict=True))


def as_pairs(items):
    return torch.stack([item["x"] for item in items]), torch.stack([item["y"] for item in items])


def arrays(pair):
    x, y = (part.numpy() for part in pair)
    return (x.astype(np.float64) if x.dtype == np.float32 else x), y


FORMS = {
    "tensors": (lambda pair: pair, {}),
    "numpy arrays": (arrays, {}),
    "a TensorDataset": (lambda pair: TensorDataset(*pair), {}),
    "a list of pairs": (lambda pair: list(zip(*pair, strict=True)), {}),
    "a list of dicts": (lambda pair: [{"x": x, "y": y} for x, y in zip(*pair, strict=True)], {"collate": as_pairs}),
    "a DataLoader": (lambda pair: DataLoader(TensorDataset(*pair), batch_size=10), {}),
    "an IterableDataset in a loader": (lambda pair: DataLoader(Rows(pair), batch_size=10), {}),
    "an IterableDataset": (Rows, {}),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("task", ["a class for each token", "segmentation", "several labels", "regression of any shape"])
def test_every_form_of_data_comes_to_the_same_weights_and_metrics(task, form):
    make, draw, _, given = TASKS[task]
    change, more = FORMS[form]
    clients, test = [draw(10, seed) for seed in range(3)], draw(40, 99)
    metric = "r2" if task == "regression of any shape" else "f1"
    plain = sketchfed.run({"algorithm": WORK}, model=make(), clients=clients, test=test, metric=metric, **given)
    work = WORK | ({"batch": 10} if change is Rows else {})  # all examples of a client, which a stream does not know
    run = sketchfed.run(
        {"algorithm": work}, model=make(), clients=[*map(change, clients)], test=change(test), metric=metric, **given, **more
    )
    torch.testing.assert_close(run.weights, plain.weights, rtol=1e-5, atol=1e-6)
    assert run.loss == pytest.approx(plain.loss, rel=1e-4)
    assert run.metrics[-1][metric] == pytest.approx(plain.metrics[-1][metric], abs=1e-6)


@pytest.mark.parametrize("task", ["tokens without a target", "segmentation", "several labels"])
def test_accumulated_parts_have_the_gradient_of_the_whole_batch_whatever_targets_they_have(task):
    make, draw, _, given = TASKS[task]
    clients, test = [draw(10, seed) for seed in range(3)], draw(40, 99)
    runs = [
        sketchfed.run({"algorithm": WORK, "training": {"accumulate": parts}}, model=make(), clients=clients, test=test, **given)
        for parts in (1, 4)
    ]
    torch.testing.assert_close(runs[0].weights, runs[1].weights, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("form", [form for form in FORMS if form != "tensors"])
def test_one_class_for_each_example_may_come_in_every_form_too(form):
    change, more = FORMS[form]
    clients, test = [classes(10, seed) for seed in range(3)], classes(40, 99)
    model = fixed(lambda: nn.Linear(4, 3))
    plain = sketchfed.run({"algorithm": WORK}, model=model, clients=clients, test=test)
    work = WORK | ({"batch": 10} if change is Rows else {})
    run = sketchfed.run({"algorithm": work}, model=model, clients=[*map(change, clients)], test=change(test), **more)
    torch.testing.assert_close(run.weights, plain.weights, rtol=1e-5, atol=1e-6)
    assert (run.accuracy, run.loss) == (plain.accuracy, pytest.approx(plain.loss, rel=1e-5))


def test_metrics_of_positions_are_those_of_scikit_learn():
    names = ["f1", "top2", "auroc", "perplexity"]
    clients, test = [padded_tags(20, seed) for seed in range(3)], padded_tags(300, 99)
    run = sketchfed.run({"algorithm": WORK}, model=Tagger(), clients=clients, test=test, metric=names)
    with torch.no_grad():
        scores = run.module(test[0])[test[1] != -100].double()
    true, shares = test[1][test[1] != -100].numpy(), torch.softmax(scores, 1).numpy()
    found = run.metrics[-1]
    assert run.accuracy == pytest.approx(sk.accuracy_score(true, shares.argmax(1)))
    assert found["f1"] == pytest.approx(sk.f1_score(true, shares.argmax(1), average="macro"))
    assert found["top2"] == pytest.approx(sk.top_k_accuracy_score(true, shares, k=2))
    assert found["auroc"] == pytest.approx(sk.roc_auc_score(true, shares, multi_class="ovr"))
    assert np.log(found["perplexity"]) == pytest.approx(sk.log_loss(true, shares), rel=1e-5)
    assert run.loss == pytest.approx(sk.log_loss(true, shares), rel=1e-5)


def test_metrics_of_several_labels_are_those_of_scikit_learn():
    clients, test = [labels(20, seed) for seed in range(3)], labels(300, 99)
    given = {"model": fixed(lambda: nn.Linear(4, 3)), "clients": clients, "test": test, "loss": "binary_cross_entropy"}
    run = sketchfed.run({"algorithm": WORK}, metric=["f1", "auroc"], **given)
    with torch.no_grad():
        scores, true = run.module(test[0]).double().numpy(), test[1].numpy()
    assert run.accuracy == pytest.approx(1 - sk.hamming_loss(true, scores > 0))
    assert run.metrics[-1]["f1"] == pytest.approx(sk.f1_score(true, scores > 0, average="macro"))
    assert run.metrics[-1]["auroc"] == pytest.approx(sk.roc_auc_score(true, scores, average="macro"))


def test_metrics_of_numbers_of_any_shape_are_those_of_scikit_learn():
    test = shapes(300, 99)
    run = sketchfed.run(
        {"algorithm": WORK}, model=Shaped(), clients=[shapes(20, 1)], test=test, task="regression", metric=["mse", "mae", "r2"]
    )
    with torch.no_grad():
        true, said = test[1].flatten(1).numpy(), run.module(test[0]).flatten(1).numpy()
    assert run.metrics[-1]["mse"] == pytest.approx(sk.mean_squared_error(true, said), rel=1e-5)
    assert run.metrics[-1]["mae"] == pytest.approx(sk.mean_absolute_error(true, said), rel=1e-5)
    assert run.metrics[-1]["r2"] == pytest.approx(sk.r2_score(true, said), rel=1e-5)


def of_lengths(count, seed):
    """Texts of 2 to 5 tokens. Some batches have as many positions as there are classes."""
    return [
        (tokens[: 2 + at % 4], kinds[: 2 + at % 4]) for at, (tokens, kinds) in enumerate(zip(*tags(count, seed), strict=True))
    ]


def padded(batch):
    fill = nn.utils.rnn.pad_sequence
    return fill([x for x, _ in batch], batch_first=True), fill([y for _, y in batch], batch_first=True, padding_value=-100)


@pytest.mark.parametrize("second", [False, True])
def test_texts_of_different_lengths_are_padded_by_collate(second):
    clients, test = [of_lengths(12, seed) for seed in range(3)], of_lengths(300, 99)
    config = {"algorithm": WORK | {"rounds": 3, "batch": 2}}
    run = sketchfed.run(
        config, model=Tagger(second=second), clients=clients, test=test, collate=padded, metric=["f1", "perplexity"]
    )
    assert [line["participants"] for line in run.metrics] == [3, 3, 3]
    with torch.no_grad():
        found = [run.module(tokens[None])[0] for tokens, _ in test]
    scores = torch.cat([each.movedim(0, -1) if second else each for each in found])
    true = torch.cat([kinds for _, kinds in test])
    assert run.accuracy == pytest.approx(float((scores.argmax(1) == true).float().mean()))
    assert run.loss == pytest.approx(float(functional.cross_entropy(scores, true)), rel=1e-4)
    assert run.metrics[-1]["f1"] == pytest.approx(sk.f1_score(true, scores.argmax(1), average="macro"))
    assert run.metrics[-1]["perplexity"] == pytest.approx(np.exp(run.loss), rel=1e-4)


def test_a_client_whose_positions_have_no_target_changes_nothing():
    """Its loss is 0, and not the NaN of a mean of nothing."""
    clients = [tags(10, 0), (tags(10, 1)[0], torch.full((10, LENGTH), -100))]
    alone = sketchfed.run({"algorithm": WORK | {"rounds": 1}}, model=Tagger(), clients=clients[:1], test=tags(10, 9))
    both = sketchfed.run({"algorithm": WORK | {"rounds": 1}}, model=Tagger(), clients=clients, test=tags(10, 9))
    start = nn.utils.parameters_to_vector(Tagger().parameters()).detach()
    torch.testing.assert_close(both.weights - start, (alone.weights - start) / 2, rtol=1e-4, atol=1e-6)


PRIVATE = {"unit": "example", "noise_multiplier": 0.5, "delta": 1e-3, "insecure_noise_seed": 1}


@pytest.mark.parametrize(
    "tables",
    [
        {"algorithm": {"name": "iterative"}, "sketch": {"ratio": 0.3}},
        {"privacy": PRIVATE, "algorithm": {"batch": 4, "participation": 1.0}},
        {"secure": {"clip": 5.0}},
        {"training": {"optimiser": "adam", "accumulate": 2, "proximal": 0.1}},
        {"algorithm": {"name": "dbcl", "output": "sketched"}, "sketch": {"ratio": 0.5}},
    ],
    ids=["sketches", "private examples", "secure sums", "adam", "dbcl"],
)
@pytest.mark.parametrize("task", ["a class for each token", "several labels"])
def test_algorithms_and_protections_take_them(task, tables):
    make, draw, _, given = TASKS[task]
    work = {"rounds": 2, "local_steps": 2} | tables.get("algorithm", {})
    if "privacy" in tables:
        work.pop("local_steps")
    if work.get("name") == "dbcl" and draw is tags:
        work["exclude"] = ["embed"]
    clients, test = [draw(10, seed) for seed in range(3)], draw(40, 99)
    run = sketchfed.run({**tables, "algorithm": work}, model=make(), clients=clients, test=test, **given)
    assert [line["participants"] for line in run.metrics] == [3, 3]
    assert run.loss < 2


def test_an_interrupted_run_goes_on_with_the_same_bits(tmp_path):
    def stop(line):
        if line["round"] == 1:
            raise KeyboardInterrupt

    objects = {"model": Tagger(), "clients": [of_lengths(12, seed) for seed in range(3)], "test": of_lengths(20, 9)}
    objects |= {"collate": padded, "metric": "f1"}
    config = {"algorithm": WORK | {"rounds": 3}, "engine": {"checkpoint_seconds": 0}}
    whole = sketchfed.run(config, **objects)
    with pytest.raises(KeyboardInterrupt):
        sketchfed.run(config, folder=tmp_path / "run", on_round=stop, **objects)
    again = sketchfed.resume(tmp_path / "run", **objects)
    assert torch.equal(again.weights, whole.weights)
    assert [line["f1"] for line in again.metrics] == [line["f1"] for line in whole.metrics]


def spread(outputs, targets):
    return float(outputs.std())


@pytest.mark.parametrize(
    ("objects", "said"),
    [
        ({"model": Tagger(kinds=LENGTH)}, r"can be read in two ways.*Pass batch_loss\(model, batch\), which says which it is"),
        ({"model": Tagger(kinds=2)}, "a target is class 2, and the model has 2 outputs, so classes are 0 to 1"),
        (
            {"model": fixed(lambda: nn.Sequential(nn.Embedding(WORDS, 3), nn.Flatten()))},
            r"outputs are \(n, classes, \.\.\.\) or",
        ),
        ({"model": nn.Linear(LENGTH, 3)}, r"have shape \(2, 3\) and the classes shape \(2, 5\)"),
        ({"redraw": True}, "redraw = True is for Datasets that are read before round 1"),
        ({"metric": "mse"}, "metric = 'mse' does not suit the data, a task of classification"),
        ({"loss": "binary_cross_entropy"}, "outputs have shape .* and the labels shape"),
        ({"loss": "binary_cross_entropy", "metric": "top3"}, "'top3' does not suit the data, a task of labels"),
        ({"task": "tagging"}, "there is no task named 'tagging'.*classification, regression, labels"),
        ({"clients": [DataLoader(Rows(tags(9, 1)))], "algorithm": {"batch": 3}}, "batch = 3 has no effect on a DataLoader"),
        ({"clients": [Rows(tags(9, 1))]}, r"Set algorithm\.batch, or wrap it: DataLoader"),
        (
            {"clients": [{"x": tags(9, 1)[0]}]},
            r"a batch is a dict of 'x', and the loss needs a pair.*batch_loss\(model, batch\)",
        ),
        ({"clients": [[torch.ones(3)] * 4]}, "a batch is an object of type Tensor, and the loss needs a pair"),
        ({"test": (tags(9, 1)[0], torch.full((9, LENGTH), -100))}, "no position of it has a target"),
    ],
)
def test_what_cannot_be_read_is_refused_with_advice(objects, said):
    given = {"model": Tagger(), "clients": [tags(10, 0)], "test": tags(10, 1)} | objects
    algorithm = {"rounds": 1} | given.pop("algorithm", {})
    with pytest.raises(InputError, match=said):
        sketchfed.run({"algorithm": algorithm}, **given)


def test_labels_are_zero_or_one():
    x, y = labels(10, 0)
    given = {"model": nn.Linear(4, 3), "clients": [(x, 3 * y)], "test": (x, y), "loss": "binary_cross_entropy"}
    with pytest.raises(InputError, match="labels are 0 or 1, or shares between them, got 0 to 3"):
        sketchfed.run({"algorithm": {"rounds": 1}}, **given)


def test_a_metric_of_your_own_gets_all_outputs_if_batches_have_one_shape():
    run = sketchfed.run({"algorithm": WORK}, model=Tagger(), clients=[tags(10, 0)], test=tags(300, 1), metric=spread)
    with torch.no_grad():
        assert run.metrics[-1]["spread"] == pytest.approx(float(run.module(tags(300, 1)[0]).std()), rel=1e-4)
    loaders = [DataLoader(of_lengths(count, 0), size, collate_fn=padded) for count, size in ((10, 5), (5, 2))]
    with pytest.raises(InputError, match=r"their shapes differ\. Use a built-in metric, or measure it in evaluate"):
        sketchfed.run({"algorithm": WORK}, model=Tagger(), clients=loaders[:1], test=loaders[1], metric=spread)


@pytest.mark.parametrize("task", ["a class for each token", "several labels"])
def test_clients_are_evaluated_on_positions_and_labels_too(task):
    make, draw, loss, given = TASKS[task]
    clients = [draw(count, count) for count in (10, 14)]
    config = {"algorithm": WORK, "training": {"evaluate_clients": True}}
    run = sketchfed.run(config, model=make(), clients=clients, test=draw(20, 9), metric="f1", **given)
    with torch.no_grad():
        losses = [float(loss(run.module(x), y)) for x, y in clients]
    assert run.metrics[-1]["clients_loss"] == pytest.approx(np.mean(losses), rel=1e-4)
    assert 0 < run.metrics[-1]["clients_f1"] <= 1
    assert 0 < run.metrics[-1]["clients_accuracy"] <= 1
