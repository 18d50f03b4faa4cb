"""Sketched layers against torch's own and against the explicit matrix S, with derivatives of first and second order."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, grad, jvp, vmap
from torch.nn import functional

from sketchfed import PublicSeed
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.nn import SketchedConv2d, SketchedLinear, blind_layer, columns, sketch_size
from sketchfed.sketches import make_sketch

SEED = PublicSeed(7)
FAMILIES = ("balanced", "count", "sampling", "srht")
# (inputs, size): size does not divide inputs, one input, one coefficient, as many coefficients as inputs, a power of two
SHAPES = ((10, 3), (1, 1), (7, 1), (6, 6), (8, 4))
CONVOLUTIONS = {
    "plain": {"kernel_size": 3},
    "strided": {"kernel_size": (2, 3), "stride": (2, 1), "padding": (1, 0)},
    "dilated": {"kernel_size": (3, 2), "dilation": (1, 2), "padding": 2},
    "same": {"kernel_size": (3, 5), "padding": "same"},
    "circular": {"kernel_size": 3, "padding": (2, 1), "padding_mode": "circular", "stride": 2},
    "circular same": {"kernel_size": (2, 3), "padding": "same", "padding_mode": "circular"},
    "reflected": {"kernel_size": 3, "padding": 1, "padding_mode": "reflect", "bias": False},
}

every_family = pytest.mark.parametrize("family", FAMILIES)
every_shape = pytest.mark.parametrize(("inputs", "size"), SHAPES)
every_convolution = pytest.mark.parametrize("moves", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
folded_or_not = pytest.mark.parametrize("fold_bias", [False, True], ids=["bias apart", "bias folded"])
both_forms = pytest.mark.parametrize("form", ["full", "blind"])


def random(*shape, seed=1):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def filled(layer):
    """The layer with fixed weights in float64."""
    with torch.no_grad():
        for number, parameter in enumerate(layer.double().parameters()):
            parameter.copy_(random(*parameter.shape, seed=10 + number))
    return layer


def dense_layer(inputs, *, outputs=4, family="balanced", size=3, fold_bias=False):
    """A dense layer in full form whose sketch is drawn."""
    layer = filled(SketchedLinear(inputs, outputs, family=family, size=size, fold_bias=fold_bias))
    layer.draw(SEED)
    return layer


def convolution(moves, *, family="balanced", fold_bias=False):
    layer = filled(SketchedConv2d(2, 3, family=family, ratio=0.45, fold_bias=fold_bias, **moves))
    layer.draw(SEED)
    return layer


def in_form(form, layer):
    return layer if form == "full" else blind_layer(layer, layer.sketch, fold_bias=layer.fold_bias)


def explicit(sketch):
    """S, `(dim, size)`."""
    return sketch.apply(torch.eye(sketch.dim, dtype=torch.float64))


def with_matrix(module, inputs, matrix, parameters):
    """What a layer must compute, from rows of inputs and the matrix S, for its full or its blind form."""
    weight, bias = parameters["weight"], parameters.get("bias")
    folded = getattr(module, "fold_bias", False) or getattr(module, "folded", False)
    if folded:
        inputs = torch.cat([inputs, torch.ones_like(inputs[..., :1])], -1)
    if isinstance(module, nn.Linear | nn.Conv2d):
        full = weight.flatten(1)
        weight = (torch.cat([full, bias[:, None]], 1) if folded else full) @ matrix
    out = inputs @ matrix @ weight.T
    return out if bias is None or folded else out + bias


def patches(layer, images):
    """Images `(n, channels, height, width)` as rows `(n, places, inputs)`, and the shape of the outputs."""
    margins = []
    for axis in (1, 0):  # functional.pad begins with the last dimension
        reach = layer.dilation[axis] * (layer.kernel_size[axis] - 1)
        margins += [reach // 2, reach - reach // 2] if layer.padding == "same" else 2 * [layer.padding[axis]]
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    padded = functional.pad(images, margins, mode=mode)
    rows = functional.unfold(padded, layer.kernel_size, dilation=layer.dilation, stride=layer.stride).mT
    return rows, layer(images).shape


def conv_with_matrix(layer, module, images, matrix, parameters):
    rows, shape = patches(layer, images)
    return with_matrix(module, rows, matrix, parameters).mT.reshape(shape)


def derivatives(function, inputs):
    """A function's values, its gradients, and the gradients of the sum of their squares."""
    out = function(*inputs)
    first = torch.autograd.grad((out * random(*out.shape, seed=5)).sin().sum(), inputs, create_graph=True)
    second = torch.autograd.grad(sum(gradient.square().sum() for gradient in first), inputs)
    return [out, *first, *second]


def assert_same_derivatives(ours, theirs, inputs):
    inputs = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    for one, other in zip(derivatives(ours, inputs), derivatives(theirs, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def assert_right_derivatives(function, inputs):
    """Against differences of values and of gradients, in random directions."""
    inputs = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    assert gradcheck(function, inputs, fast_mode=True)
    assert gradgradcheck(function, inputs, fast_mode=True)


def called(module):
    """The module as a function of its input and its parameters."""
    names = [name for name, _ in module.named_parameters()]
    return lambda x, *values: functional_call(module, dict(zip(names, values, strict=True)), x), names


# Plain layers while nothing is drawn, and in evaluation ---------------------------------------------------------------


def pairs():
    yield nn.Linear(5, 3), SketchedLinear(5, 3), torch.randn(2, 5)
    yield nn.Linear(5, 3, bias=False), SketchedLinear(5, 3, bias=False, fold_bias=True), torch.randn(2, 4, 5)
    for moves in CONVOLUTIONS.values():
        yield nn.Conv2d(2, 3, **moves), SketchedConv2d(2, 3, **moves), torch.randn(2, 2, 7, 6)


@pytest.mark.parametrize("drawn", [False, True])
def test_without_a_sketch_and_in_evaluation_a_layer_is_torchs_own_and_their_states_are_exchangeable(drawn):
    for plain, ours, x in pairs():
        assert list(ours.state_dict()) == list(plain.state_dict())
        ours.load_state_dict(plain.state_dict())
        if drawn:
            ours.draw(SEED)
            assert not torch.equal(ours(x), plain(x))
            ours.eval()
        assert torch.equal(ours(x), plain(x))
        other = copy.deepcopy(plain)
        nn.init.zeros_(other.weight)
        other.load_state_dict(ours.state_dict())
        assert torch.equal(other(x), plain(x))


def test_device_and_dtype_are_handed_on():
    assert SketchedLinear(4, 2, dtype=torch.float64).weight.dtype == torch.float64
    assert SketchedConv2d(1, 2, 3, device="meta").weight.device.type == "meta"


# Dense layers against the explicit matrix -----------------------------------------------------------------------------


@every_family
@every_shape
@folded_or_not
@both_forms
def test_a_dense_layer_and_its_derivatives_equal_those_with_the_explicit_matrix(family, inputs, size, fold_bias, form):
    layer = dense_layer(inputs, family=family, size=size, fold_bias=fold_bias)
    module, matrix = in_form(form, layer), explicit(layer.sketch)
    ours, names = called(module)
    tensors = [random(3, inputs), *(value for _, value in module.named_parameters())]
    assert_same_derivatives(
        ours, lambda x, *values: with_matrix(module, x, matrix, dict(zip(names, values, strict=True))), tensors
    )
    assert_right_derivatives(ours, tensors)


@pytest.mark.parametrize("shape", [(6,), (1, 6), (2, 3, 6), (0, 6), (2, 0, 6)])
@folded_or_not
@both_forms
def test_inputs_may_have_any_leading_shape(shape, fold_bias, form):
    layer = dense_layer(6, fold_bias=fold_bias)
    module, x = in_form(form, layer), random(*shape).requires_grad_()
    expected = with_matrix(module, x, explicit(layer.sketch), dict(module.named_parameters()))
    torch.testing.assert_close(module(x), expected)
    gradients = [torch.autograd.grad(out.sin().sum(), x)[0] for out in (module(x), expected)]
    torch.testing.assert_close(*gradients)


@both_forms
def test_what_needs_no_gradient_gets_none(form):
    module, x = in_form(form, dense_layer(6)), random(2, 6)
    module.bias.requires_grad_(False)
    module(x).sum().backward()
    assert x.grad is None
    assert module.bias.grad is None
    assert module.weight.grad is not None


def test_inputs_in_any_order_of_memory_give_the_same():
    """Up to rounding: matrix products of other shapes may add up in another order."""
    module, x = in_form("blind", dense_layer(6)), random(6, 5)
    torch.testing.assert_close(module(x.T), module(x.T.contiguous()), rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(module(x.T[::2]), module(x.T)[::2], rtol=1e-14, atol=1e-14)


@both_forms
def test_what_is_not_finite_passes_through_as_it_does_through_torchs_layers(form):
    module, x = in_form(form, dense_layer(6)), random(2, 6)
    x[1, 2] = torch.nan
    out = module(x)
    assert out[1].isnan().all()
    assert out[0].isfinite().all()


@both_forms
def test_inputs_of_another_width_or_precision_are_refused(form):
    module = in_form(form, dense_layer(6, fold_bias=True))
    for x in (random(2, 7), random(2, 5), random(2, 6).float(), random(2, 6).long(), random(1)[0]):
        with pytest.raises(InputError, match=r"a layer of 6 inputs takes tensors \(\.\.\., 6\) of torch\.float64, got"):
            module(x)


# Convolutions against patches and the explicit matrix -----------------------------------------------------------------


@every_family
@every_convolution
@both_forms
def test_a_convolution_and_its_derivatives_equal_those_of_patches_and_the_explicit_matrix(family, moves, form):
    layer = convolution(moves, family=family)
    module, matrix = in_form(form, layer), explicit(layer.sketch)
    ours, names = called(module)
    tensors = [random(2, 2, 6, 7), *(value for _, value in module.named_parameters())]
    assert_same_derivatives(
        ours,
        lambda x, *values: conv_with_matrix(layer, module, x, matrix, dict(zip(names, values, strict=True))),
        tensors,
    )


@every_convolution
@folded_or_not
@both_forms
def test_derivatives_of_a_convolution_are_right(moves, fold_bias, form):
    module = in_form(form, convolution(moves, fold_bias=fold_bias))
    tensors = [random(1, 2, 5, 5), *(value for _, value in module.named_parameters())]
    assert_right_derivatives(called(module)[0], tensors)


@every_convolution
@both_forms
def test_a_folded_bias_of_a_convolution_has_an_input_that_is_always_one(moves, form):
    layer = convolution(moves, fold_bias=True)
    module, images = in_form(form, layer), random(2, 2, 6, 7)
    expected = conv_with_matrix(layer, module, images, explicit(layer.sketch), dict(module.named_parameters()))
    torch.testing.assert_close(module(images), expected)


def test_one_image_without_a_batch_is_taken_too():
    module, image = in_form("blind", convolution({"kernel_size": 3})), random(2, 5, 5)
    torch.testing.assert_close(module(image), module(image[None])[0])


# Transforms of torch.func ---------------------------------------------------------------------------------------------


def modules():
    yield from ((dense_layer(6, fold_bias=fold), random(3, 6)) for fold in (False, True))
    yield convolution(CONVOLUTIONS["strided"]), random(3, 2, 5, 5)


@both_forms
def test_gradients_of_single_examples_come_from_vmap(form):
    for layer, x in modules():
        module = in_form(form, layer)
        values = {name: value.detach() for name, value in module.named_parameters()}

        def loss(parameters, example, module=module):
            return functional_call(module, parameters, example[None]).sin().sum()

        found = vmap(grad(loss), in_dims=(None, 0))(values, x)
        for number, example in enumerate(x):
            one = torch.autograd.grad(loss(dict(module.named_parameters()), example), module.parameters())
            for gradient, expected in zip(found.values(), one, strict=True):
                torch.testing.assert_close(gradient[number], expected)


@both_forms
def test_tangents_are_carried_forward(form):
    for layer, x in modules():
        module, tangent = in_form(form, layer), random(*x.shape, seed=3)
        out, moved = jvp(module, (x,), (tangent,))
        torch.testing.assert_close(out, module(x))
        torch.testing.assert_close(moved, module(x + tangent) - module(x))


@both_forms
def test_gradients_may_be_asked_for_in_batches(form):
    for layer, x in modules():
        module = in_form(form, layer)
        out = module(x.requires_grad_())
        asked = random(2, *out.shape, seed=4)
        inputs = [x, *module.parameters()]

        def pulled_back(gradient, out=out, inputs=inputs):
            return torch.autograd.grad(out, inputs, gradient, retain_graph=True)

        batched = vmap(pulled_back)(asked)
        for number, single in enumerate(asked):
            for gradients, expected in zip(batched, pulled_back(single), strict=True):
                torch.testing.assert_close(gradients[number], expected)


# What sketches mean ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 4, 10])
def test_sampling_is_dropout_with_its_mask_and_the_scale_of_inputs_over_size(size):
    """Zhang & Wang 2021, Sec. 5.3."""
    layer = dense_layer(10, family="sampling", size=size)
    mask = (explicit(layer.sketch) != 0).any(1)
    assert int(mask.sum()) == size
    x = random(5, 10)
    expected = functional.linear(x * mask * 10 / size, layer.weight, layer.bias)
    for form in ("full", "blind"):
        torch.testing.assert_close(in_form(form, layer)(x), expected)


@every_family
def test_the_gradient_of_the_full_form_is_that_of_the_blind_form_sketched_back(family):
    """Zhang & Wang 2021, Eq. 2: ∂L/∂W = ΓSᵀ, so that clients who hold WS alone can train W."""
    for layer, x in (
        (dense_layer(10, family=family), random(3, 10)),
        (convolution({"kernel_size": 3}, family=family), random(2, 2, 5, 5)),
    ):
        blind = in_form("blind", layer)
        for module in (layer, blind):
            module(x).sin().sum().backward()
        torch.testing.assert_close(layer.weight.grad.flatten(1), layer.sketch.adjoint(blind.weight.grad))
        torch.testing.assert_close(layer.bias.grad, blind.bias.grad)


def test_every_draw_replaces_the_sketch_and_equal_seeds_give_equal_ones():
    layer, x = dense_layer(10), random(3, 10)
    outputs = []
    for seed in (1, 2, 1):
        layer.draw(PublicSeed(seed))
        outputs.append(layer(x))
    assert torch.equal(outputs[0], outputs[2])
    assert not torch.equal(outputs[0], outputs[1])


# Blindness ------------------------------------------------------------------------------------------------------------


def numbers_within(thing, seen=None):
    """How many numbers each array holds that can be reached from an object by its attributes and items."""
    seen = {} if seen is None else seen
    if id(thing) in seen or isinstance(thing, type | str | bytes):
        return
    seen[id(thing)] = thing
    if isinstance(thing, Tensor):
        yield thing.untyped_storage().nbytes() // thing.element_size()
        yield from numbers_within(thing.grad, seen)
    elif isinstance(thing, np.ndarray):
        yield thing.size
        yield from numbers_within(thing.base, seen)
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from numbers_within(value, seen)
    elif isinstance(thing, list | tuple | set | frozenset):
        for value in thing:
            yield from numbers_within(value, seen)
    elif hasattr(thing, "__dict__"):
        yield from numbers_within(vars(thing), seen)


@every_family
@folded_or_not
def test_nothing_in_a_blind_layer_holds_as_many_numbers_as_the_weights(family, fold_bias):
    for layer, x in (
        (dense_layer(60, outputs=40, size=30, family=family, fold_bias=fold_bias), random(3, 60)),
        (convolution({"kernel_size": 3}, family=family, fold_bias=fold_bias), random(2, 2, 5, 5)),
    ):
        assert max(numbers_within(layer)) >= layer.weight.numel()
        blind = in_form("blind", layer)
        blind(x).sum().backward()
        assert max(numbers_within(blind)) < layer.weight.numel()
        assert sum(value.numel() for value in blind.parameters()) < layer.weight.numel()


def test_a_blind_layer_has_its_own_copies_weight_first():
    layer = dense_layer(10)
    blind = in_form("blind", layer)
    assert [name for name, _ in blind.named_parameters()] == ["weight", "bias"]
    assert torch.equal(blind.weight, layer.sketch.apply(layer.weight))
    blind.bias.data.zero_()
    assert layer.bias.count_nonzero()
    assert [name for name, _ in in_form("blind", dense_layer(10, fold_bias=True)).named_parameters()] == ["weight"]


def test_a_blind_layer_comes_from_a_plain_one_too_and_keeps_what_is_frozen():
    plain = nn.Linear(10, 4)
    plain.weight.requires_grad_(False)
    blind = blind_layer(plain.eval(), make_sketch("balanced", dim=10, size=5, seed=SEED))
    assert [value.requires_grad for value in blind.parameters()] == [False, True]
    assert not blind.training


def test_where_there_is_no_bias_none_is_folded():
    plain = nn.Linear(10, 4, bias=False)
    assert columns(plain, fold_bias=True) == 10
    blind = blind_layer(plain, make_sketch("balanced", dim=10, size=5, seed=SEED), fold_bias=True)
    assert blind.bias is None
    assert blind(torch.zeros(1, 10)).count_nonzero() == 0


@both_forms
def test_copies_and_states_round_trip(form):
    for layer, x in modules():
        module = in_form(form, layer)
        twin = copy.deepcopy(module)
        assert torch.equal(twin(x), module(x))
        for value in twin.parameters():
            nn.init.zeros_(value)
        assert not torch.equal(twin(x), module(x))
        twin.load_state_dict(module.state_dict())
        assert torch.equal(twin(x), module(x))


# What is said and refused ---------------------------------------------------------------------------------------------


def test_layers_describe_themselves():
    dense, folded = SketchedLinear(10, 4), SketchedLinear(10, 4, fold_bias=True)
    assert repr(dense) == "SketchedLinear(in_features=10, out_features=4, bias=True, sketch=balanced, size=5, not drawn)"
    folded.draw(SEED)
    assert repr(folded) == "SketchedLinear(in_features=10, out_features=4, bias=True, sketch=balanced, size=5, folded bias)"
    blind = in_form("blind", folded)
    assert repr(blind) == "BlindLinear(in_features=10, out_features=4, bias=folded, sketch=balanced, size=5)"
    layer = convolution(CONVOLUTIONS["circular"])
    for module, name in ((layer, "SketchedConv2d"), (in_form("blind", layer), "BlindConv2d")):
        for part in (f"{name}(2, 3, kernel_size=(3, 3), stride=(2, 2)", "circular", "sketch=balanced, size=8)"):
            assert part in repr(module)


def test_groups_are_refused():
    with pytest.raises(InputError, match=r"a convolution in 2 groups cannot be sketched.* use groups=1"):
        SketchedConv2d(2, 4, 3, groups=2)
    with pytest.raises(InputError, match=r"in 2 groups"):
        blind_layer(nn.Conv2d(2, 4, 3, groups=2), make_sketch("balanced", dim=9, size=4, seed=SEED))


@folded_or_not
def test_a_sketch_of_another_dim_is_refused(fold_bias):
    sketch = make_sketch("balanced", dim=10 + (not fold_bias), size=4, seed=SEED)
    with pytest.raises(
        InputError, match=r"a sketch of dim 1\d does not fit a layer with 1\d columns: Linear\(.* Make it for dim=1\d"
    ):
        blind_layer(nn.Linear(10, 4), sketch, fold_bias=fold_bias)


@pytest.mark.parametrize(
    ("dim", "choice", "size"),
    [
        (10, {}, 5),
        (9, {}, 4),
        (1, {}, 1),
        (10, {"ratio": 0.01}, 1),
        (10, {"ratio": 1}, 10),
        (10, {"size": 3}, 3),
        (10, {"size": 99}, 10),
    ],
)
def test_sizes_follow_from_a_ratio_or_are_given_and_never_exceed_the_inputs(dim, choice, size):
    assert sketch_size(dim, **choice) == size


@pytest.mark.parametrize(
    "choice", [{"ratio": 0}, {"ratio": 1.5}, {"ratio": "half"}, {"ratio": True}, {"size": 0}, {"size": 2.5}]
)
def test_impossible_sizes_are_refused(choice):
    with pytest.raises(InputError, match=r"(ratio is the share|size must be a positive number)"):
        SketchedLinear(10, 4, **choice)


def test_impossible_families_are_refused_when_the_layer_is_made():
    with pytest.raises(UnknownNameError, match=r"no sketch named 'balance'\. Did you mean 'balanced'"):
        SketchedLinear(10, 4, family="balance")
    with pytest.raises(InputError, match=r"'count' has no option 'block'"):
        SketchedConv2d(1, 4, 3, family="count", options={"block": 4})
    layer = SketchedLinear(64, 4, family="srht", options={"transform": "cosine"})
    layer.draw(SEED)
    assert layer.sketch.transform == "cosine"
