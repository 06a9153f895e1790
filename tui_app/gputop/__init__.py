"""gputop: htop for PyTorch training.

Importing this package is cheap and has no effect on a training that was not started by ``gputop run``.
"""

__version__ = "0.1.0"
