"""Training: one trial or many as one batch, and what a trained model is worth."""

from asgnn.training.evaluate import accuracy, predict
from asgnn.training.fit import Fit, History, TrainConfig, Trial, fit, fit_many
from asgnn.training.recipes import RECIPES, Recipe, recipe

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
]
