"""Layers that clients train through a sketch: ratios to torch's own layers and to a loop over buckets."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import altair as alt
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

from sketchfed import PublicSeed
from sketchfed.nn import SketchedConv2d, SketchedLinear, blind_layer, columns, sketch_size
from sketchfed.report import INK, MUTED, PALETTE, save_chart
from sketchfed.sketches import Sketch, make_sketch
from sketchfed_lab.benchmarks import harness
from sketchfed_lab.benchmarks.harness import Measurement

FAMILIES = ("balanced", "count", "sampling", "srht")
OURS, FULL_FORM, LOOP = "balanced", "balanced, full form", "a loop over buckets"
MOST_OVER_DENSE, MOST_OVER_CONVOLUTION, FASTER_THAN_LOOP = 1.5, 2.2, 30.0
KERNEL = 5


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A dense layer, or, with the side of its images, a convolution of 5 × 5 that keeps it; and how many examples it gets."""

    inputs: int
    outputs: int
    batch: int
    side: int | None = None

    @property
    def label(self) -> str:
        kind = "" if self.side is None else f", {KERNEL}×{KERNEL} on {self.side}²"
        return f"{self.inputs:,} → {self.outputs:,}{kind}, batch {self.batch}"

    def layer(self) -> nn.Linear | nn.Conv2d:
        if self.side is None:
            return nn.Linear(self.inputs, self.outputs)
        return nn.Conv2d(self.inputs, self.outputs, KERNEL, padding=KERNEL // 2)

    def full_form(self, plain: nn.Module) -> SketchedLinear | SketchedConv2d:
        made = (
            SketchedLinear(self.inputs, self.outputs)
            if self.side is None
            else SketchedConv2d(self.inputs, self.outputs, KERNEL, padding=KERNEL // 2)
        )
        made.load_state_dict(plain.state_dict())
        made.draw(PublicSeed(1))
        return made

    def examples(self) -> Tensor:
        images = () if self.side is None else (self.side, self.side)
        return torch.randn(self.batch, self.inputs, *images, generator=torch.Generator().manual_seed(1))


DENSE = (
    Shape(inputs=784, outputs=200, batch=10),
    Shape(inputs=200, outputs=200, batch=10),
    Shape(inputs=3136, outputs=512, batch=10),
    Shape(inputs=3136, outputs=512, batch=50),
    Shape(inputs=4096, outputs=1024, batch=64),
)
CONVOLUTIONS = (
    Shape(inputs=1, outputs=32, side=28, batch=10),
    Shape(inputs=32, outputs=64, side=14, batch=10),
    Shape(inputs=3, outputs=32, side=32, batch=50),
    Shape(inputs=32, outputs=64, side=32, batch=50),
    Shape(inputs=64, outputs=128, side=16, batch=50),
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which layers to time and how long."""

    shapes: Sequence[Shape]
    rounds: int
    turn: float


FULL = Plan(shapes=DENSE + CONVOLUTIONS, rounds=7, turn=0.1)
QUICK = Plan(shapes=DENSE[:3] + CONVOLUTIONS[:2], rounds=2, turn=0.02)


def main(*, folder: Path, quick: bool = False) -> None:
    """Time everything, print tables, append to `layers.jsonl` and draw `layers.svg` in the folder."""
    plan, console = QUICK if quick else FULL, Console()
    measured: list[Measurement] = []
    with harness.one_thread(), harness.progress(console) as bar:
        task = bar.add_task("layers", total=len(plan.shapes))
        bar.refresh()
        for shape in plan.shapes:
            measured += passes(shape, plan) + looped(shape, plan) + sketching(shape, plan)
            bar.update(task, advance=1, refresh=True)
    harness.append_jsonl(folder / "layers.jsonl", measured)
    save_chart(picture(measured), folder / "layers.svg")
    for table in tables(measured):
        console.print(table)
    targets = [m.met for m in measured if m.met is not None]
    console.print(f"{sum(targets)} of {len(targets)} targets met · {harness.machine()['cpu']} · {folder}")


# A loop over buckets --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Buckets:
    """A sketch of one signed bucket an input, worked off bucket by bucket as in Zhang & Wang 2021, App. E."""

    members: Sequence[Tensor]
    signs: Tensor

    @classmethod
    def of(cls, sketch: Sketch) -> "Buckets":
        matrix = sketch.apply(torch.eye(sketch.dim))
        bucket = matrix.abs().argmax(1)
        return cls([(bucket == number).nonzero()[:, 0] for number in range(sketch.size)], matrix.sum(1))

    def apply(self, x: Tensor) -> Tensor:
        signed, out = x * self.signs, x.new_zeros(x.shape[0], len(self.members))
        for number, inputs in enumerate(self.members):
            out[:, number] = signed[:, inputs].sum(1)
        return out

    def adjoint(self, y: Tensor) -> Tensor:
        out = y.new_zeros(y.shape[0], len(self.signs))
        for number, inputs in enumerate(self.members):
            out[:, inputs] = y[:, number, None]
        return out * self.signs


class _ByLoop(torch.autograd.Function):
    """(xS)(WS)ᵀ + b where, as in App. E, inputs and weights are sketched in every pass and both gradients sketched back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, buckets: Buckets) -> Tensor:
        ctx.buckets, rows, sketched = buckets, buckets.apply(x), buckets.apply(weight)
        ctx.save_for_backward(rows, sketched)
        return torch.addmm(bias, rows, sketched.T)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        rows, sketched = ctx.saved_tensors
        to_x, to_weight = ctx.buckets.adjoint(gradient @ sketched), ctx.buckets.adjoint(gradient.T @ rows)
        return to_x, to_weight, gradient.sum(0), None


def _patches(images: Tensor) -> Tensor:
    """Images as `(batch, places, numbers of a patch)`."""
    return functional.unfold(images, KERNEL, padding=KERNEL // 2).mT


class Looped(nn.Module):
    """A layer by loops; a convolution unfolds its images into patches first, as in App. E."""

    def __init__(self, plain: nn.Linear | nn.Conv2d, sketch: Sketch) -> None:
        super().__init__()
        assert plain.bias is not None
        self.buckets, self.convolves = Buckets.of(sketch), isinstance(plain, nn.Conv2d)
        self.weight = nn.Parameter(plain.weight.detach().flatten(1).clone())
        self.bias = nn.Parameter(plain.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        if not self.convolves:
            return self._product(x)
        patches = _patches(x)
        out = self._product(patches.flatten(0, 1))
        return out.reshape(*patches.shape[:2], -1).mT.reshape(len(x), -1, *x.shape[2:])

    def _product(self, rows: Tensor) -> Tensor:
        return _ByLoop.apply(rows, self.weight, self.bias, self.buckets)  # type: ignore[no-any-return, no-untyped-call]


# What is measured -----------------------------------------------------------------------------------------------------


def drawn(plain: nn.Linear | nn.Conv2d, family: str) -> Sketch:
    dim = columns(plain)
    return make_sketch(family, dim=dim, size=sketch_size(dim, ratio=0.5), seed=PublicSeed(1))


def contestants(shape: Shape) -> dict[str, nn.Module]:
    """Torch's layer, its blind form with each family, and its full form."""
    plain = shape.layer()
    made: dict[str, nn.Module] = {type(plain).__name__: plain}
    made |= {family: blind_layer(plain, drawn(plain, family)) for family in FAMILIES}
    return made | {FULL_FORM: shape.full_form(plain)}


def both_ways(layer: nn.Module, x: Tensor, gradient: Tensor) -> None:
    """A pass forward and one back to inputs, weights and bias."""
    x.grad = None
    for parameter in layer.parameters():
        parameter.grad = None
    layer(x).backward(gradient)


def passes(shape: Shape, plan: Plan) -> list[Measurement]:
    """Forward and backward of a layer that keeps half of its inputs, beside torch's own."""
    layers, x = contestants(shape), shape.examples().requires_grad_()
    plain, *ours = layers
    gradient = torch.randn(layers[plain](x).shape, generator=torch.Generator().manual_seed(2))
    seconds = _raced({name: partial(both_ways, layer, x, gradient) for name, layer in layers.items()}, plan)
    most = MOST_OVER_DENSE if shape.side is None else MOST_OVER_CONVOLUTION
    note = partial(Measurement, topic="passes", facts=_facts(shape))
    found = [note(what=plain, seconds=seconds[plain])]
    for name in ours:
        ratio, asked = seconds[name] / seconds[plain], most if name == OURS else None
        found.append(note(what=name, seconds=seconds[name], over=plain, ratio=ratio, at_most=asked))
    return found


def looped(shape: Shape, plan: Plan) -> list[Measurement]:
    """The same of a layer by loops, beside ours; both have the same outputs."""
    plain, x = shape.layer(), shape.examples().requires_grad_()
    sketch = drawn(plain, OURS)
    layers: dict[str, nn.Module] = {OURS: blind_layer(plain, sketch), LOOP: Looped(plain, sketch)}
    expected = layers[OURS](x).detach()
    torch.testing.assert_close(layers[LOOP](x).detach(), expected, rtol=1e-3, atol=1e-4)
    gradient = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2))
    return _against_loop(
        "looped", shape, {name: partial(both_ways, layer, x, gradient) for name, layer in layers.items()}, plan
    )


def sketching(shape: Shape, plan: Plan) -> list[Measurement]:
    """All that is sketched in such a pass, and nothing else.

    By a loop, these are examples or patches and weights, and both gradients back. Here, they are examples there and their
    gradients back; for a convolution, the kernel back and its gradient there.
    """
    plain, x = shape.layer(), shape.examples()
    sketch = drawn(plain, OURS)
    rows, weight = x if shape.side is None else _patches(x).flatten(0, 1), plain.weight.detach().flatten(1)
    buckets = Buckets.of(sketch)

    def by_loop() -> None:
        for there in (rows, weight):
            buckets.adjoint(buckets.apply(there))

    def ours() -> None:
        sketch.adjoint(sketch.apply(rows if shape.side is None else weight))

    return _against_loop("sketching", shape, {OURS: ours, LOOP: by_loop}, plan)


def _against_loop(topic: str, shape: Shape, works: Mapping[str, Callable[[], object]], plan: Plan) -> list[Measurement]:
    seconds = _raced(works, replace(plan, rounds=min(plan.rounds, 3)))  # loops take seconds, and a few rounds will do
    note, ratio = partial(Measurement, topic=topic, facts=_facts(shape)), seconds[LOOP] / seconds[OURS]
    ours = note(what=OURS, seconds=seconds[OURS])
    return [ours, note(what=LOOP, seconds=seconds[LOOP], over=OURS, ratio=ratio, at_least=FASTER_THAN_LOOP)]


def _raced(works: Mapping[str, Callable[[], object]], plan: Plan) -> dict[str, float]:
    return harness.race({name: harness.repeated(work) for name, work in works.items()}, rounds=plan.rounds, turn=plan.turn)


def _facts(shape: Shape) -> dict[str, Any]:
    side = {} if shape.side is None else {"side": shape.side, "kernel": KERNEL}
    return {"layer": shape.label, "inputs": shape.inputs, "outputs": shape.outputs, "batch": shape.batch, **side}


# What is shown --------------------------------------------------------------------------------------------------------


def tables(measured: Sequence[Measurement]) -> Iterator[Table]:
    """What was measured, for people. Red and a cross mark a missed target."""
    layers: dict[str, dict[tuple[str, str], Measurement]] = {}
    for m in measured:
        layers.setdefault(m.facts["layer"], {})[m.topic, m.what] = m
    yield harness.table(
        "Forward and backward, half the inputs kept: time, divided by that of torch's layer",
        ["", "torch's layer", *FAMILIES, FULL_FORM],
        (_ratios(label, [m for (topic, _), m in found.items() if topic == "passes"]) for label, found in layers.items()),
        caption=f"asked: balanced at most {MOST_OVER_DENSE:g} times nn.Linear, {MOST_OVER_CONVOLUTION:g} times nn.Conv2d",
    )
    yield harness.table(
        "A loop over buckets, as in the paper: time, and divided by ours",
        ["", "all its sketching", "", "forward and backward", ""],
        (
            [label, *(cell for topic in ("sketching", "looped") for cell in _timed(found[topic, LOOP]))]
            for label, found in layers.items()
        ),
        caption=f"asked: each at least {FASTER_THAN_LOOP:g} times ours",
    )


def _ratios(label: str, found: Sequence[Measurement]) -> list[str]:
    plain, *ours = found
    return [label, harness.human_seconds(plain.seconds), *(harness.judged(m) for m in ours)]


def _timed(measurement: Measurement) -> tuple[str, str]:
    return harness.human_seconds(measurement.seconds), harness.judged(measurement)


def picture(measured: Sequence[Measurement]) -> alt.LayerChart:
    """Time divided by that of torch's layer, a row a layer."""
    families = [*FAMILIES, FULL_FORM]
    rows = [
        {"layer": m.facts["layer"], "what": m.what, "ratio": m.ratio}
        for m in measured
        if m.topic == "passes" and m.ratio is not None
    ]
    limits = {
        m.facts["layer"]: MOST_OVER_CONVOLUTION if "side" in m.facts else MOST_OVER_DENSE for m in measured if m.what == OURS
    }
    top = max([*limits.values(), *(row["ratio"] for row in rows)])
    x = alt.X(
        "ratio:Q",
        title="time, divided by that of torch's layer",
        scale=alt.Scale(domain=[0, math.ceil(2 * top) / 2], nice=False),
    )
    y = alt.Y("layer:N", title=None, sort=list(limits), axis=alt.Axis(labelLimit=260, grid=True))
    marks = [{"layer": layer, "ratio": limit} for layer, limit in limits.items()]
    colour = alt.Color("what:N", title=None, scale=alt.Scale(domain=families, range=PALETTE[: len(families)]))
    drawn: list[Any] = [
        alt.Chart(alt.InlineData(values=[{"one": 1}])).mark_rule(color=MUTED).encode(x="one:Q"),
        alt.Chart(alt.InlineData(values=marks)).mark_tick(color=INK, thickness=2, size=16).encode(x=x, y=y),
        alt.Chart(alt.InlineData(values=rows)).mark_point(filled=True, size=60, opacity=0.9).encode(x=x, y=y, color=colour),
    ]
    title = alt.Title(
        "A client's layers, forward and backward", subtitle="half the inputs kept, one core; ticks: at most asked of balanced"
    )
    return alt.LayerChart(layer=drawn, title=title, width=420, height=alt.Step(26))
