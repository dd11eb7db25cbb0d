"""The one family of errors that a user can cause and can mend: each carries a full sentence."""


class AsgnnError(Exception):
    """Something the user can put right; the message is one sentence that says what and where."""


class GraphError(AsgnnError, ValueError):
    """A graph, a split or a set of flips that cannot be used as it is."""


class DataUnavailable(AsgnnError):
    """A data file that is neither in the cache, nor in the mirror, nor to be had from its address."""


class DataCorrupt(AsgnnError):
    """A data file that is there and is not what it should be."""


class ConfigError(AsgnnError, ValueError):
    """A setting outside what is possible, or a combination that means nothing."""


class DivergedWarning(UserWarning):
    """Trainings whose losses became infinite or absurd: their figures say nothing about the model."""
