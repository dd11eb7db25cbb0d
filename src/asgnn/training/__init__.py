"""Training of one trial or of many trials as one batch, recipes, and evaluation."""

from asgnn.training.config import TrainConfig, Trial
from asgnn.training.evaluate import accuracy, predict, roc_auc
from asgnn.training.fit import Epoch, Fit, History, fit, fit_many
from asgnn.training.memory import MemoryPlan, memory_plan
from asgnn.training.recipes import RECIPES, Recipe, recipe, training_of
from asgnn.training.tune import PORTFOLIO, Tuned, candidates, tune

__all__ = [
    "PORTFOLIO",
    "RECIPES",
    "Epoch",
    "Fit",
    "History",
    "MemoryPlan",
    "Recipe",
    "TrainConfig",
    "Trial",
    "Tuned",
    "accuracy",
    "candidates",
    "fit",
    "fit_many",
    "memory_plan",
    "predict",
    "recipe",
    "roc_auc",
    "training_of",
    "tune",
]
