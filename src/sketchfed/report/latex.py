"""Tables for papers: texts made safe for LaTeX, set with booktabs."""

import re
from collections.abc import Sequence

_HYPHEN_BEFORE_HYPHEN = re.compile("-(?=-)")  # two in a row would print as a dash
_ESCAPES = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    '"': "''", "[": "{[}", "*": "{*}",  # \\ would take a [ or a * of the next row for its own
    "–": "--", "—": "---", "…": r"\dots{}", "·": r"$\cdot$", "×": r"$\times$", "±": r"$\pm$", "→": r"$\to$", "≤": r"$\leq$",
    "≥": r"$\geq$", "∞": r"$\infty$", "√": r"$\surd$", "½": r"$\frac12$", "¼": r"$\frac14$", "α": r"$\alpha$", "β": r"$\beta$",
    "γ": r"$\gamma$", "δ": r"$\delta$", "ε": r"$\varepsilon$", "η": r"$\eta$", "λ": r"$\lambda$", "μ": r"$\mu$", "ρ": r"$\rho$",
    "σ": r"$\sigma$", "\u00a0": "~", "\u202f": r"\,", "\u2009": r"\,",
}  # fmt: skip


def escape(text: str) -> str:
    r"""A text as LaTeX prints it, on one line.

    >>> print(escape("top_k 10% & rate 1e-3"))
    top\_k 10\% \& rate 1e-3
    """
    return "-{}".join(_without_dashes(part) for part in _HYPHEN_BEFORE_HYPHEN.split(text))


def _without_dashes(text: str) -> str:
    return "".join(_ESCAPES.get(character, character if character.isprintable() else " ") for character in text)


def booktabs(*, headings: Sequence[str], rows: Sequence[Sequence[str]], alignment: str, caption: str) -> str:
    """A tabular, rows of plain texts, with what it needs and what to say about it in comments."""
    lines = [
        r"% Needs \usepackage{booktabs}.",
        rf"% \caption{{{escape(caption)}}}",
        rf"\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        _row(headings),
        r"\midrule",
        *map(_row, rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return " & ".join(map(escape, cells)) + r" \\"
