"""The output as a terminal shows it: bars move, colours stay, only what is drawn is parsed."""
