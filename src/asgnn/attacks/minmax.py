"""Min-max topology attack: PGD against a surrogate that is trained during the attack."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data

from asgnn.attacks.checkpoint import Checkpoint, State
from asgnn.attacks.pgd import DenseFlips
from asgnn.attacks.problem import Loss, make_problem
from asgnn.attacks.relaxation import best_rounding, check_schedule
from asgnn.attacks.rules import finish
from asgnn.attacks.surrogate import SurrogateGCN
from asgnn.errors import ConfigError
from asgnn.graphs import Perturbation
from asgnn.progress import Progress
from asgnn.settings import check_count, check_number


def minmax(
    data: Data,
    budget: int,
    train: Tensor,
    rng: torch.Generator,
    *,
    nodes: Tensor | None = None,
    surrogate: SurrogateGCN | None = None,
    steps: int = 200,
    base_lr: float = 0.3,
    inner_steps: int = 1,
    inner_lr: float = 0.01,
    weight_decay: float = 5e-4,
    loss: Loss = "tanh_margin",
    samples: int = 20,
    allow_isolated: bool = False,
    device: torch.device | str | None = None,
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> Perturbation:
    r"""Min-max topology attack (Xu et al., IJCAI 2019).

    The attack maximises over the flips a loss that training minimises over the weights. It alternates
    ``inner_steps`` training steps on the relaxed graph, with the labels of ``train``, and one step of
    :func:`~asgnn.attacks.pgd` against the current model. At the end it rounds the flips as PGD does, against the last
    model.

    Threat model: global poisoning, grey box. The attacker knows the graph, the features and the labels of ``train``,
    and that the victim will be trained on the flipped graph. Unknown labels are replaced by the surrogate's
    predictions on the clean graph.

    Args:
        data, budget, train, rng, nodes, steps, base_lr, loss, samples, allow_isolated, device, checkpoint, progress:
            as for :func:`~asgnn.attacks.pgd`.
        surrogate: the initial model; by default a GCN trained on the clean graph.
        inner_steps: training steps per step of the attack.
        inner_lr: learning rate of the training, with Adam.
        weight_decay: weight decay of the training.

    Memory as for PGD; time O(steps · (1 + inner_steps) · N² (H + C)).
    """
    meta = {
        "attack": "minmax",
        "steps": steps,
        "base_lr": base_lr,
        "inner_steps": inner_steps,
        "inner_lr": inner_lr,
        "weight_decay": weight_decay,
        "loss": loss,
        "samples": samples,
    }
    check_schedule(steps, base_lr, samples)
    check_count("inner_steps", inner_steps, 0)
    check_number("inner_lr", inner_lr, 0, math.inf)
    if surrogate is not None and not isinstance(surrogate, SurrogateGCN):
        raise ConfigError("minmax trains its surrogate, so surrogate must be a SurrogateGCN, as fit_surrogate returns.")
    state = checkpoint.load() if checkpoint is not None else None
    problem = make_problem(
        data, budget, train, rng, nodes=nodes, surrogate=surrogate, loss=loss, device=device, state=state
    )
    if budget == 0:
        return finish(data, torch.empty(2, 0, dtype=torch.int64), 0, allow_isolated=allow_isolated, meta=meta)
    flips = DenseFlips(problem)
    assert isinstance(problem.victim, SurrogateGCN)
    trainer = _Trainer(problem.victim, inner_lr, weight_decay, state)
    start = 0 if state is None else flips.restore(state, rng)
    y = problem.labels[problem.train]
    for step in range(start, steps):
        for _ in range(inner_steps):  # the inner minimisation
            logits, _, _ = flips.logits(trainer.model)
            trainer.step(F.cross_entropy(logits[problem.train], y))
        flips.ascend(flips.gradient(trainer.model), base_lr / math.sqrt(step + 1), budget)
        if checkpoint is not None:
            checkpoint.save({"labels": problem.labels} | flips.state(step + 1, rng) | trainer.state())
        if progress is not None:
            progress(step + 1, steps)
    flips.problem = problem = problem.with_victim(trainer.model)
    chosen, _ = best_rounding(problem, *flips.ranked(budget), budget, samples, rng, allow_isolated=allow_isolated)
    return finish(data, chosen, budget, allow_isolated=allow_isolated, meta=meta)


class _Trainer:
    """The surrogate and its Adam optimizer, whose state can be saved to a checkpoint."""

    def __init__(self, initial: SurrogateGCN, lr: float, weight_decay: float, state: State | None) -> None:
        weights = {name: value.detach().clone() for name, value in initial.weights.items()}
        if state is not None:
            weights = {name: state[name].to(value.device, copy=True) for name, value in weights.items()}
        self.model = SurrogateGCN(**{name: value.requires_grad_() for name, value in weights.items()})
        self.optimizer = torch.optim.Adam(list(self.model.weights.values()), lr=lr, weight_decay=weight_decay)
        if state is not None:
            optimizer_state = self.optimizer.state_dict()
            for number, name in enumerate(weights):
                prefix = f"adam.{name}."
                found = {key.removeprefix(prefix): state[key].clone() for key in state if key.startswith(prefix)}
                if found:
                    optimizer_state["state"][number] = found
            self.optimizer.load_state_dict(optimizer_state)

    def step(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def state(self) -> State:
        state = {name: value.detach().clone() for name, value in self.model.weights.items()}
        for name, value in self.model.weights.items():
            state |= {f"adam.{name}.{key}": part.clone() for key, part in self.optimizer.state[value].items()}
        return state
