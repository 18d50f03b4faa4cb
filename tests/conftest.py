import sys

import pytest

from fixtures import warnings_are_heard  # noqa: F401
from sketchfed.parts import _entry_points


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Installs packages of one module that announce parts: `installed("shapes", {"round": "shapes:Round"}, code, group=…)`."""
    site, packages = tmp_path / "site", []
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])

    def install(package: str, announced: dict[str, str], code: str, *, group: str) -> None:
        packages.append(package)
        info = site / f"{package}-1.2.dist-info"
        info.mkdir(parents=True)
        (site / f"{package}.py").write_text(code)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        lines = [f"[{group}]", *(f"{name} = {value}" for name, value in announced.items())]
        (info / "entry_points.txt").write_text("\n".join(lines))
        _entry_points.cache_clear()

    yield install
    for name in packages:
        sys.modules.pop(name, None)
    _entry_points.cache_clear()
