"""Trainings of many kinds with nothing wrong in them."""

from fault_cases import Clean

KINDS = {
    "language_model": "windows of one tensor with warm-up, clipping and validation",
    "picture_classifier": "pictures with workers, validation and checkpoints",
    "gan": "a GAN",
    "averaged_weights": "a teacher of averaged weights",
    "recurrent": "an LSTM over lengths",
    "adapters": "a frozen base with adapters in bf16",
    "compiled": "torch.compile",
    "closure": "L-BFGS with a closure",
    "resumed": "saved and resumed",
}

CLEAN = tuple(Clean(name, "clean.py", {"KIND": kind}) for kind, name in KINDS.items())
