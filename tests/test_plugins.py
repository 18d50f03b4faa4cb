import sys

import pytest

from sketchfed.errors import InputError
from sketchfed.plugins import check_options, resolve


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current folder with modules in it, and a module path that is as before afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


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
        resolve("math:pi", "model")


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
