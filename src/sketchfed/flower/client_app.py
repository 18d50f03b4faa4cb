"""The ClientApp: what a SuperNode runs for every message of a sketchfed server."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from sketchfed.flower.node import answered
from sketchfed.flower.source import NodeSource

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """All stages come as one type of message, for mods see only types that their app has a function for."""
    return answered(message, context, NodeSource(context.node_config))
