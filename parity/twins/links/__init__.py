"""Hosts and links for trials on one machine, and the measurement of real links."""
