"""Attention and recurrent layers through sketches: against S written out, and against torch's own layers."""

import copy

import pytest
import torch
from layer_forms import SEED, every_family, random
from test_blind_layers import numbers_within
from torch import nn
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from sketchfed.errors import InputError
from sketchfed.nn import blind, draw, sketch_model, sketched_layers
from sketchfed.nn.compound import BlindCompound, BlindGRU, BlindLSTM, BlindMultiheadAttention, BlindRNN, blind_compound
from sketchfed.sketches import make_sketch

LAYERS = {
    "lstm": lambda: nn.LSTM(6, 5),
    "lstm, two layers, both ways": lambda: nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True),
    "lstm with a projection": lambda: nn.LSTM(6, 5, proj_size=3, num_layers=2, bidirectional=True),
    "lstm without biases": lambda: nn.LSTM(6, 5, bias=False),
    "gru": lambda: nn.GRU(6, 5, batch_first=True),
    "gru, two layers, both ways": lambda: nn.GRU(6, 5, num_layers=2, bidirectional=True),
    "rnn": lambda: nn.RNN(6, 5, nonlinearity="relu"),
    "rnn, two layers": lambda: nn.RNN(6, 5, num_layers=2),
    "attention": lambda: nn.MultiheadAttention(6, 2),
    "attention, batch first": lambda: nn.MultiheadAttention(6, 2, batch_first=True),
    "attention without biases": lambda: nn.MultiheadAttention(6, 3, bias=False),
    "attention with zeros": lambda: nn.MultiheadAttention(6, 2, add_zero_attn=True),
    "attention on others": lambda: nn.MultiheadAttention(6, 2, kdim=4, vdim=7, batch_first=True),
}
RECURRENT = [name for name in LAYERS if "attention" not in name]
every_layer = pytest.mark.parametrize("name", LAYERS)


class Net(nn.Module):
    """One layer, called as such layers are, and an output layer that stays as it is."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.head = layer, nn.Linear(2, 2)

    def forward(self, *inputs, **options):
        return self.layer(*inputs, **options)


def filled(module):
    with torch.no_grad():
        for number, parameter in enumerate(module.double().parameters()):
            parameter.copy_(random(*parameter.shape, seed=10 + number) / 2)
    return module


def drawn(name, family="balanced", fold_bias=False):
    """A model of one layer in full form, whose sketches are drawn, and the plain model."""
    plain = filled(Net(LAYERS[name]()))
    made = sketch_model(plain, family=family, ratio=0.5, fold_bias=fold_bias)
    draw(made, SEED)
    return made, plain


def inputs_for(name):
    if name == "attention on others":
        return random(3, 4, 6), random(3, 5, 4, seed=2), random(3, 5, 7, seed=3)
    return (random(3, 4, 6),) * (3 if "attention" in name else 1)


def tensors(out):
    """All tensors of what a layer returns."""
    if isinstance(out, torch.Tensor):
        return [out]
    return [each for part in out for each in tensors(part)] if isinstance(out, tuple) else []


def assert_same(ours, theirs):
    ours, theirs = tensors(ours), tensors(theirs)
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def explicit(sketch):
    """S, `(dim, size)`."""
    return sketch.apply(torch.eye(sketch.dim, dtype=torch.float64))


def through(made, plain):
    """Parameters for the plain layer: W·S·Sᵀ in place of W, with S written out."""
    layer, found = made.layer, {name: value.detach().clone() for name, value in plain.layer.named_parameters()}
    for name, sketch in layer.sketches.items():
        s, bias = explicit(sketch), name.replace("weight", "bias")
        rows = found[name]
        if bias in layer.folded:
            rows = torch.cat([rows, found[bias][:, None]], 1) @ s @ s.T
            rows, found[bias] = rows[:, :-1], rows[:, -1]
        else:
            rows = rows @ s @ s.T
        found[name] = rows
    return found


# What they compute ----------------------------------------------------------------------------------------------------


def test_an_lstm_step_by_step_with_sketched_inputs_and_states():
    """(xS)(W_ih·S)ᵀ + (hS′)(W_hh·S′)ᵀ at each step, from what a client holds alone."""
    client = blind(drawn("lstm")[0]).layer
    x, (to_inputs, to_states) = random(4, 2, 6), map(explicit, client.sketches.values())
    h, c, outputs = torch.zeros(2, 5, dtype=torch.float64), torch.zeros(2, 5, dtype=torch.float64), []
    for step in x:
        gates = step @ to_inputs @ client.weight_ih_l0.T + client.bias_ih_l0
        gates = gates + h @ to_states @ client.weight_hh_l0.T + client.bias_hh_l0
        i, f, g, o = gates.chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(h)
    assert_same(client(x), (torch.stack(outputs), (h[None], c[None])))


def test_a_gru_step_by_step_with_sketched_inputs_and_states():
    client = blind(drawn("gru")[0]).layer
    x, (to_inputs, to_states) = random(2, 4, 6), map(explicit, client.sketches.values())
    h, outputs = torch.zeros(2, 5, dtype=torch.float64), []
    for step in x.unbind(1):
        of_inputs = step @ to_inputs @ client.weight_ih_l0.T + client.bias_ih_l0
        of_states = h @ to_states @ client.weight_hh_l0.T + client.bias_hh_l0
        (r, z, n), (rh, zh, nh) = of_inputs.chunk(3, 1), of_states.chunk(3, 1)
        r, z = (r + rh).sigmoid(), (z + zh).sigmoid()
        h = (1 - z) * (n + r * nh).tanh() + z * h
        outputs.append(h)
    assert_same(client(x), (torch.stack(outputs, 1), h[None]))


def test_attention_with_sketched_queries_keys_values_and_outputs():
    client = blind(drawn("attention, batch first")[0]).layer
    x, s, out = random(3, 4, 6), explicit(client.sketches["in_proj_weight"]), explicit(client.sketches["out_proj.weight"])
    q, k, v = (
        part.unflatten(2, (2, 3)).transpose(1, 2)
        for part in (x @ s @ client.in_proj_weight.T + client.in_proj_bias).chunk(3, 2)
    )
    weights = (q @ k.mT / 3**0.5).softmax(-1)
    heads = (weights @ v).transpose(1, 2).flatten(2)
    assert_same(client(x, x, x), (heads @ out @ client.out_proj.weight.T + client.out_proj.bias, weights.mean(1)))


@every_layer
@every_family
@pytest.mark.parametrize("fold_bias", [False, True], ids=["biases apart", "biases folded"])
def test_both_forms_are_the_plain_layer_with_other_weights_in_values_and_gradients(name, family, fold_bias):
    made, plain = drawn(name, family, fold_bias)
    client, inputs = blind(made), inputs_for(name)
    expected = through(made, plain)
    reference = functional_call(plain.layer, expected, inputs)
    assert_same(made(*inputs), reference)
    assert_same(client(*inputs), reference)
    for module in (made, client):
        sum(each.sin().sum() for each in tensors(module(*inputs))).backward()
    parameters = dict(client.layer.named_parameters())
    for key, value in made.layer.named_parameters():
        bias_of = key.replace("bias", "weight")
        if key in made.layer.sketches:
            step = made.layer.sketches[key].adjoint(parameters[key].grad)[:, : value.shape[1]]
        elif key in made.layer.folded:
            step = made.layer.sketches[bias_of].adjoint(parameters[bias_of].grad)[:, -1]
        else:
            step = parameters[key].grad
        torch.testing.assert_close(value.grad, step, rtol=1e-9, atol=1e-10)


@every_layer
def test_the_size_of_each_sketch_is_a_share_of_what_its_weight_multiplies(name):
    made, plain = drawn(name)
    parameters = dict(plain.layer.named_parameters())
    matrices = {key: value for key, value in parameters.items() if value.ndim == 2}
    assert made.layer.sketches.keys() == matrices.keys()
    client = dict(blind(made).layer.named_parameters())
    assert list(client) == list(parameters)
    for key, value in matrices.items():
        assert client[key].shape == (len(value), value.shape[1] // 2)


@pytest.mark.parametrize("name", ["lstm, two layers, both ways", "lstm with a projection", "gru", "rnn"])
@pytest.mark.parametrize("form", ["full", "blind"])
def test_packed_sequences_single_ones_and_given_states_work(name, form):
    made, plain = drawn(name)
    module, expected = (made if form == "full" else blind(made)), through(made, plain)

    def plainly(*inputs):
        return functional_call(plain.layer, expected, inputs)

    first = plain.layer.batch_first
    packed = pack_padded_sequence(random(3, 4, 6), [4, 1, 2], batch_first=True, enforce_sorted=False)
    (out, state), (other, other_state) = module(packed), plainly(packed)
    assert_same(pad_packed_sequence(out), pad_packed_sequence(other))
    assert_same(state, other_state)
    assert_same(module(random(4, 6)), plainly(random(4, 6)))
    x = random(3, 4, 6)
    _, state = plainly(x if first else x.transpose(0, 1))
    assert_same(module(x if first else x.transpose(0, 1), state), plainly(x if first else x.transpose(0, 1), state))


def test_dropout_between_layers_draws_what_torch_draws():
    plain = filled(Net(nn.LSTM(6, 5, num_layers=2, dropout=0.5)))
    made = sketch_model(plain)
    draw(made, SEED)
    client, x = blind(made), random(3, 4, 6)
    torch.manual_seed(3)
    ours = client(x)
    torch.manual_seed(3)
    assert_same(ours, functional_call(plain.layer, through(made, plain), (x,)))
    torch.manual_seed(4)
    assert not torch.equal(client(x)[0], ours[0])
    assert torch.equal(client.eval()(x)[0], client(x)[0])


MASKS = {
    "padding": {"key_padding_mask": torch.tensor([[False] * 4, [False, False, True, True], [False, True, True, True]])},
    "causal": {"attn_mask": torch.ones(4, 4).triu(1).bool()},
    "float mask": {"attn_mask": torch.linspace(-1, 1, 16, dtype=torch.float64).view(4, 4)},
    "no weights": {"need_weights": False},
    "weights of each head": {"average_attn_weights": False},
}


@pytest.mark.parametrize("options", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("mode", ["training", "evaluation", "evaluation without gradients"])
def test_masks_and_weights_work_also_on_torchs_fast_path(options, mode):
    made, plain = drawn("attention, batch first")
    client, x = blind(made).train(mode == "training"), random(3, 4, 6)
    plain.train(mode == "training")
    with torch.set_grad_enabled(mode != "evaluation without gradients"):
        found = client(x, x, x, **options)
        assert_same(found, functional_call(plain.layer, through(made, plain), (x, x, x), options))


# Blindness ------------------------------------------------------------------------------------------------------------


WIDE = {
    "lstm": lambda: nn.LSTM(40, 30),
    "gru": lambda: nn.GRU(40, 30),
    "rnn": lambda: nn.RNN(40, 30),
    "attention": lambda: nn.MultiheadAttention(40, 2),
}


@pytest.mark.parametrize("name", WIDE)
@pytest.mark.parametrize("fold_bias", [False, True], ids=["biases apart", "biases folded"])
def test_nothing_in_a_blind_layer_holds_as_many_numbers_as_any_weight(name, fold_bias):
    plain = WIDE[name]()
    made = sketch_model(Net(plain), fold_bias=fold_bias)
    draw(made, SEED)
    client, x = blind(made).layer, torch.randn(2, 1, 40)
    sum(each.sum() for each in tensors(client(*(x,) * (3 if name == "attention" else 1)))).backward()
    weights = {key: value.numel() for key, value in plain.named_parameters() if value.ndim == 2}
    assert {*weights.values()} <= {*numbers_within(made)}
    assert not {*weights.values()} & {*numbers_within(client)}
    assert max(numbers_within(client)) < max(weights.values())


@every_layer
def test_copies_and_states_round_trip(name):
    made, _ = drawn(name)
    for module in (made, blind(made)):
        inputs = inputs_for(name)
        expected = module(*inputs)
        twin = copy.deepcopy(module)
        assert_same(twin(*inputs), expected)
        for value in twin.parameters():
            nn.init.zeros_(value)
        assert not torch.equal(twin(*inputs)[0], expected[0])
        twin.load_state_dict(module.state_dict())
        assert_same(twin(*inputs), expected)


# The full form --------------------------------------------------------------------------------------------------------


@every_layer
def test_until_drawn_and_in_evaluation_the_full_form_is_torchs_layer(name):
    plain, inputs = filled(Net(LAYERS[name]())), inputs_for(name)
    made = sketch_model(plain)
    assert list(made.state_dict()) == list(plain.state_dict())
    assert_same(made(*inputs), plain(*inputs))
    draw(made, SEED)
    assert not torch.equal(made(*inputs)[0], plain(*inputs)[0])
    assert_same(made.eval()(*inputs), plain.eval()(*inputs))


def test_what_is_frozen_stays_frozen_and_a_failing_call_changes_nothing():
    plain = Net(nn.LSTM(6, 5))
    plain.layer.weight_hh_l0.requires_grad_(False)
    made = sketch_model(plain)
    draw(made, SEED)
    client = blind(made)
    assert not client.layer.weight_hh_l0.requires_grad
    before = client.layer.weight_ih_l0
    with pytest.raises(RuntimeError, match=r"input\.size"):
        client(torch.randn(3, 4, 7))
    assert client.layer.weight_ih_l0 is before
    assert client.layer._flat_weights[0] is before


def test_users_read_the_sizes_of_a_blind_layer_as_of_torchs():
    kinds = {"lstm": BlindLSTM, "gru": BlindGRU, "rnn": BlindRNN, "attention": BlindMultiheadAttention}
    for name, kind in kinds.items():
        layer = blind(drawn(name)[0]).layer
        assert type(layer) is kind
        assert "sketch=balanced" in repr(layer)
        assert layer.embed_dim == 6 if name == "attention" else (layer.input_size, layer.hidden_size) == (6, 5)


# Encoders and decoders ------------------------------------------------------------------------------------------------


def encoder():
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=12, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Linear(8, 3))


@pytest.mark.parametrize("exclude", [[], ["0.layers.0.self_attn", "0.layers.1.self_attn"]], ids=["all", "dense layers only"])
@pytest.mark.parametrize("padded", [False, True])
def test_the_fast_path_of_encoders_does_not_bypass_the_sketches(exclude, padded):
    """In evaluation without gradients, torch's encoders read the weights of their layers instead of calling them."""
    made = sketch_model(encoder(), exclude=exclude)
    draw(made, SEED)
    client, x = blind(made).eval(), torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(2))
    mask = torch.tensor([[False] * 4, [False, False, True, True], [False] * 3 + [True]]) if padded else None
    with_gradients = client[0](x, src_key_padding_mask=mask)
    with torch.no_grad():
        without = client[0](x, src_key_padding_mask=mask)
    kept = slice(None) if mask is None else ~mask
    torch.testing.assert_close(without[kept], with_gradients[kept], rtol=1e-5, atol=1e-6)
    client.train()
    for module in client.modules():
        if isinstance(module, nn.Dropout | nn.MultiheadAttention):
            module.eval()
    torch.testing.assert_close(client[0](x, src_key_padding_mask=mask)[kept], without[kept], rtol=1e-5, atol=1e-6)


def test_a_whole_transformer_has_a_client_form():
    torch.manual_seed(1)
    model = nn.Transformer(8, 2, 1, 1, 12, dropout=0.0, batch_first=True)
    made = sketch_model(model)
    draw(made, SEED)
    source, target = torch.randn(2, 5, 8), torch.randn(2, 4, 8)
    torch.testing.assert_close(blind(made)(source, target), made(source, target), rtol=1e-5, atol=1e-6)
    assert sum(isinstance(module, BlindCompound) for module in blind(made).modules()) == 3


# What is refused ------------------------------------------------------------------------------------------------------


def tied_inside():
    layer = nn.LSTM(6, 5, bidirectional=True)
    layer.weight_hh_l0_reverse = layer.weight_hh_l0
    return layer


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.MultiheadAttention(6, 2, add_bias_kv=True),
        lambda: nn.utils.weight_norm(nn.LSTM(6, 5), "weight_hh_l0"),
        lambda: nn.utils.parametrizations.weight_norm(nn.GRU(6, 5), "weight_hh_l0"),
        lambda: nn.utils.weight_norm(nn.Linear(6, 5)),
        tied_inside,
        lambda: nn.LSTMCell(6, 5),
    ],
    ids=["add_bias_kv", "weight_norm", "parametrized", "weight_norm of a dense layer", "tied", "a cell"],
)
def test_layers_whose_weights_are_not_what_they_multiply_stay_plain(layer):
    model = nn.Sequential(nn.Linear(6, 6), layer(), nn.Linear(5, 2))
    assert not {"1"} & sketched_layers(model).keys()


def test_attention_that_is_excluded_keeps_its_output_projection_too():
    model = nn.Sequential(nn.Linear(8, 8), nn.MultiheadAttention(8, 2), nn.Linear(8, 2))
    assert list(sketched_layers(model)) == ["0", "1", "1.out_proj"]
    assert list(sketched_layers(model, ["1.out_proj"])) == ["0", "1"]
    assert list(sketched_layers(model, ["1"])) == ["0"]


def test_a_sketch_of_another_dim_is_refused():
    with pytest.raises(InputError, match=r"dim 7 does not fit 'weight_hh_l0' with 5 columns: LSTM\(6, 5\).*dim=5"):
        blind_compound(nn.LSTM(6, 5), {"weight_hh_l0": make_sketch("balanced", dim=7, size=3, seed=SEED)})
