"""The ClientApp: what a SuperNode runs for every message of a sketchfed server."""

from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from sketchfed.flower.node import answered
from sketchfed.flower.source import NodeSource

Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]


def make_client_app(*mods: Mod) -> ClientApp:
    """The ClientApp of sketchfed with these Flower mods around it, the first one outermost.

    An app with another ClientApp than the packaged one is submitted by `submitting(app_with(...))`.
    """
    made = ClientApp(mods=list(mods))
    made.train()(train)
    return made


def train(message: Message, context: Context) -> Message:
    """All stages arrive as one type of message, because mods see only types for which their app has a function."""
    return answered(message, context, NodeSource(context.node_config))


app = make_client_app()
