"""Which split over GPUs is fast and fits: a cost model that comes apart, and a search."""
