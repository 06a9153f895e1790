"""Which split of a training over GPUs is fast and fits: a cost model that comes apart, and a search
over it.
"""
