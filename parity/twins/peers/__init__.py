"""The same networks in other frameworks, which the benchmark times beside the two sides.

Only the benchmark starts these modules, each in a process of its own; nothing imports them.
Their frameworks are installed separately: `pip install --group peers`.
"""
