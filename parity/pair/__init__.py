"""Two trainings of any kind, recorded by their owners and compared."""
