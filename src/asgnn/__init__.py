"""Graph neural networks with adaptive structure, and the attacks and defences to judge them by."""
