"""How fast each side trains, and where the time of a step goes."""
