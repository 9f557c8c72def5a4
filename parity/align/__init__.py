"""Names, layouts and weights of one side in the other's terms."""
