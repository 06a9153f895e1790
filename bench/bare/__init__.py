"""Programs that are run bare and under gputop: output, exit status, files and losses must be the
same to the bit.
"""
