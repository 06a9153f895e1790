"""One file a place in torch where a step can be seen."""
