"""The ServerApp of the quick start."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from quickstart.task import Net
from sketchfed.flower import Sketched  # 3

app = ServerApp()

SKETCH = {"algorithm": {"name": "iterative"}, "sketch": {"ratio": 0.1}}  # 4: or a TOML file


@app.main()
def main(grid: Grid, context: Context) -> None:
    torch.manual_seed(0)
    arrays = ArrayRecord(Net().state_dict())
    strategy = FedAvg(fraction_train=context.run_config["fraction-train"])
    strategy = Sketched(strategy, SKETCH)  # 5
    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": context.run_config["lr"]}),
        num_rounds=context.run_config["num-server-rounds"],
    )
    for number, metrics in result.evaluate_metrics_clientapp.items():
        print(f"round {number}: {dict(metrics)}")
