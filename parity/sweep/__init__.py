"""Random valid runs, in which no mismatch may be found."""
