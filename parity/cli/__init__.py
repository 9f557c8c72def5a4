"""Command lines made from dataclasses, the same flags on both sides."""
