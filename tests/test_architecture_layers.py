"""The layers of docs/architecture.md, as the contracts in pyproject.toml state them."""

from pathlib import Path

import pytest
from importlinter.application import use_cases
from importlinter.configuration import configure

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module", autouse=True)
def _configured():
    configure()


def test_no_package_imports_from_a_layer_above_it():
    """Lazy imports and imports for type checking count too."""
    options = use_cases.read_user_options(config_filename=str(ROOT / "pyproject.toml"))
    use_cases._register_contract_types(options)
    report = use_cases.create_report(options, cache_dir=None)
    broken = [contract.name for contract, check in report.get_contracts_and_checks() if not check.kept]
    assert not broken, f"broken: {', '.join(broken)}. Run lint-imports to see where."
    assert len(list(report.get_contracts_and_checks())) == 3
