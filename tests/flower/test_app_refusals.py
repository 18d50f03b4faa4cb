"""Settings that look into local steps, or simulate a network, are refused for apps that train by their own function."""

import pytest

from sketchfed.config import load_config
from sketchfed.errors import InputError
from sketchfed.flower.mod import check_app


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ({"training": {"proximal": 0.1}}, "add the proximal term to the app's loss"),
        ({"algorithm": {"scaffold": True}}, r"algorithm.scaffold = true corrects local steps"),
        ({"algorithm": {"feddyn": 0.1}}, r"algorithm.feddyn = 0.1 corrects local steps"),
        ({"algorithm": {"weighting": "examples"}}, "counts examples"),
        ({"asynchronous": {}}, "an app runs on nodes, whose delays are real"),
    ],
)
def test_what_an_app_does_not_show_is_refused(tables, why):
    with pytest.raises(InputError, match=why):
        check_app(load_config(tables))
