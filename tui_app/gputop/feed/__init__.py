"""The headless half of the app: it reads a record and hands out frozen snapshots. Nothing here
knows of a screen.

``snapshot`` defines what the widgets may read, ``live`` follows a growing record, ``replay`` shows
one as it was at a chosen moment. NumPy and the analysis are imported when the first snapshot is
built, after the first frame is on the screen.
"""
