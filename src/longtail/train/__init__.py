"""Training: recipes are data, the engine is one loop, and a single run is a cohort of one.

recipe   epochs, optimiser, schedule, normalisation: everything but data, method and seed
engine   the loop, which writes run folders; and a finished run's logits on a split
"""
