"""A model of what a step costs on many ranks, and its comparison with real trainings."""
