"""A framework from outside the tree, for PARITY_PLUGINS: NumPy, by the oracle's own formulas.

It has what `parity run` needs of a framework: train.py, engine.py and strategies.py.
"""

from pathlib import Path

from parity.twins.spec.frameworks import Framework, register_framework

register_framework(
    Framework(
        "numpy",
        "toy_framework",
        Path(__file__).resolve().parents[1],
        networks=("language-model",),
    )
)
