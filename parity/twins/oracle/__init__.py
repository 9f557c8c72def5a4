"""The referee: networks, updates and training in plain NumPy and float64."""
