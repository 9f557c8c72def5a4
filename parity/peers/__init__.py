"""The same networks in other frameworks, to be timed beside the two sides; see bench.py.

Nothing but the benchmark starts them, and nothing imports them. What they run on is installed
apart: `pip install --group peers`.
"""
