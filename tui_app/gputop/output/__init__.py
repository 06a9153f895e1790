"""The command's output as a terminal would show it: bars move, colours stay, and only what is drawn
is parsed.
"""
