"""The commands of `python -m parity`."""
