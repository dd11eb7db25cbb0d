"""Sentences and numbers as text, the same in all formats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from asgnn.experiments.records import SHARES
from asgnn.experiments.report.tables import AdaptiveGain, TableCell
from asgnn.experiments.store import Summary
from asgnn.experiments.values import Settings

Line = Sequence[TableCell]

SENTENCES = {
    "title": "ASGNN compared with its paper",
    "lead": "How accurate node classification stays when edges of the graph are false: our results and the paper's.",
    "challenge_note": (
        "Test accuracy, %, that is left for each budget after the worst of all attacks tried, mean over the splits. "
        "The attacker knows the model, the graph and all labels. Evasion: the model was trained on the clean graph. "
        "Poisoning: it was trained on the flipped one. Single nodes: flips as shares of the node's degree. Controls "
        "are no defences: the MLP and the model without the given edges cannot be touched by any flip, and the model "
        "that remembers the clean graph shows that withstanding evasion alone proves nothing. Published figures are "
        "the lowest that their sources report; where a source used other splits, its name says so."
    ),
    "edges_note": (
        "Each score ranks the edges of an attacked graph, the most suspicious first. The ROC-AUC is the probability "
        "that an added edge ranks above a true one (0.5 by chance). The precision at 1 % is the share of added edges "
        "among the first 1 % of all edges. A † marks graphs on which a score was designed."
    ),
    "how_to_read": (
        "Each cell shows the mean ± sample standard deviation over our trials, then the paper's figure and the "
        "difference (ours minus the paper's). The best and the second-best of our results in each column are marked. "
        'A figure marked "paper" is shown where we have no result. The ensemble, or the figure in brackets, is that of '
        "the mean probability of the trials."
    ),
    "gain_note": "Each model minus the same model with its structure frozen, over equal seeds.",
    "compared_note": (
        "One model minus another over equal seeds, with settings chosen by searches of the same size. The model "
        "without the given edges has nothing that a flipped edge could change: a defence is worth what it adds to it."
    ),
    "published_note": (
        "The best published accuracy is the highest mean that the paper or another publication reports for any model "
        "on this graph; some of these do not state which files they used. The difference is the mean of our trials "
        "minus it."
    ),
    "generality_note": (
        "The first columns: ASGNN by a full search minus the best of the other models (named below it; marked if it is "
        "more than one point below), ASGNN by portfolio minus GCN with its default settings, and the λ that ASGNN "
        "learned: how strongly it pulls neighbours together, negative where they tend to differ."
    ),
    "test": (
        "p comes from a paired t test over trials with equal seeds. The difference of two accuracies is a mean over "
        "many nodes, so it is close to normal; a rank test would suffer from ties on small test sets. p is not "
        "corrected for the number of cells."
    ),
    "worse": (
        "All cells where our result is worse than the paper's (lower accuracy or higher loss). If the difference is "
        "larger than both standard deviations, the last column says why."
    ),
}


# Learned scalar → its sign and meaning.
SCALARS = {
    "lam": ("λ", "how strongly neighbours are pulled together; negative where neighbours tend to differ"),
    "gamma": ("γ", "how closely the learned edge weights keep to the given ones"),
    "mu1": ("μ₁", "how strongly all edge weights are pushed towards 0"),
    "mu2": ("μ₂", "how strongly large edge weights are reduced"),
    "eta1": ("η₁", "step size of the features in each layer"),
    "eta2": ("η₂", "step size of the edge weights in each layer"),
}
# Term of the objective → its meaning.
TERMS = {
    "total": "sum of all terms, the objective",
    "fidelity": "distance of the features from those of the MLP",
    "smoothness": "λ × difference between neighbours",
    "structure": "γ × distance of the edge weights from the given ones",
    "l1": "μ₁ × sum of the edge weights",
    "l2": "μ₂ × sum of their squares",
}
# Further Greek letters of settings and assumptions.
LETTERS = {
    "α": "alpha: share of a node's own features in each step of APPNP",
    "λ₁, λ₂": "lambda1, lambda2: weights of Elastic GNN's two measures of smoothness",
}
CONTROLS = (
    "Controls show what a part adds: the same models with a frozen structure, the MLP, which sees no edges, and ASGNN "
    "on a graph made from the features alone."
)
RECORD_TITLES = {
    "calibration": "Calibrated probabilities",
    "certificates": "Certificates",
    "cleaning": "Training on cleaned graphs",
}
RECORD_NOTES = {
    "calibration": (
        "The expected calibration error is the mean difference between confidence and accuracy, over 15 bins of the "
        "test nodes: before and after the temperature that the validation nodes choose."
    ),
    "certificates": (
        "Test accuracy, %, that no attacker with so many flips can lower, before or after the training. Votes of "
        "neighbours or of parts of the edges, with an anchor of votes of the edge-free model that the validation nodes "
        "choose for few or for many flips. The edge-free model and the MLP are certified against any number of flips."
    ),
    "cleaning": (
        "Test accuracy, %, of other models on graphs as they were and after the most suspicious edges were removed; "
        "the validation nodes choose how many."
    ),
}


def scalar_meanings() -> list[str]:
    return [f"{sign}, {name}: {meaning}" for name, (sign, meaning) in SCALARS.items()]


def letter_meanings() -> list[str]:
    return [f"{sign}, {meaning}" for sign, meaning in LETTERS.items()]


def rate_text(rate: float | None) -> str:
    """A share of the edges as a percentage, or a number of flips for each target."""
    return "" if rate is None else "–" if rate == 0 else f"{rate:.3g}" if rate >= 1 else f"{100 * rate:.3g}%"


def column_titles(names: Sequence[str]) -> list[str]:
    """The names of the columns of a record in words."""
    words = {"test": "test accuracy", "removed": "edges removed", "edge_free": "edge-free model", "mlp": "MLP"}
    words |= {"chosen_for": "chosen for, flips"}
    return [words.get(name, name.replace("_", " ")) for name in names]


def record_entry(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name in SHARES:
        return f"{100 * value:.1f}"
    return (
        rate_text(value) if name in ("rate", "removed") else f"{value:.4g}" if isinstance(value, float) else str(value)
    )


def signed(difference: float, digits: int) -> str:
    return f"{difference:+.{digits}f}".replace("-", "−") if math.isfinite(difference) else "not a number"


def p_value(gain: AdaptiveGain) -> str:
    p = "p not defined" if gain.p is None else "p < 0.001" if gain.p < 0.001 else f"p = {gain.p:.3f}"
    return p if gain.same_search else f"{p}, different searches"


def diverged(cell: TableCell) -> str:
    return f"diverged in {cell.diverged} of {len(cell.outcomes)} trials" if cell.diverged else ""


def settings(chosen: Settings) -> str:
    texts = (f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}" for name, value in chosen)
    return ", ".join(texts) or "defaults of the recipe"


def ours(cell: TableCell, figure: str, digits: int) -> str:
    """The mean and standard deviation of our trials, and in brackets the figure of their mean probability."""
    together = cell.ensemble.get(figure)
    return (cell.ours.text(digits) if cell.ours else "") + ("" if together is None else f" ({together:.{digits}f})")


def count_range(counts: Sequence[int]) -> str:
    return " to ".join(map(str, sorted({min(counts), max(counts)}))) if counts else ""


def tried(cells: Line) -> str:
    """How many settings were tried, and in which search."""
    choices = [cell.choice for cell in cells if cell.choice]
    counts = {name: [c.tried for c in choices if c.search == name] for name in sorted({c.search for c in choices})}
    return ", ".join("1" if name == "none" else f"{count_range(of)} ({name} search)" for name, of in counts.items())


def with_gain(lines: Mapping[str, Line]) -> dict[str, Line]:
    """The rows that have something to say about the adaptive structure."""
    return {row: line for row, line in lines.items() if any(cell.gain for cell in line)}


def comparisons(lines: Mapping[str, Line], labels: Mapping[str, str]) -> dict[str, list[AdaptiveGain | None]]:
    """Label of a comparison of two rows → its result in each column."""
    pairs = dict.fromkeys((row, other) for row, line in lines.items() for cell in line for other in cell.compared)
    return {
        f"{labels[row]} − {labels[other]}": [cell.compared.get(other) for cell in lines[row]] for row, other in pairs
    }


def scalar_names(lines: Mapping[str, Line]) -> list[str]:
    return list(dict.fromkeys(name for line in lines.values() for cell in line for name in cell.scalars))


def time_used(totals: Summary) -> str:
    return (
        f"The store holds {totals.trainings} trainings ({totals.seconds / 3600:.2f} hours, including the searches) and "
        f"{totals.attacks} attacks ({totals.attack_seconds / 3600:.2f} hours). The table below counts only the "
        "trainings reported above. The time of a training is that of its batch divided by the size of the batch."
    )
