"""How a training is split over GPUs: one description and one rule book for estimate, plan, launch
and validate.
"""
