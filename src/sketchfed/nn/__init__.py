"""Layers and models that train through sketches of their weights: double-blind collaborative learning (Zhang & Wang 2021)."""

from sketchfed.nn.compound import BlindCompound, SketchedCompound
from sketchfed.nn.convert import blind, draw, output_layer, sketch_model, sketched_layers
from sketchfed.nn.layers import BlindConv2d, BlindLinear, SketchedConv2d, SketchedLinear, blind_layer, columns, sketch_size
from sketchfed.nn.model_sketch import ModelSketch

__all__ = [
    "BlindCompound",
    "BlindConv2d",
    "BlindLinear",
    "ModelSketch",
    "SketchedCompound",
    "SketchedConv2d",
    "SketchedLinear",
    "blind",
    "blind_layer",
    "columns",
    "draw",
    "output_layer",
    "sketch_model",
    "sketch_size",
    "sketched_layers",
]
