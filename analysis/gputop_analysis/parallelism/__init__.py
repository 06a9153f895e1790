"""How a training is split over GPUs: one rule book for estimate, plan, launch, validate."""
