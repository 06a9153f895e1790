"""The recorder: one small process a host that starts the command and is the only writer of that
host's record.

``entry`` is what the forked process runs, ``loop`` its life. The training never depends on it: its
output goes to a file, its messages are sent without waiting.
"""
