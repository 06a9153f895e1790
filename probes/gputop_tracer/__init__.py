"""Memory of a training step without a GPU: the user's own modules run on fake tensors, every
storage is written down.

Runs in the user's interpreter with the torch, transformers and peft found there. Nothing is
allocated and nothing computed: ``FakeTensorMode`` carries shapes through the real code of the
modules, the autograd engine and the optimizer. Out comes an event log (which storage was made and
freed when, for what), which the replay of the CUDA allocator reads.
"""
