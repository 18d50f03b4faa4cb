"""What a test class names as its parts: the wrong attribute, nothing, or something that is no part is refused."""

from functools import partial

import pytest

from plugin import own_tests
from sketchfed import PublicSeed
from sketchfed.algorithms import FedAvg
from sketchfed.codecs import Dense
from sketchfed.combining import Median
from sketchfed.errors import InputError
from sketchfed.sketches.count import Count
from sketchfed.testing import AlgorithmConformance, CodecConformance, CombineRuleConformance, SketchConformance

SUITES = {
    "sketches": (SketchConformance, Count),
    "codecs": (CodecConformance, Dense(dim=8)),
    "algorithms": (AlgorithmConformance, FedAvg()),
    "rules": (CombineRuleConformance, Median()),
}


def suite_of(attribute: str, **named: object):
    return type("TestMine", (SUITES[attribute][0],), named)()


@pytest.mark.parametrize("attribute", SUITES)
def test_a_part_in_a_list_or_a_mapping_is_taken(attribute):
    part = SUITES[attribute][1]
    for parts in ([part], (part,), {"mine": part}):
        assert list(suite_of(attribute, **{attribute: parts}).cases().values()) == [part]


@pytest.mark.parametrize("attribute", SUITES)
def test_no_parts_are_refused_and_a_misspelt_attribute_is_named(attribute):
    part = SUITES[attribute][1]
    with pytest.raises(InputError, match=rf"TestMine has no attribute '{attribute}'.*but it has 'misspelt'.*{attribute} = \["):
        suite_of(attribute, misspelt=[part]).cases()
    with pytest.raises(InputError, match=rf"TestMine has no attribute '{attribute}', .*no check would run.*{attribute} = \["):
        suite_of(attribute).cases()
    for empty in ([], {}):
        with pytest.raises(InputError, match=rf"TestMine.{attribute} is empty, .*no check would run.*{attribute} = \["):
            suite_of(attribute, **{attribute: empty}).cases()


@pytest.mark.parametrize("attribute", SUITES)
def test_a_part_without_a_list_is_refused(attribute):
    part = SUITES[attribute][1]
    for wrong in (part, (each for each in [part]), "mine"):
        with pytest.raises(InputError, match=rf"TestMine.{attribute} must be a list or a mapping .*, got .*{attribute} = \["):
            suite_of(attribute, **{attribute: wrong}).cases()


@pytest.mark.parametrize("attribute", [name for name in SUITES if name != "sketches"])
def test_a_class_in_place_of_an_instance_is_refused(attribute):
    kind = type(SUITES[attribute][1])
    with pytest.raises(InputError, match=f"holds the class {kind.__name__}, but .* instances"):
        suite_of(attribute, **{attribute: [kind]}).cases()


@pytest.mark.parametrize("attribute", SUITES)
def test_something_else_in_place_of_a_part_is_refused(attribute):
    for wrong in (7, "count", int):
        with pytest.raises(InputError, match=f"TestMine.{attribute} holds .*{attribute} = "):
            suite_of(attribute, **{attribute: [wrong]}).cases()


def test_sketches_are_classes_or_partials_and_not_instances():
    family = partial(Count)
    assert suite_of("sketches", sketches=[family]).cases() == {"Count": family}
    with pytest.raises(InputError, match=r"holds an instance of Count, but .*classes"):
        suite_of("sketches", sketches=[Count(dim=4, size=2, seed=PublicSeed(1))]).cases()
    with pytest.raises(InputError, match="holds"):
        suite_of("sketches", sketches=[partial(int)]).cases()


def test_pytest_fails_with_that_sentence(tmp_path, capsys):
    file = tmp_path / "test_mine.py"
    file.write_text(
        "from sketchfed.combining import Median\n"
        "from sketchfed.testing import CombineRuleConformance\n\n"
        "class TestMine(CombineRuleConformance):\n    rule = [Median()]\n"
    )
    assert own_tests(file) == pytest.ExitCode.INTERRUPTED
    said = capsys.readouterr().out
    assert "TestMine has no attribute 'rules'" in said
    assert "Traceback" not in said
    assert "suite.py" not in said
