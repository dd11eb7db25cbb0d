"""Train a model on a dataset by several processes: torchrun --nproc-per-node 2 -m asgnn.distributed --dataset cora."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import asdict, replace

import torch
import torch.distributed as dist

from asgnn.distributed.fit import DistributedFit, fit
from asgnn.errors import AsgnnError, ConfigError
from asgnn.graphs import find_dataset, load_dataset, random_split
from asgnn.graphs.partition import METHODS
from asgnn.training import Fit, recipe
from asgnn.training import fit as fit_alone


def main() -> None:
    asked = arguments()
    device = _device(asked.device)
    backend = asked.backend or ("nccl" if device.type == "cuda" else "gloo")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        if "RANK" not in os.environ:
            raise ConfigError("Start this with torchrun, such as torchrun --nproc-per-node 2 -m asgnn.distributed.")
        dist.init_process_group(backend)
        try:
            train(asked, device)
        finally:
            dist.destroy_process_group()
    except AsgnnError as wrong:
        sys.exit(str(wrong) if os.environ.get("RANK", "0") == "0" else 1)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="torchrun -m asgnn.distributed", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dataset", default="cora", help="a dataset of asgnn.graphs.DATASETS; default: cora")
    parser.add_argument("--model", default="asgnn", help="asgnn, asgnn-paper, appnp, gcn, sgc, mlp; default: asgnn")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the model")
    parser.add_argument("--seed", type=int, default=0, help="of the split, the weights and the dropout; default: 0")
    parser.add_argument("--epochs", type=int, help="default: those of the model's recipe")
    parser.add_argument("--partition", choices=METHODS, default="auto", help="how nodes are divided; default: auto")
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: cuda if there is one"
    )
    parser.add_argument("--backend", choices=("gloo", "nccl"), help="default: nccl on GPUs, else gloo")
    parser.add_argument("--double", action="store_true", help="train in double precision")
    parser.add_argument("--compare", action="store_true", help="then train in the first process alone and compare")
    return parser.parse_args()


def _device(name: str) -> torch.device:
    """The device of this process; processes share the GPUs if there are fewer."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        sys.exit("There is no CUDA device; use --device cpu.")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def train(asked: argparse.Namespace, device: torch.device) -> None:
    data = load_dataset(asked.dataset)
    if asked.double:
        data.x = data.x.double()
    split = random_split(data, asked.seed, **asdict(find_dataset(asked.dataset).rule))
    made = recipe(asked.model)
    given, known = dict(pair.partition("=")[::2] for pair in asked.set), made.settings
    made = made.with_settings(
        {name: known[name].parse(text) if name in known else text for name, text in given.items()}
    )
    if asked.epochs is not None:
        made = replace(made, config=replace(made.config, epochs=asked.epochs))
    trial = made.trial(data, split, asked.seed)
    trial.model.to(data.x.dtype)
    result = fit(trial.model, data, trial.config, split=split, device=device, partition=asked.partition)
    if dist.get_rank() == 0:
        print(_summary(result))
        if asked.compare:
            again = made.trial(data, split, asked.seed)
            again.model.to(data.x.dtype)
            print(_difference(result, fit_alone(again.model, data, again.config, split=split, device=device)))


def _summary(result: DistributedFit) -> str:
    epochs = len(result.history.train_loss)
    return (
        f"{result}\nProcesses: {len(result.nodes)}, with {', '.join(map(str, result.nodes))} nodes, which borrow "
        f"{', '.join(map(str, result.borrowed))} rows; in each epoch {result.seconds / epochs:.4f} s, "
        f"{result.row_bytes / epochs:,.0f} bytes of rows and {result.sum_bytes / epochs:,.0f} bytes of sums."
    )


def _difference(result: Fit, alone: Fit) -> str:
    pairs = [(result.history.train_loss, alone.history.train_loss), (result.history.val_loss, alone.history.val_loss)]
    train, val = (float((ours - theirs).abs().max()) for ours, theirs in pairs)
    epochs = len(alone.history.train_loss)
    return (
        f"Largest difference from one process: training loss {train:.1e}, validation loss {val:.1e}; one process takes "
        f"{alone.seconds / epochs:.4f} s per epoch."
    )


if __name__ == "__main__":
    main()
