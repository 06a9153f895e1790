"""The command's output as a terminal would show it: progress bars move, colours stay, and only what is drawn is parsed."""
