r"""Lipschitz constants and step-size bounds, as functions of the scalars.

For ``objective="paper"`` these are the statements of the paper (its lemmas on f_H, f_S and the joint f, and its
theorem). They rely on :math:`\|L_{rw}\|_2 \le 2`, which is false for irregular graphs (2.91 for a star with
self-loops on 30 nodes), so they are given for reference and do not guarantee descent of p.

For ``objective="degree"`` they are ours and guarantee descent; see ``docs/maths.md`` for the proofs.
"""

from __future__ import annotations

from math import sqrt

from asgnn.asmp.params import Objective


def lipschitz_h(lam: float, objective: Objective = "degree") -> float:
    r""":math:`L_H = 2 + 4\lambda`: in the Euclidean metric for p (paper), in the metric of D for q."""
    del objective  # the same value for both; only the metric differs, and for p the bound may fail
    return 2 + 4 * abs(lam)


def lipschitz_s(
    lam: float,
    gamma: float,
    mu2: float,
    objective: Objective = "degree",
    *,
    num_nodes: int = 0,
    feature_bound: float = 1.0,
    min_degree: float = 1.0,
) -> float:
    r"""For q, exactly the curvature :math:`2(\gamma + \mu_2)`. For p, the paper's lemma:
    :math:`2\gamma + 2\mu_2 + \frac{2\lambda}{c^2} N^2 B^2 + \frac{2\lambda}{c^3} N^3 \sqrt{N} B^2`.
    """
    if objective == "degree":
        return 2 * (gamma + mu2)
    n, b, c = num_nodes, feature_bound, min_degree
    return 2 * (gamma + mu2) + 2 * abs(lam) / c**2 * n**2 * b**2 * (1 + n * sqrt(n) / c)


def lipschitz_joint(
    lam: float,
    gamma: float,
    mu2: float,
    objective: Objective = "degree",
    *,
    num_nodes: int = 0,
    max_degree: float = 1.0,
    feature_bound: float = 1.0,
    min_degree: float = 1.0,
) -> float:
    r"""The constant for a joint step in H and S.

    Paper: :math:`\max\{\sqrt{L_H^2 + m_1}, \sqrt{L_S^2 + m_2}\}` with
    :math:`m_1 = (1 + N\sqrt N / c)^2\, 4\lambda^2 N B^2 / c^2` and
    :math:`m_2 = (1 + N^2 / c)^2\, 4\lambda^2 N B^2 / c^2`.

    Degree: :math:`\max\{d(2 + 4\lambda),\, 2(\gamma + \mu_2)\} + \sqrt d\,(4 + 4\lambda) B`, with d the largest number
    of entries in a row of A (self-loop included) and B a bound on the row norms of H and X.
    """
    l_h = lipschitz_h(lam, objective)
    b, c, n = feature_bound, min_degree, num_nodes
    if objective == "degree":
        l_s = lipschitz_s(lam, gamma, mu2, objective)
        return max(max_degree * l_h, l_s) + sqrt(max_degree) * (4 + 4 * abs(lam)) * b
    l_s = lipschitz_s(lam, gamma, mu2, objective, num_nodes=n, feature_bound=b, min_degree=c)
    common = 4 * lam**2 / c**2 * n * b**2
    return max(
        sqrt(l_h**2 + (1 + n * sqrt(n) / c) ** 2 * common),
        sqrt(l_s**2 + (1 + n**2 / c) ** 2 * common),
    )


def max_eta(lipschitz: float) -> float:
    """The strict upper bound 2/L on step sizes for descent of an L-smooth function (plus a convex one, by prox).

    ``max_eta(lipschitz_h(lam))`` is the theorem's 1/(1+2λ), and ``max_eta(lipschitz_s(…))`` its bound on η₂.
    """
    return 2 / lipschitz
