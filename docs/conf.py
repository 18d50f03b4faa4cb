"""How Sphinx builds these pages. Tables about the sketch families are made from the registry, so they cannot go stale."""

from sketchfed import PublicSeed, __version__
from sketchfed.sketches import SKETCHES

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
nitpick_ignore_regex = [("py:.*", r"(collections\.abc|numpy|torch)\..*")]  # other projects' names


def _markdown_table(headings: list[str], rows: list[list[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _families() -> str:
    rows = [[f"`{name}`", f.summary, f.alpha_formula, f.cost, f.source] for name, f in SKETCHES.items()]
    return _markdown_table(["name", "what it is", "α", "cost", "definition"], rows)


def _alphas(dim: int, size: int) -> str:
    made = {name: family(dim=dim, size=size, seed=PublicSeed(0)) for name, family in SKETCHES.items()}
    rows = [[f"`{name}`", f"{s.alpha:,.2f}", f"{s.exact_alpha:,.2f}"] for name, s in made.items()]
    return _markdown_table(["name", f"`alpha` at dim {dim:,}, size {size:,}", "`exact_alpha`"], rows)


def _family_classes() -> str:
    directives = [f".. autoclass:: {family.__module__}.{family.__qualname__}" for family in SKETCHES.values()]
    return "\n".join(["```{eval-rst}", *directives, "```"])


myst_enable_extensions = ["substitution"]
myst_heading_anchors = 3
myst_substitutions = {
    "families": _families(),
    "family_classes": _family_classes(),
    "alphas": _alphas(1024, 64),
}
