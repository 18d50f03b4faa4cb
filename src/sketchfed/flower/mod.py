"""For a ClientApp that exists already: its own training, sent as sketches, clipped, noised and masked."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from hashlib import sha256
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from torch import Tensor

from sketchfed.algorithms import Replica
from sketchfed.config import Config
from sketchfed.errors import InputError, SketchfedError, WireError
from sketchfed.flower.agreement import Agreement
from sketchfed.flower.desk import read_policy
from sketchfed.flower.layout import ArrayLayout
from sketchfed.flower.messages import NEVER, RECORD
from sketchfed.flower.node import answered
from sketchfed.flower.refusals import told
from sketchfed.flower.source import Hello, Work, WorkSource, total
from sketchfed.nn.model_sketch import ModelSketch
from sketchfed.nodes.policy import Rule
from sketchfed.training import ClientMemory, Examples, LocalWork, Turn

CallNext = Callable[[Message, Context], Message]


def sketchfed_mod(message: Message, context: Context, call_next: CallNext) -> Message:
    """A mod for `ClientApp(mods=[sketchfed_mod])`; the server's strategy says what is sent (`Sketched`).

    The app's functions are called with whole models and return whole models, as ever. What leaves the client is the encoded
    change, clipped, noised and masked as the run's settings say. Messages of other strategies pass through, unless the node's
    policy demands privacy or secure sums, or says `plain = false`.
    """
    if not message.has_content() or RECORD not in message.content.config_records:
        try:
            plain = read_policy(context.node_config).rules["allow.plain"]
            if not plain.value:
                raise _refusal(plain)
        except Exception as error:
            said = told(error, client=NEVER, hides=True)
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, said), reply_to=message)
        return call_next(message, context)
    return answered(message, context, AppSource(message, context, call_next))


class AppSource(WorkSource):
    """Work that is done by the functions of an app."""

    def __init__(self, message: Message, context: Context, call_next: CallNext) -> None:
        super().__init__()
        self._message, self._context, self._call_next = message, context, call_next

    def threads(self) -> AbstractContextManager[None]:
        return nullcontext()  # the app's own business

    def parameters(self, layout: str) -> int | None:
        return ArrayLayout.from_text(layout).dim

    def hello(self, offer: bytes) -> Hello:
        return Hello(examples=1, own=True, run=self._run)

    def work(self, agreement: Agreement, client: int) -> Work:
        layout, config = ArrayLayout.from_text(agreement.layout), agreement.config
        check_app(config)
        if agreement.hides and layout.run != self._run:
            raise InputError(
                "Flower started this client's app with another run configuration than those of most clients. Its updates would "
                "be hidden among others that were computed in another way, so this client takes no part. Start the run again."
            )
        participant = config.participant(AppTrainer(self, layout), agreement.sizes)
        return Work(total(participant, agreement), _no_examples, None)

    def evaluate(self, agreement: Agreement, client: int, work: Work, replica: Replica, memory: ClientMemory) -> bytes:
        """Have the app evaluate. Its metrics travel in a record of Flower, and the reply is empty."""
        layout = ArrayLayout.from_text(agreement.layout)
        self._call(MessageType.EVALUATE, layout, replica.weights, layout.evaluate_config | {"server-round": self.round})
        return b""

    @property
    def _run(self) -> str:
        """The digest of the run configuration, which the SuperLink sends, and which apps read. Empty if there is none."""
        found = dict(self._context.run_config)
        return sha256(json.dumps(found, sort_keys=True, default=repr).encode()).hexdigest() if found else ""

    def train(self, layout: ArrayLayout, weights: Tensor) -> Tensor:
        """The weights after the app's own training."""
        reply = self._call(MessageType.TRAIN, layout, weights, layout.train_config | {"server-round": self.round + 1})
        arrays = reply.content.array_records
        if len(arrays) != 1:
            raise InputError(f"the app's reply holds {len(arrays)} array records; one with all arrays of the model is needed.")
        return layout.flat(next(iter(arrays.values())))

    def _call(self, function: str, layout: ArrayLayout, weights: Tensor, config: dict[str, Any]) -> Message:
        """The reply of the app's function. What it is called with follows from what all clients agreed on, and from weights."""
        metadata = self._message.metadata
        if metadata.message_type != function:
            raise WireError(  # not an exception of training: this client would count as zero, and stand out in the sum
                f"the message asks for the app's function '{metadata.message_type}', and all clients agreed on '{function}'."
            )
        metadata.group_id = ""  # a server may choose another one for each client, and an app can read it
        records = {layout.arrays_key: layout.record(weights), layout.config_key: ConfigRecord(config)}
        self._message.content = RecordDict(records)  # type: ignore[arg-type]
        reply = self._call_next(self._message, self._context)
        if reply.has_error():
            raise _AppError(f"the app failed: {reply.error.reason}")
        self.metrics = {name: value for record in reply.content.metric_records.values() for name, value in record.items()}
        return reply


class AppTrainer:
    """An app's training where a trainer is wanted: it knows whole clients, not their examples."""

    sequential = True

    def __init__(self, source: AppSource, layout: ArrayLayout) -> None:
        self.dim = layout.dim
        self._source, self._layout = source, layout

    def check(self, examples: Examples) -> None:
        """Nothing is known of them."""

    def train(self, weights: Tensor, examples: Examples, work: LocalWork, turn: Turn) -> Tensor:
        return self._source.train(self._layout, weights)

    def gradients(self, weights: Tensor, examples: Examples, out: Tensor | None = None) -> Tensor:
        raise _whole()

    def clipped_sum(self, weights: Tensor, examples: Examples, clip: float) -> Tensor:
        raise _whole()

    def sketched(self, form: ModelSketch) -> "AppTrainer":
        raise _whole()

    def gram(self, step: Tensor) -> Tensor:
        return step

    def outputs(self, weights: Tensor, x: Tensor) -> Tensor:
        raise _whole()

    def score(self, weights: Tensor, examples: Examples) -> tuple[float, int]:
        raise _whole()


class _AppError(SketchfedError):
    """What an app's own function says went wrong."""


def check_app(config: Config) -> None:
    """Refuse what looks inside a model or its local steps: an app shows its arrays and nothing else."""
    algorithm = config.algorithm
    if config.training.proximal:
        raise InputError(
            f"training.proximal = {config.training.proximal:g} is for the built-in loop, but an app trains by its own "
            "function. Remove it, and add the proximal term to the app's loss."
        )
    if config.training.evaluate_clients:
        raise InputError(
            "training.evaluate_clients = true is for sketchfed's own runs, but an app evaluates by its own function. Remove "
            "it, and set fraction_evaluate in the strategy inside of Sketched."
        )
    if algorithm.correction or algorithm.weighting != "equal":
        counts = "algorithm.weighting = 'examples' counts examples"
        given = f"{algorithm.correction} corrects local steps" if algorithm.correction else counts
        raise InputError(
            f"{given}, and an app trains by its own function on data of its own. Remove it, or run the model as a "
            'sketchfed run ([engine] name = "flower").'
        )
    if config.asynchronous is not None:
        raise InputError(
            "[asynchronous] simulates delays in one process, and an app runs on nodes, whose delays are real. Remove the table."
        )
    if algorithm.by_layer:
        raise InputError(
            f"algorithm '{algorithm.label}' treats layers differently, and of an app's model only arrays are known. Use "
            "'fedavg', 'iterative' or 'fetchsgd' without sketch.plain and sketch.blocks, or run the model as a sketchfed run "
            '([engine] name = "flower").'
        )


def _refusal(plain: Rule) -> InputError:
    text = (
        "this node's policy refuses a message of another strategy: the app's weights would leave without noise or masks. Use "
        "the strategy Sketched. "
    )
    return InputError(f"{text}({plain.text})").telling(f"{text}({plain.told})")


def _no_examples() -> Examples:
    return Examples(torch.empty(0), torch.empty(0))


def _whole() -> InputError:
    return InputError(
        "an app trains on all of a client at once, so single examples cannot be clipped. Use privacy.unit = 'client'."
    )
