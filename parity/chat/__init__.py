"""Asking a trained network."""
