"""The parts do what sketchfed demands of every sketch, codec, algorithm and combine rule."""

from typing import ClassVar

from sketchfed_example.algorithm import FedAdagrad
from sketchfed_example.codec import Fold
from sketchfed_example.data import rings
from sketchfed_example.rule import NearMean
from sketchfed_example.sketch import Stripes

from sketchfed.algorithms import CodecSettings
from sketchfed.testing import AlgorithmConformance, CodecConformance, CombineRuleConformance, SketchConformance


class TestStripes(SketchConformance):
    sketches: ClassVar = [Stripes]


class TestNearMean(CombineRuleConformance):
    rules: ClassVar = [NearMean(), NearMean(byzantine=0.45)]


class TestFold(CodecConformance):
    codecs: ClassVar = [Fold(dim=256, size=32)]


class TestFedAdagrad(AlgorithmConformance):
    algorithms: ClassVar = {
        "all coordinates": FedAdagrad(),
        "folded": FedAdagrad(codec=CodecSettings(name="sketchfed_example.codec:Fold", ratio=0.5)),
    }


def test_every_class_of_the_rings_is_there():
    data = rings(examples=120)
    assert data.y_train.unique().tolist() == data.y_test.unique().tolist() == [0, 1, 2]
    assert len(data.x_train) == 90
