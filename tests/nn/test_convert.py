"""Whole models: which layers are sketched, how they are drawn, and what clients get of them."""

import copy

import pytest
import torch
from torch import nn

from sketchfed import PublicSeed
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.models import build
from sketchfed.nn import (
    BlindConv2d,
    BlindLinear,
    SketchedConv2d,
    SketchedLinear,
    blind,
    blind_layer,
    draw,
    output_layer,
    sketch_model,
    sketched_layers,
)

SEED = PublicSeed(7)


class Network(nn.Module):
    """Convolutions, one of them in groups and one without a bias, normalisation, a dense part in a container."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding="same")
        self.norm = nn.BatchNorm2d(4)
        self.grouped = nn.Conv2d(4, 4, 3, groups=2)
        self.second = nn.Conv2d(4, 3, 3, stride=2, padding=1, padding_mode="circular", bias=False)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(27, 12), nn.ReLU(), nn.Linear(12, 5))

    def forward(self, x):
        return self.head(self.second(self.grouped(self.norm(self.first(x))).relu()))


def network():
    torch.manual_seed(1)
    return Network()


IMAGES = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(2))


def perceptron():
    return build("mlp", shape=(20,), outputs=3, seed=SEED, hidden=[16, 12])


def kinds(model):
    return [type(module).__name__ for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]


# Which layers ---------------------------------------------------------------------------------------------------------


def test_all_layers_are_sketched_but_the_last_and_those_in_groups():
    model = network()
    layers = sketched_layers(model)
    assert list(layers) == ["first", "second", "head.1"]
    assert all(layers[name] is model.get_submodule(name) for name in layers)
    assert output_layer(model) == "head.3"
    assert list(sketched_layers(model, output=True)) == ["first", "second", "head.1", "head.3"]


def test_layers_that_are_named_stay_plain():
    model = network()
    assert list(sketched_layers(model, ["second"])) == ["first", "head.1"]
    assert list(sketched_layers(model, ["first", "head.1", "grouped", "head.3"])) == ["second"]
    assert kinds(sketch_model(model, exclude=["second"])) == [
        *("SketchedConv2d", "Conv2d", "Conv2d"),
        *("SketchedLinear", "Linear"),
    ]


@pytest.mark.parametrize("name", ["seconds", "head", "norm", ""])
def test_names_of_no_layer_are_refused_with_those_that_there_are(name):
    with pytest.raises(UnknownNameError, match=r"Known: first, grouped, second, head\.1, head\.3\."):
        sketch_model(network(), exclude=[name])


def test_a_text_is_no_list_of_names():
    with pytest.raises(
        InputError, match=r"exclude is a list of names of layers, got the text 'first'. Write exclude=\['first'\]"
    ):
        sketched_layers(network(), "first")


def test_a_model_without_layers_has_no_output_layer_and_nothing_to_sketch():
    model = nn.Sequential(nn.Flatten(), nn.ReLU())
    assert sketched_layers(model) == {}
    with pytest.raises(InputError, match=r"Sequential has neither an nn\.Linear nor an nn\.Conv2d"):
        output_layer(model)


def test_layers_with_tied_parameters_stay_plain():
    model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    model[1].weight = model[0].weight
    model[3].bias = model[2].bias
    assert sketched_layers(model) == {}
    tied = sketch_model(model)
    assert tied[1].weight is tied[0].weight


def test_subclasses_stay_plain_for_they_may_compute_something_else():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    class Masked(nn.MultiheadAttention):
        pass

    model = nn.Sequential(nn.Linear(8, 8), Doubled(8, 8), Masked(8, 2), nn.Linear(8, 8))
    assert list(sketched_layers(model)) == ["0"]


def test_a_layer_that_is_used_twice_stays_one_layer():
    shared = nn.Linear(6, 6)
    model = nn.Sequential(shared, nn.ReLU(), shared, nn.Linear(6, 2))
    made = sketch_model(model)
    assert made[0] is made[2]
    draw(made, SEED)
    client = blind(made)
    assert client[0] is client[2]
    x = torch.randn(3, 6)
    assert torch.equal(client(x), made(x))


# The full form of a model ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fold_bias", [False, True])
def test_a_sketched_model_is_a_copy_with_the_same_state_and_until_drawn_the_same_outputs(fold_bias):
    model = network()
    made = sketch_model(model, fold_bias=fold_bias)
    assert kinds(made) == ["SketchedConv2d", "Conv2d", "SketchedConv2d", "SketchedLinear", "Linear"]
    assert kinds(model) == ["Conv2d", "Conv2d", "Conv2d", "Linear", "Linear"]
    assert list(made.state_dict()) == list(model.state_dict())
    assert all(torch.equal(*pair) for pair in zip(made.state_dict().values(), model.state_dict().values(), strict=True))
    assert torch.equal(made(IMAGES), model(IMAGES))
    with torch.no_grad():
        for value in made.parameters():
            value.zero_()
    assert all(value.count_nonzero() for name, value in model.named_parameters() if name != "norm.bias")


def test_in_evaluation_a_sketched_model_is_the_plain_one():
    model = network()
    made = sketch_model(model)
    draw(made, SEED)
    assert torch.equal(made.eval()(IMAGES), model.eval()(IMAGES))
    assert not torch.equal(made.train()(IMAGES), model.train()(IMAGES))


def test_modes_and_what_is_frozen_are_kept():
    model = network().eval()
    model.first.weight.requires_grad_(False)
    made = sketch_model(model)
    assert not any(module.training for module in made.modules())
    assert not made.first.weight.requires_grad
    assert made.first.bias.requires_grad
    draw(made, SEED)
    client = blind(made)
    assert not client.first.training
    assert not client.first.weight.requires_grad


def test_families_sizes_and_options_reach_every_layer():
    made = sketch_model(perceptron(), family="srht", size=14, options={"transform": "cosine"})
    draw(made, SEED)
    sketches = [module.sketch for module in made if isinstance(module, SketchedLinear)]
    assert [(sketch.name, sketch.dim, sketch.size) for sketch in sketches] == [("srht", 20, 14), ("srht", 16, 14)]
    assert all(sketch.transform == "cosine" for sketch in sketches)


def test_each_layer_draws_from_its_own_child_of_the_seed():
    made = sketch_model(network())
    draw(made, SEED)
    layers = [module for module in made.modules() if isinstance(module, SketchedLinear | SketchedConv2d)]
    assert [layer.sketch.seed for layer in layers] == [SEED.child("layer", i) for i in range(3)]


# The blind form of a model --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fold_bias", [False, True])
@pytest.mark.parametrize("family", ["balanced", "count", "sampling", "srht"])
def test_the_blind_form_computes_what_the_full_form_does_in_training(family, fold_bias):
    made = sketch_model(network(), family=family, fold_bias=fold_bias)
    draw(made, SEED)
    client = blind(made)
    assert [type(client.get_submodule(name)) for name in ("first", "second", "head.1")] == [BlindConv2d] * 2 + [BlindLinear]
    torch.testing.assert_close(client(IMAGES), made(IMAGES))


def test_the_blind_form_shares_nothing_with_the_full_one_and_holds_no_weights_of_its_layers():
    made = sketch_model(network())
    draw(made, SEED)
    client = blind(made)
    theirs = {value.untyped_storage().data_ptr() for value in made.state_dict().values()}
    assert not theirs & {value.untyped_storage().data_ptr() for value in client.state_dict().values()}
    for name in ("first", "second", "head.1"):
        full, seen = made.get_submodule(name), client.get_submodule(name)
        assert seen.weight.shape == (full.weight.shape[0], full.size)
        assert seen.weight.numel() < full.weight.numel()
    assert not [module for module in client.modules() if isinstance(module, SketchedLinear | SketchedConv2d)]


def test_a_step_of_the_clients_sketched_back_is_a_step_of_the_full_form():
    """Zhang & Wang 2021, Eq. 2: the server moves W by −ηΓSᵀ and all else by −η times its gradient."""
    made = sketch_model(network())
    draw(made, SEED)
    client = blind(made)
    for model in (made, client):
        model(IMAGES).square().mean().backward()
    for name, parameter in made.named_parameters():
        module, said = made.get_submodule(name.rpartition(".")[0]), client.get_parameter(name).grad
        if name.endswith("weight") and isinstance(module, SketchedLinear | SketchedConv2d):
            said = module.sketch.adjoint(said).reshape(parameter.shape)
        torch.testing.assert_close(parameter.grad, said)


def test_nothing_can_be_blinded_before_sketches_are_drawn():
    with pytest.raises(InputError, match=r"a layer has no sketch yet.* Call draw\(model, seed\) first"):
        blind(sketch_model(network()))


def test_copies_and_states_of_blind_models_round_trip():
    made = sketch_model(perceptron())
    draw(made, SEED)
    client = blind(made)
    twin, x = copy.deepcopy(client), torch.randn(3, 20)
    assert torch.equal(twin(x), client(x))
    draw(made, SEED.child("round", 1))
    later = blind(made)
    assert list(later.state_dict()) == list(client.state_dict())
    later.load_state_dict(client.state_dict())
    assert not torch.equal(later(x), client(x))
    twin.load_state_dict(later.state_dict())
    assert torch.equal(twin(x), client(x))


def test_a_plain_model_can_be_blinded_layer_by_layer():
    model = perceptron()
    made = sketch_model(model)
    draw(made, SEED)
    for number in (1, 3):
        model[number] = blind_layer(model[number], made[number].sketch)
    x = torch.randn(3, 20)
    assert torch.equal(model(x), blind(made)(x))


def test_models_say_what_is_sketched():
    made = sketch_model(perceptron(), ratio=0.25)
    assert "(1): SketchedLinear(in_features=20, out_features=16, bias=True, sketch=balanced, size=5, not drawn)" in repr(made)
