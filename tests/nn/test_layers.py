"""Sketched layers against torch's own and against the explicit matrix S, with derivatives of first and second order."""

import copy

import pytest
import torch
from layer_forms import (
    CONVOLUTIONS,
    SEED,
    both_forms,
    convolution,
    dense_layer,
    every_family,
    folded_or_not,
    in_form,
    modules,
    random,
)
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, grad, jvp, vmap
from torch.nn import functional

from sketchfed import PublicSeed
from sketchfed.errors import InputError
from sketchfed.nn import SketchedConv2d, SketchedLinear

# (inputs, size): size does not divide inputs, one input, one coefficient, as many coefficients as inputs, a power of two


SHAPES = ((10, 3), (1, 1), (7, 1), (6, 6), (8, 4))


every_shape = pytest.mark.parametrize(("inputs", "size"), SHAPES)


every_convolution = pytest.mark.parametrize("moves", CONVOLUTIONS.values(), ids=CONVOLUTIONS)


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
