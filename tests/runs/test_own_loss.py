"""Runs whose clients minimise a function of the model and a batch, on data of any kind."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import sketchfed
from sketchfed.errors import InputError

VOCABULARY, CLASSES = 11, 3


def draw(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# Each task: a model, the data of a client, a loss of a batch, and a collate function -------------------------------------


class Tagger(nn.Module):
    """A recurrent network that gives each token a class."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 6, padding_idx=0)
        self.rnn = nn.GRU(6, 8, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, tokens, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(self.embed(tokens), lengths, batch_first=True, enforce_sorted=False)
        padded, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return {"logits": self.head(padded)}


def sentences(seed: int) -> list[dict]:
    lengths = torch.randint(2, 7, (12,), generator=draw(seed)).tolist()
    tokens = [torch.randint(1, VOCABULARY, (length,), generator=draw(seed + 1 + n)) for n, length in enumerate(lengths)]
    return [{"tokens": each, "tags": each % CLASSES} for each in tokens]


def padded(batch: list[dict]) -> dict:
    fill = nn.utils.rnn.pad_sequence
    return {
        "tokens": fill([item["tokens"] for item in batch], batch_first=True),
        "tags": fill([item["tags"] for item in batch], batch_first=True, padding_value=-100),
        "lengths": torch.tensor([len(item["tokens"]) for item in batch]),
    }


def tagging(model, batch):
    logits = model(batch["tokens"], batch["lengths"])["logits"]
    return functional.cross_entropy(logits.flatten(0, 1), batch["tags"].flatten())


class TwoInputs(nn.Module):
    """Takes an image and a number, and says which of four labels apply."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.number, self.head = nn.Conv2d(1, 3, 3), nn.Linear(1, 4), nn.Linear(3 * 16 + 4, 4)

    def forward(self, image, number):
        return self.head(torch.cat([self.image(image).flatten(1), self.number(number)], 1).tanh())


def labelled(seed: int) -> dict:
    image, number = torch.randn(12, 1, 6, 6, generator=draw(seed)), torch.randn(12, 1, generator=draw(seed + 1))
    labels = torch.cat([image.mean((2, 3)), number, -number, number], 1) > 0
    return {"image": image, "number": number, "labels": labels.float()}


def multi_label(model, batch):
    return functional.binary_cross_entropy_with_logits(model(batch["image"], batch["number"]), batch["labels"])


def masks(seed: int) -> list:
    images = torch.randn(12, 2, 5, 5, generator=draw(seed))
    return [(image, (image.sum(0) > 0).long()) for image in images]


def segmentation(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1])


class Windows(Dataset):
    """Pieces of a text, for a language model."""

    def __init__(self, seed: int) -> None:
        self.text = torch.randint(VOCABULARY, (30,), generator=draw(seed)).cumsum(0) % VOCABULARY

    def __len__(self):
        return 20

    def __getitem__(self, start):
        if start >= len(self):
            raise IndexError(start)
        return self.text[start : start + 6]


class Attention(nn.Module):
    """A transformer of one layer whose output weights are tied to its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(8, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.layer(self.embed(tokens), src_mask=mask, is_causal=True))


def next_token(model, batch):
    return functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def fields(seed: int) -> tuple:
    x = torch.randn(12, 4, generator=draw(seed))
    return x, torch.stack([x.sin(), x.cos()], 1)


def regression(model, batch):
    return functional.mse_loss(model(batch[0]).view(-1, 2, 4), batch[1])


def loaded(seed: int) -> DataLoader:
    return DataLoader(list(zip(*fields(seed), strict=True)), batch_size=4, shuffle=True)


TASKS = {
    "tags of tokens of variable lengths": (Tagger, sentences, tagging, padded),
    "several inputs and labels in dicts": (TwoInputs, labelled, multi_label, None),
    "segmentation": (lambda: nn.Conv2d(2, 2, 3, padding=1), masks, segmentation, None),
    "a language model": (Attention, Windows, next_token, None),
    "regression of any shape": (lambda: nn.Linear(4, 8), fields, regression, None),
    "a DataLoader": (lambda: nn.Linear(4, 8), loaded, regression, None),
}


def task(name: str, clients: int = 4) -> dict:
    model, data, loss, collate = TASKS[name]
    torch.manual_seed(0)
    test = fields(99) if name == "a DataLoader" else data(99)
    held = [data(10 * client) for client in range(clients)]
    return {"model": model(), "clients": held, "test": test, "batch_loss": loss, "collate": collate}


@pytest.mark.parametrize("name", TASKS)
def test_any_task_is_learnt_and_a_resumed_run_comes_to_the_same_bits(name, tmp_path):
    batch = {} if name == "a DataLoader" else {"batch": 5}
    config = {
        "algorithm": {"name": "iterative", "rounds": 8, "local_epochs": 2, "local_rate": 0.03, "global_rate": 1.0, **batch},
        "sketch": {"ratio": 0.5},
        "training": {"optimiser": "adam", "optimiser_state": "kept"},
        "engine": {"checkpoint_seconds": 0.0},
    }
    whole = sketchfed.run(config, **task(name))
    assert whole.metrics[-1]["loss"] < 0.98 * whole.metrics[0]["loss"]

    class StopError(Exception):
        pass

    def stop(line):
        if line["round"] == 4:
            raise StopError

    with pytest.raises(StopError):
        sketchfed.run(config, folder=tmp_path / "run", on_round=stop, **task(name))
    assert torch.equal(sketchfed.resume(tmp_path / "run", **task(name)).weights, whole.weights)


PRIVATE = {
    "noise on what is sent": {},
    "noise in local steps": {"placement": "steps"},
}


@pytest.mark.parametrize("placement", PRIVATE)
@pytest.mark.parametrize("name", [name for name in TASKS if name not in ("a DataLoader", "tags of tokens of variable lengths")])
def test_single_examples_of_any_task_can_be_protected(name, placement):
    config = {
        "algorithm": {"name": "iterative", "rounds": 2, "batch": 6, "local_steps": 1, "local_rate": 0.1},
        "sketch": {"ratio": 0.5},
        "privacy": {"unit": "example", "noise_multiplier": 0.5, "delta": 1e-3, "clip": 1.0, **PRIVATE[placement]},
    }
    result = sketchfed.run(config, **task(name))
    assert 0 < result.metrics[-1]["epsilon"] < float("inf")


def test_the_gradient_of_an_example_is_that_of_a_batch_with_nothing_else():
    from sketchfed.training import OfBatch, examples_in, make_trainer
    from sketchfed.vectors import flatten

    torch.manual_seed(0)
    module = Tagger()
    data = sentences(3)

    def loss(model, batch):  # a GRU over packed sequences cannot be computed for many examples together
        logits = model.head(model.rnn(model.embed(batch["tokens"]))[0])
        return functional.cross_entropy(logits.flatten(0, 1), batch["tags"].flatten(), ignore_index=-100)

    found = make_trainer(module, OfBatch(loss)).gradients(flatten(module), examples_in(data, padded))
    for row, item in zip(found, data, strict=True):
        module.zero_grad()
        loss(module, padded([item])).backward()
        expected = torch.cat([parameter.grad.reshape(-1) for parameter in module.parameters()])
        torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-6)


def test_secure_sums_and_codecs_take_updates_of_any_task():
    for more in ({"secure": {"clip": 5.0}}, {"codec": {"name": "top_k", "ratio": 0.2}}):
        config = {"algorithm": {"rounds": 2, "batch": 4, "local_rate": 0.1}, **more}
        assert sketchfed.run(config, **task("several inputs and labels in dicts")).metrics[-1]["loss"] < 0.8


def test_evaluate_adds_metrics_to_the_loss():
    def evaluate(model, data, context):
        right = (model(data["image"], data["number"]) > 0) == (data["labels"] > 0)
        return {"accuracy": right.float().mean(), "all_right": right.all(1).float().mean()}

    config = {"algorithm": {"rounds": 3, "local_rate": 0.5, "local_epochs": 3, "batch": 4}}
    result = sketchfed.run(config, evaluate=evaluate, **task("several inputs and labels in dicts"))
    assert {"loss", "accuracy", "all_right"} <= result.metrics[-1].keys()
    assert result.accuracy > 0.5


def test_evaluate_works_with_pairs_and_a_loss_of_outputs_too():
    x = torch.randn(60, 4, generator=draw(1))
    pairs = [(x[n::3], (x[n::3, 0] > 0).long()) for n in range(3)]

    def evaluate(model, data, context):
        return {"margin": model(data[0]).diff(dim=1).abs().mean(), "round": context.round}

    with pytest.raises(InputError, match="already has a column 'round'"):
        sketchfed.run({"algorithm": {"rounds": 1}}, model=nn.Linear(4, 2), clients=pairs, test=pairs[0], evaluate=evaluate)
    del evaluate

    def margin(model, data, context):
        return {"margin": model(data[0]).diff(dim=1).abs().mean()}

    result = sketchfed.run(
        {"algorithm": {"rounds": 2}}, model=nn.Linear(4, 2), clients=pairs, test=pairs[0], evaluate=margin, metric="f1"
    )
    assert {"margin", "f1", "accuracy"} <= result.metrics[-1].keys()


def test_a_client_whose_data_fails_is_left_out_and_the_round_goes_on(caplog):
    class Broken(Windows):
        def __getitem__(self, start):
            raise OSError("the disk is gone")

    given = task("a language model")
    given["clients"][2] = Broken(1)
    counts = [line["participants"] for line in sketchfed.run({"algorithm": {"rounds": 2}}, **given).metrics]
    assert counts == [3, 3]


def test_a_loader_that_is_exhausted_leaves_its_client_out():
    given = task("a DataLoader")
    x, y = fields(5)

    class Once(torch.utils.data.IterableDataset):
        def __init__(self):
            self.left = iter(list(zip(x, y, strict=True)))

        def __iter__(self):
            return self.left

    given["clients"][1] = DataLoader(Once(), batch_size=4)
    result = sketchfed.run({"algorithm": {"rounds": 3}}, **given)
    assert [line["participants"] for line in result.metrics] == [4, 3, 3]


def test_weights_by_examples_are_refused_for_a_stream_whose_length_nobody_knows():
    given = task("a DataLoader")

    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(list(zip(*fields(5), strict=True)))

    given["clients"][1] = DataLoader(Endless(), batch_size=4)
    with pytest.raises(InputError, match="client 1 holds an object of type DataLoader, which does not tell it"):
        sketchfed.run({"algorithm": {"rounds": 1, "weighting": "examples"}}, **given)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda model, batch: 0.5, "returned a float, and a loss is a tensor"),
        (lambda model, batch: model(batch[0]).square(), "and a loss is one. Return their mean"),
        (lambda model, batch: batch[0].square().mean(), "does not depend on the model's parameters"),
        (lambda model, batch: model(batch["x"]).mean(), "the model cannot be trained on these examples: TypeError"),
    ],
)
def test_a_loss_that_cannot_be_minimised_is_refused_before_any_round(loss, said):
    with pytest.raises(InputError, match=said):
        sketchfed.run({"algorithm": {"rounds": 1}}, **{**task("regression of any shape"), "batch_loss": loss})


@pytest.mark.parametrize(
    ("config", "objects", "said"),
    [
        ({}, {"loss": "squares"}, "loss is for pairs of inputs and targets, and only batch_loss knows what is what"),
        ({}, {"train": lambda model, data, context: None}, "batch_loss is for the built-in loop"),
        ({}, {"batch_loss": None, "collate": list}, "classes must be integers, got torch.float32"),
        ({"training": {"optimiser": "adam"}, "algorithm": {"name": "dbcl"}}, {}, "through sketched layers itself"),
        (
            {
                "training": {"clip_norm": 1.0},
                "algorithm": {"batch": 4},
                "privacy": {"unit": "example", "noise_multiplier": 1.0, "delta": 1e-3},
            },
            {},
            "takes local steps from clipped gradients with noise",
        ),
    ],
)
def test_what_cannot_work_together_is_refused(config, objects, said):
    given = {**task("regression of any shape"), **objects}
    with pytest.raises(InputError, match=said):
        sketchfed.run({"algorithm": {"rounds": 1}, **config}, **given)


def test_names_in_a_configuration_do_the_same(tmp_path):
    config = {
        "data": {"clients": 4},
        "training": {"batch_loss": "named_loops:batch_loss", "evaluate": "named_loops:evaluate", "optimiser": "adamw"},
        "algorithm": {"name": "iterative", "rounds": 2, "batch": 32, "local_rate": 0.01},
    }
    result = sketchfed.run(config, folder=tmp_path / "run")
    assert result.accuracy > 0.3
    assert torch.equal(sketchfed.resume(tmp_path / "run").weights, result.weights)
    with pytest.raises(InputError, match="both name a loss"):
        sketchfed.run(config | {"model": {"loss": "cross_entropy"}})
    with pytest.raises(InputError, match=r"holds tensors, which are cut"):
        sketchfed.run({**config, "training": {**config["training"], "collate": "named_loops:batch_loss"}})


@pytest.mark.parametrize("name", ["dbcl", "dome"])
def test_algorithms_that_need_gradients_take_a_loss_of_a_batch(name):
    config = {
        "data": {"clients": 4},
        "training": {"batch_loss": "named_loops:batch_loss"},
        "algorithm": {"name": name, "rounds": 2, "batch": 32, "local_rate": 0.1},
    }
    if name == "dome":
        config["privacy"] = {"epsilon": 50.0, "delta": 1e-3}
    by_batch = sketchfed.run(config)
    usual = sketchfed.run({key: table for key, table in config.items() if key != "training"})
    assert by_batch.metrics[-1]["loss"] == pytest.approx(usual.metrics[-1]["loss"], rel=0.2)
