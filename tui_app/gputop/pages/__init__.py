"""Contents of screens above the main one, one a file: a pure ``draw`` in a small widget."""
