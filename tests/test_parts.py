import sys
from abc import ABC, abstractmethod
from typing import ClassVar

import pytest

from sketchfed.errors import InputError, UnknownNameError
from sketchfed.parts import Registry, check_options, resolve, resolve_function


class Shape(ABC):
    name: ClassVar[str]
    corners: ClassVar[int] = 0

    @abstractmethod
    def area(self) -> float: ...


class Square(Shape):
    name = "square"

    def area(self) -> float:
        return 1.0


class Nameless(Shape):
    def area(self) -> float:
        return 1.0


class Vague(Shape):
    name = "vague"


NUMBER = 4
SHAPES = Registry("shape", {"square": Square}, group="sketchfed_tests.shapes", base=Shape)
ROUNDINGS = Registry("rounding", {"round": round}, group="sketchfed_tests.roundings")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current folder with modules in it, and a module path that is as before afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


CIRCLE = f"""
from {__name__} import Shape


class Circle(Shape):
    name = "circle"

    def area(self):
        return 3.14
"""


def test_a_registry_is_a_mapping_from_names_to_parts():
    assert dict(SHAPES) == {"square": Square}
    assert SHAPES["square"] is Square
    assert SHAPES.get("cube") is None
    assert ("square" in SHAPES, "cube" in SHAPES, 4 in SHAPES, len(SHAPES)) == (True, False, False, 1)


@pytest.mark.parametrize("name", ["sqare", 4, None])
def test_an_unknown_name_is_told_what_there_is(name):
    with pytest.raises(UnknownNameError, match=r"no shape named .* Known: square, package\.module:Class for your own\."):
        SHAPES[name]


def test_a_reference_finds_a_part_that_nobody_announced():
    assert SHAPES[f"{__name__}:Square"] is Square
    assert ROUNDINGS["math:floor"](2.5) == 2
    assert SHAPES.origin("square") == "sketchfed"
    assert SHAPES.origin("math:floor") == "math:floor"


@pytest.mark.parametrize(
    ("thing", "why"),
    [
        ("NUMBER", "is a int, not a class. Name a subclass of .*Shape"),
        ("pytest.Item", "is not a subclass of .*Shape. Derive Item from it"),
        ("Nameless", "is not finished: Nameless lacks name. See .*Shape"),
        ("Vague", "is not finished: Vague lacks area"),
        ("Shape", "is not finished: Shape lacks name, area"),
    ],
)
def test_what_is_found_must_be_of_the_right_kind(thing, why):
    with pytest.raises(InputError, match=f"shape '{__name__}:{thing}' {why}"):
        SHAPES[f"{__name__}:{thing}"]


def test_where_functions_are_wanted_anything_that_can_be_called_will_do():
    assert ROUNDINGS[f"{__name__}:Square"] is Square
    with pytest.raises(InputError, match=rf"rounding '{__name__}:NUMBER' is a int, which cannot be called"):
        ROUNDINGS[f"{__name__}:NUMBER"]


def test_a_built_in_part_can_be_named_where_it_is_too_heavy_to_import():
    lazy = Registry("shape", {"square": f"{__name__}:Square", "cone": "cones:Cone"}, group=SHAPES.group, base=Shape)
    assert lazy["square"] is Square
    assert lazy.name_of(Square) == "square"
    assert (lazy.names(), lazy.origin("cone"), list(lazy)) == (["square", "cone"], "sketchfed", ["square"])
    with pytest.raises(InputError, match="there is no module 'cones'"):
        lazy["cone"]


def test_an_installed_package_announces_parts(installed):
    installed("round_shapes", {"circle": "round_shapes:Circle"}, CIRCLE, group=SHAPES.group)
    assert SHAPES.names() == ["square", "circle"]
    assert "circle" in SHAPES
    assert SHAPES.origin("circle") == "round_shapes 1.2 (entry point)"
    assert "round_shapes" not in sys.modules, "listing imports nothing"
    assert SHAPES["circle"]().area() == 3.14
    assert list(SHAPES) == ["square", "circle"]
    assert "circle" not in ROUNDINGS


def test_a_part_has_a_name_under_which_it_is_found_again(installed):
    installed("round_shapes", {"circle": "round_shapes:Circle", "square": "round_shapes:Square"}, CIRCLE, group=SHAPES.group)
    for name in ("square", "circle"):
        assert SHAPES.name_of(SHAPES[name]) == name
    assert SHAPES.name_of(Nameless) == f"{__name__}:Nameless"


def test_a_built_in_part_is_not_replaced(installed):
    installed("usurper", {"square": "usurper:Circle"}, CIRCLE, group=SHAPES.group)
    assert SHAPES["square"] is Square
    assert SHAPES.names() == ["square"]
    assert SHAPES.hidden() == {"square": "usurper 1.2"}
    assert "usurper" not in sys.modules


@pytest.mark.parametrize(
    ("value", "code", "why"),
    [
        ("broken:Circle", "1 / 0", "cannot be loaded: ZeroDivisionError: division by zero. Mend or update that package"),
        ("broken:Circle", "import nowhere_at_all", "cannot be loaded: ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("broken:Circle", "", "cannot be loaded: AttributeError: module 'broken' has no attribute 'Circle'"),
        ("broken:Circle", "Circle = 4", "is a int, not a class"),
        ("", "", "cannot be loaded"),
    ],
)
def test_a_broken_part_is_refused_when_it_is_asked_for_and_hurts_nobody_else(installed, caplog, value, code, why):
    installed("broken", {"circle": value}, code, group=SHAPES.group)
    assert SHAPES.names() == ["square", "circle"]
    with pytest.raises(InputError, match=rf"shape 'circle' of broken 1\.2 \(entry point {value}\) {why}"):
        SHAPES["circle"]
    SHAPES._reported.clear()
    assert dict(SHAPES) == dict(SHAPES) == {"square": Square}
    assert len([text for text in caplog.messages if text.startswith("left out: shape 'circle' of broken 1.2")]) == 1


def test_a_class_with_another_name_than_its_entry_point_is_refused_and_a_reference_to_it_is_not(installed):
    installed("round_shapes", {"disc": "round_shapes:Circle"}, CIRCLE, group=SHAPES.group)
    with pytest.raises(InputError, match=r"shape 'disc' of round_shapes 1\.2 .* calls itself 'circle'.*Write name = 'disc'"):
        SHAPES["disc"]
    assert list(SHAPES) == ["square"]
    assert SHAPES["round_shapes:Circle"].name == "circle"


def test_a_name_that_two_packages_announce_must_be_written_out(installed):
    for package in ("round_shapes", "other_shapes"):
        installed(package, {"circle": f"{package}:Circle"}, CIRCLE, group=SHAPES.group)
    with pytest.raises(InputError, match=r"announced by .*round_shapes 1\.2 \(round_shapes:Circle\).* Say which one you mean"):
        SHAPES["circle"]
    assert SHAPES["other_shapes:Circle"].name == "circle"
    assert set(SHAPES.origin("circle").split(", ")) == {"round_shapes 1.2 (entry point)", "other_shapes 1.2 (entry point)"}


def test_functions_of_installed_modules_and_of_the_current_folder_are_found(folder):
    (folder / "parts_package").mkdir()
    (folder / "parts_package" / "parts.py").write_text("def four():\n    return 4\n")
    assert resolve("parts_package.parts:four", "model")() == 4
    assert resolve("os.path:basename", "model")("a/b") == "b"


def test_no_file_of_the_current_folder_hides_an_installed_module(folder):
    (folder / "colorsys.py").write_text("def rgb_to_hsv():\n    return 'hidden'\n")
    assert resolve("colorsys:rgb_to_hsv", "model")(0, 0, 0) == (0, 0, 0)


@pytest.mark.parametrize("reference", ["mnist", "module:", ":function", "a b:c", "a..b:c", ".a:b", "path/to/file.py:f", ""])
def test_what_is_no_reference_is_refused(reference):
    with pytest.raises(InputError, match=r"does not name a data set: write 'package\.module:function'"):
        resolve(reference, "data set")


def test_missing_modules_are_told_from_modules_that_miss_something(folder):
    with pytest.raises(InputError, match=r"model 'nowhere_at_all:f': there is no module 'nowhere_at_all'.*current folder"):
        resolve("nowhere_at_all:f", "model")
    with pytest.raises(InputError, match=r"there is no module 'os\.nothing'|there is no module 'os'"):
        resolve("os.nothing:f", "model")
    (folder / "needs.py").write_text("import nowhere_at_all\n")
    with pytest.raises(
        InputError, match=r"importing 'needs' failed with ModuleNotFoundError: No module named 'nowhere_at_all'"
    ):
        resolve("needs:f", "model")
    (folder / "broken.py").write_text("1 / 0\n")
    with pytest.raises(InputError, match="importing 'broken' failed with ZeroDivisionError: division by zero"):
        resolve("broken:f", "model")
    (folder / "typo.py").write_text("def f(:\n")
    with pytest.raises(InputError, match="importing 'typo' failed with SyntaxError"):
        resolve("typo:f", "model")


def test_what_is_missing_or_cannot_be_called_is_named():
    with pytest.raises(InputError, match="module 'math' has no 'squirt'"):
        resolve("math:squirt", "model")
    with pytest.raises(InputError, match="model 'math:pi' is a float, which cannot be called"):
        resolve_function("math:pi", "model")


def test_options_are_checked_against_the_signature():
    def strict(data, *, size, rate=1):
        pass

    def loose(**options):
        pass

    check_options(strict, {"size": 1}, owner="it", besides=("data",))
    check_options(loose, {"anything": 1}, owner="it")
    check_options(max, {"key": 1}, owner="it")
    with pytest.raises(InputError, match=r"it has no option 'sice'; it has size, rate\."):
        check_options(strict, {"sice": 1}, owner="it", besides=("data",))
    with pytest.raises(InputError, match=r"it needs the option 'size'"):
        check_options(strict, {"rate": 1}, owner="it", besides=("data",))
    with pytest.raises(InputError, match=r"it has no option 'data'"):
        check_options(strict, {"data": 1, "size": 1}, owner="it", besides=("data",))
