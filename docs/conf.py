"""How Sphinx builds these pages. Tables of names and settings are made from the code (`tables.py`), so they cannot go stale."""

import logging
import sys
from pathlib import Path

from sketchfed import __version__
from sketchfed.algorithms import ALGORITHMS
from sketchfed.algorithms.settings import default_global_rate
from sketchfed.attacks import ATTACKS
from sketchfed.codecs import CODECS
from sketchfed.data import DATA_SETS, PARTITIONS
from sketchfed.models import MODELS
from sketchfed.sketches import SKETCHES

sys.path.insert(0, str(Path(__file__).parent))
import costs
import tables

logging.getLogger("alembic").setLevel(logging.WARNING)  # Flower's database tells of every plug-in when it is imported

project = "sketchfed"
author = copyright = "The sketchfed authors"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"sketchfed {release}"

default_role = "literal"  # docstrings put names between single backticks
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
suppress_warnings = ["myst.strikethrough"]
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(collections\.abc|flwr|fractions|numpy|pathlib|rich|torch)\..*")]  # other projects' names

myst_enable_extensions = ["substitution"]
myst_heading_anchors = 3
myst_substitutions = {
    "families": tables.families(),
    "family_classes": tables.classes(SKETCHES),
    "alphas": tables.alphas(1024, 64),
    "algorithms": tables.algorithms(),
    "algorithm_classes": tables.classes(ALGORITHMS),
    "global_rate_constant": f"{1e3 * default_global_rate(1e-6):g}",
    "attacks": tables.attacks(),
    "attack_classes": tables.classes(ATTACKS),
    "codecs": tables.codecs(),
    "ensembles": tables.ensembles(),
    "codec_classes": tables.classes(CODECS),
    "models": tables.models(),
    "model_functions": tables.functions(MODELS),
    "data_set_functions": tables.functions(DATA_SETS),
    "partition_functions": tables.functions(PARTITIONS),
    "data_options": tables.data_options(),
    "sketch_options": tables.sketch_options(),
    "subspace_options": tables.subspace_options(),
    "dome_findings": tables.dome_findings(),
    "codec_options": tables.codec_options(),
    "settings_top": tables.settings(""),
    **{f"settings_{where}": tables.settings(where) for where in tables.STRUCTS},
    "settings_of_algorithms": tables.algorithm_settings(),
    "cost_cohorts": costs.cohorts(),
    "cost_neighbours": costs.neighbours(),
    "cost_leaving": costs.leaving(),
    "cost_plan": costs.plan(),
    "federation_bytes": costs.federation_bytes(),
    "federation_savings": costs.savings(),
    "federation_times": costs.federation_times(),
    "federation_memory": costs.federation_memory(),
    **{f"message_{name}": shown for name, shown in costs.message_overhead().items()},
    "link_plan": costs.link_plan(),
    "link_ms": f"{1e3 * costs.link_seconds():.0f}",
    "link_cohort": f"{costs.link_cohort():,}",
    "edges": f"{costs.edges():,}",
    "root_line": costs.root_line(),
    "idle_nodes": costs.idle_nodes(),
    "idle_ms": costs.idle_milliseconds(),
    "directory": costs.directory_bytes(),
}
