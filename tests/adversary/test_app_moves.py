"""What a lying server or SuperLink tries with the functions of an app behind `sketchfed_mod`."""

from contextlib import suppress

import pytest
import torch
from fake_grid import NODES, FakeGrid, fresh_context
from flwr.app import ArrayRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp.strategy import FedAvg

from sketchfed.errors import SketchfedError
from sketchfed.flower import Sketched, sketchfed_mod

pytestmark = pytest.mark.usefixtures("in_a_run")

VICTIM = NODES[0]
SUMS = {"algorithm": {"name": "fedavg"}, "secure": {"clip": 1.0, "survivors": 0.9}}


class AppGrid(FakeGrid):
    """Three nodes with an app that has two functions to train, and one of them does nothing."""

    def __init__(self, lie=lambda message, context: None, **run_config):
        super().__init__(settings={})
        self.contexts = {node: fresh_context(node, {"policy": ""}) for node in NODES}
        for context in self.contexts.values():
            context.run_config.update(run_config)
        self.lie, self.trained = lie, []
        self.app = ClientApp(mods=[sketchfed_mod])

        @self.app.train()
        def train(message, context):
            rate = context.run_config.get("rate", 1.0) * (message.metadata.group_id != "rest")
            self.trained.append(context.node_id)
            moved = [array.numpy() + rate * 0.01 * context.node_id / 100 for array in message.content["arrays"].values()]
            return Message(RecordDict({"arrays": ArrayRecord(moved)}), reply_to=message)

        @self.app.train("idle")
        def idle(message, context):
            return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

    def _served(self, message, context):
        if context.node_id != VICTIM:
            self.lie(message, context)
        try:
            return self.app(message, context)
        except Exception as error:
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error)), reply_to=message)


def moved_by(grid) -> float | None:
    """How far one round moved the weights, times the number of clients. None if there was no round."""
    first = ArrayRecord([torch.zeros(5).numpy()])
    with suppress(SketchfedError):
        result = Sketched(FedAvg(fraction_evaluate=0.0), SUMS, wait=1.0).start(grid, first, num_rounds=1, timeout=1.0)
        return 3 * float(next(iter(result.arrays.values())).numpy().mean())
    return None


def idle(message, context):
    message.metadata.__dict__["_message_type"] = "train.idle"


def group(message, context):
    message.metadata.__dict__["_group_id"] = "rest"


def settings(message, context):
    context.run_config["rate"] = 0.0


def test_all_nodes_train_where_nobody_lies():
    assert moved_by(AppGrid()) == pytest.approx(0.01 * (1.01 + 1.02 + 1.03), rel=0.1)
    assert moved_by(AppGrid(rate=2.0)) == pytest.approx(0.02 * (1.01 + 1.02 + 1.03), rel=0.1)


@pytest.mark.parametrize("lie", [idle, group, settings])
def test_a_server_that_has_all_but_one_client_do_something_else_does_not_get_that_clients_update(lie):
    """Each lie makes the others train nothing. The sum would be what the victim learnt."""
    found = moved_by(AppGrid(lie))
    assert found is None or found == pytest.approx(0.01 * (1.01 + 1.02 + 1.03), rel=0.1)
