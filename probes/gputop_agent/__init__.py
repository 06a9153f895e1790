"""The guest: the only code of gputop that runs inside the user's interpreter.

Standard library only, Python 3.8 syntax, plus whatever torch it finds already imported. See
ARCHITECTURE.md.
"""
