"""The model that a setup asks for: its configuration, layers, adapters, loss and checkpointing."""
