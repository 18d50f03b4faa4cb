"""Blind clients of models with attention and recurrent layers: the same as training W through S."""

import pytest
import torch
from blind_federation import all_bytes, assert_trains_through_sketches, contains_run, dbcl, federated
from torch import nn

from federation import advanced, weights_of
from problems import SEED, examples
from sketchfed.algorithms import Dbcl
from sketchfed.errors import InputError
from sketchfed.protection import PrivacySettings, SecureSettings
from sketchfed.training import AutogradTrainer
from sketchfed.training.blind import client_form
from sketchfed.training.losses import LOSSES
from sketchfed.vectors import Layout, flatten, load


class Rows(nn.Module):
    """Reads an image row by row with a recurrent layer."""

    def __init__(self, kind=nn.LSTM, **options):
        super().__init__()
        self.rnn = kind(8, 6, batch_first=True, **options)
        self.head = nn.Linear(self.rnn(torch.zeros(1, 1, 8))[0].shape[-1], 4)

    def forward(self, images):
        return self.head(self.rnn(images.squeeze(1))[0][:, -1])


class Attentive(nn.Module):
    """Looks at the rows of an image, some of which are masked, from its columns."""

    def __init__(self, keys=8, **options):
        super().__init__()
        self.keys, self.attention = keys, nn.MultiheadAttention(8, 2, batch_first=True, kdim=keys, **options)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, images):
        rows = images.squeeze(1)
        masked = torch.zeros(rows.shape[:2], dtype=torch.bool)
        masked[:, 5:] = True
        return self.head(self.norm(self.attention(rows.mT, rows[..., : self.keys], rows, key_padding_mask=masked)[0]).mean(1))


class Encoding(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=10, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(8, 4)

    def forward(self, images):
        return self.head(self.encoder(images.squeeze(1)).mean(1))


MODELS = {
    "lstm": Rows,
    "lstm, two layers, both ways, projection": lambda: Rows(num_layers=2, bidirectional=True, proj_size=3),
    "gru": lambda: Rows(nn.GRU, num_layers=2),
    "rnn": lambda: Rows(nn.RNN, bidirectional=True),
    "attention": Attentive,
    "attention with separate projections": lambda: Attentive(keys=5),
    "transformer": Encoding,
}
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
every_model = pytest.mark.parametrize("name", MODELS)


def made(name):
    torch.manual_seed(1)
    return MODELS[name]()


@every_model
@pytest.mark.parametrize("family", ["balanced", "srht"])
def test_it_trains_the_weights_through_the_sketches(name, family):
    assert_trains_through_sketches(dbcl(family), made(name), clients=2)


@every_model
@pytest.mark.parametrize(
    "options",
    [
        {"biases": "sketched"},
        {"output": "sketched", "vary": 0.4},
        {"output": "withheld", "biases": "withheld"},
        {"local_momentum": 0.8, "weight_decay": 0.1},
    ],
    ids=str,
)
def test_so_it_does_with_every_option(name, options):
    if (name, options.get("biases")) == ("attention with separate projections", "sketched"):
        with pytest.raises(InputError, match=r"'attention\.in_proj_bias' is no column of one trainable weight.*'withheld'"):
            federated(dbcl(**options), module=made(name))
        return
    assert_trains_through_sketches(dbcl(**options), made(name), rounds=1, clients=2)


def form_of(module, **options):
    return Dbcl(**options).resolved(1, module=module).given(SEED, 0).sketch


@every_model
@pytest.mark.parametrize("way", ["plain", "withheld"])
def test_the_client_form_has_the_weights_and_the_outputs_that_the_operator_makes(name, way):
    module = made(name)
    form = form_of(module, biases=way)
    client = client_form(module, form)
    assert Layout.of(client) == form.seen
    torch.testing.assert_close(flatten(client), form.apply(flatten(module)))
    whole = form.adjoint(form.apply(flatten(module)))
    views = form.layout.views(whole)
    for parameter, values in form.fixed().items():
        views[parameter].copy_(values)
    x = examples(3, shape=(1, 8, 8)).x
    expected = load(made(name), whole)(x)
    torch.testing.assert_close(client(x), expected, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(client.eval()(x), expected, rtol=1e-4, atol=1e-5)


@every_model
def test_every_weight_of_these_layers_is_sketched_and_no_bias(name):
    module = made(name)
    form = form_of(module, output="sketched")
    matrices = {name for name, value in module.named_parameters() if value.ndim > 1}
    assert form.sketches.keys() == matrices
    assert form_of(module).sketches.keys() == matrices - {"head.weight"}


@every_model
def test_gradients_of_single_examples_are_those_of_batches_of_one(name):
    module = made(name)
    form = form_of(module)
    trainer = AutogradTrainer(module, LOSSES["cross_entropy"]).sketched(form)
    weights, data = form.apply(flatten(module)), examples(4, shape=(1, 8, 8))
    rows = trainer.gradients(weights, data)
    client = client_form(module, form)
    for index, row in enumerate(rows):
        client.zero_grad()
        LOSSES["cross_entropy"](client(data.x[index : index + 1]), data.y[index : index + 1]).backward()
        expected = torch.cat([value.grad.reshape(-1) for value in client.parameters()])
        torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-6)


@every_model
def test_noise_on_examples_and_secure_sums_go_with_it(name):
    noise = PrivacySettings(
        name="discrete_gaussian", unit="example", noise_multiplier=0.5, delta=1e-3, clip=0.5, insecure_noise_seed=1
    )
    algorithm = dbcl(local_epochs=None, local_steps=1)
    settings = {"module": made(name), "clients": 4, "privacy": noise, "secure": SecureSettings()}
    server = advanced(federated(algorithm, **settings), 2)
    assert 0 < server.epsilon < float("inf")
    for key, weight in Layout.of(made(name)).views(weights_of(server)).items():
        assert "head" in key or not contains_run(all_bytes(server.engine), weight), key


@pytest.mark.parametrize("name", ["lstm", "attention", "transformer"])
def test_no_message_holds_a_weight(name):
    server = federated(dbcl(), module=made(name))
    sketched = server.algorithm.given(SEED, 0).sketch.sketches
    for _ in range(2):
        views = Layout.of(made(name)).views(weights_of(server).clone())
        server.advance()
        for key in sketched:
            assert not contains_run(all_bytes(server.engine), views[key]), key
        assert contains_run(all_bytes(server.engine), views["head.weight"])


def test_the_log_says_which_weights_travel_as_they_are(caplog):
    module = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    with caplog.at_level("INFO", logger="sketchfed"):
        Dbcl(exclude=["0"]).resolved(1, module=module).begin(flatten(module))
        assert "clients see these weights as they are: 0.weight, 2.weight" in caplog.text
        caplog.clear()
        Dbcl(output="sketched").resolved(1, module=module[1:]).begin(flatten(module[1:]))
        assert not caplog.text


def test_a_model_of_recurrent_layers_alone_has_no_output_layer_to_leave_out():
    module = nn.LSTM(4, 3)
    form = form_of(module)
    assert form.sketches.keys() == {"weight_ih_l0", "weight_hh_l0"}
    assert form_of(module, biases="sketched", output="withheld").folded == {"bias_ih_l0", "bias_hh_l0"}


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize(
    ("layer", "owner"),
    [
        (lambda: nn.MultiheadAttention(4, 2, add_bias_kv=True), "1"),
        (lambda: nn.utils.weight_norm(nn.LSTM(4, 4), "weight_hh_l0"), "1"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), "1.parametrizations.weight"),
        (lambda: nn.utils.weight_norm(nn.Linear(4, 4)), "1"),
        (lambda: nn.LSTMCell(4, 4), "1"),
    ],
    ids=["add_bias_kv", "weight_norm", "parametrized", "weight_norm of a dense layer", "a cell"],
)
def test_what_cannot_be_sketched_is_refused_unless_it_is_excluded(layer, owner):
    module = nn.Sequential(nn.Linear(4, 4), layer(), nn.Linear(4, 2))
    with pytest.raises(InputError, match=rf"layer '{owner}' \(.*cannot be sketched.*nn\.LSTM.*add_bias_kv.*\[\"{owner}\"\]"):
        form_of(module)
    assert form_of(module, exclude=[owner]).sketches.keys() == {"0.weight"}


def test_frozen_matrices_of_a_layer_are_part_of_the_model():
    module = Rows()
    module.rnn.weight_ih_l0.requires_grad_(False)
    form = form_of(module)
    assert form.sketches.keys() == {"rnn.weight_hh_l0"}
    client = client_form(module, form)
    assert torch.equal(client.rnn.weight_ih_l0, module.rnn.weight_ih_l0)
    assert_trains_through_sketches(dbcl(), module, rounds=1, clients=2)
    with pytest.raises(InputError, match=r"'rnn\.bias_ih_l0' is no column"):
        form_of(module, biases="sketched")
