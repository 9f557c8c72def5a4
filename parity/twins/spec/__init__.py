"""Every number that changes a result: networks, presets, parameters, initial values."""
