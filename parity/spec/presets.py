"""Looks up the presets of the networks: named sets of sizes, text and training."""

from parity.base.errors import UsageError
from parity.spec.networks import NETWORKS
from parity.spec.spec import Spec


def preset(network: str, name: str) -> Spec:
    """Return the spec of a network's preset.

    Raises:
      UsageError: for an unknown network or preset, listing the known ones.
    """
    if network not in NETWORKS:
        raise UsageError(f"--network is {network!r}; allowed: {', '.join(NETWORKS)}")
    presets = NETWORKS[network].presets
    if name not in presets:
        raise UsageError(f"--preset is {name!r}; allowed: {', '.join(presets)}")
    found = presets[name]
    return Spec(network, found.model, found.text, found.training)
