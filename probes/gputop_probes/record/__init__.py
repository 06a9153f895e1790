"""The run record: a directory, written by one recorder per host, read by everything else.

``layout`` (standard library only) says which bytes lie where, ``manifest`` is the versioned
``run.json``, ``writer`` appends, ``reader`` maps the files with NumPy and follows them while they
grow.
"""
