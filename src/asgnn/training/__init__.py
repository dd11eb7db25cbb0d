"""Training of one trial or of many trials as one batch, recipes, and evaluation."""

from asgnn.training.config import TrainConfig, Trial
from asgnn.training.evaluate import accuracy, predict, roc_auc
from asgnn.training.fit import Fit, History, fit, fit_many
from asgnn.training.recipes import RECIPES, Recipe, recipe, training_of

__all__ = [
    "RECIPES",
    "Fit",
    "History",
    "Recipe",
    "TrainConfig",
    "Trial",
    "accuracy",
    "fit",
    "fit_many",
    "predict",
    "recipe",
    "roc_auc",
    "training_of",
]
