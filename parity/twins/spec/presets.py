"""Looks up the presets of the networks: named sets of sizes, text and training."""

from collections.abc import Mapping

from parity.base.errors import UsageError
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.networks.network import Preset
from parity.twins.spec.spec import Spec


def preset(network: str, name: str) -> Spec:
    """Return the spec of a network's preset.

    Raises:
      UsageError: for an unknown network or preset, listing the known ones.
    """
    presets = _presets(network)
    if name not in presets:
        raise UsageError(f"--preset is {name!r}; allowed: {', '.join(presets)}")
    found = presets[name]
    return Spec(network, found.model, found.text, found.training)


def preset_to_compare(network: str, *, built_in_text: bool) -> str:
    """Return the preset that `parity run` trains by default.

    `proof` is arranged so that 20 steps on the built-in text meet every case that a training
    can. On other text, whose vocabulary and lengths it does not fit, and for a network that has
    no such preset, it is `tiny`.

    Raises:
      UsageError: for an unknown network.
    """
    return "proof" if built_in_text and "proof" in _presets(network) else "tiny"


def _presets(network: str) -> Mapping[str, Preset]:
    if network not in NETWORKS:
        raise UsageError(f"--network is {network!r}; allowed: {', '.join(NETWORKS)}")
    return NETWORKS[network].presets
