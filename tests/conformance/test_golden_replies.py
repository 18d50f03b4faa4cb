"""What algorithms and codecs put on the wire is, to the last bit, what an earlier version put there.

Clients and servers of different versions work together only if this stays as it is. A change that is meant is recorded with
`tests/golden/make_replies.py`.
"""

import json
from pathlib import Path

import pytest

from codec_variants import VARIANTS
from golden_replies import ALGORITHM_CASES, algorithm_bytes, codec_bytes, digests

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "replies.json").read_text())


def assert_golden(kind: str, case: str, found: dict[str, str]) -> None:
    assert found == GOLDEN[kind].get(case), f"not as recorded. If that is meant, record:\n{json.dumps({case: found}, indent=1)}"


@pytest.mark.parametrize("case", ALGORITHM_CASES)
def test_an_algorithm_sends_the_recorded_bytes(case):
    """The first client's replies, the updates and the models of three rounds."""
    assert_golden("algorithms", case, digests(algorithm_bytes(case)))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_codec_sends_and_decodes_the_recorded_bytes(variant):
    assert_golden("codecs", variant, digests(codec_bytes(variant)))


def test_nothing_that_was_recorded_is_left_out():
    assert GOLDEN["algorithms"].keys() == ALGORITHM_CASES.keys()
    assert GOLDEN["codecs"].keys() == VARIANTS.keys()
