"""Errors that a user can cause and correct."""


class AsgnnError(Exception):
    """The base class; the message is one sentence that says what is wrong and where."""


class GraphError(AsgnnError, ValueError):
    """An invalid graph, split or set of flips."""


class DataUnavailable(AsgnnError):
    """A data file that is neither in the cache nor in the mirror, and cannot be downloaded."""


class DataCorrupt(AsgnnError):
    """A data file with unexpected contents."""


class ConfigError(AsgnnError, ValueError):
    """An invalid setting or combination of settings."""


class DivergedWarning(UserWarning):
    """Training diverged: the loss became infinite, NaN or very large, so the results say nothing about the model."""


class FeaturesWarning(UserWarning):
    """The features cannot judge which nodes are alike, so a method that needs them stands aside."""


class StructureWarning(UserWarning):
    """The edges do not help: a model that sees the features alone is as good on the validation nodes."""
