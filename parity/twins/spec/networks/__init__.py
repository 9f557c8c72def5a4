"""The registry of networks: what the harness and both trainers need to know about each."""

from parity.base.errors import UsageError
from parity.twins.spec.networks.language_model import LANGUAGE_MODEL
from parity.twins.spec.networks.network import Network
from parity.twins.spec.networks.seq2seq import SEQ2SEQ

NETWORKS: dict[str, Network] = {each.name: each for each in (LANGUAGE_MODEL, SEQ2SEQ)}
DEFAULT_NETWORK = LANGUAGE_MODEL.name


def network_of(name: str) -> Network:
    """Return a network by name.

    Raises:
      UsageError: for an unknown name, listing the known ones.
    """
    if name not in NETWORKS:
        raise UsageError(f"--network is {name!r}; allowed: {', '.join(NETWORKS)}")
    return NETWORKS[name]


def preset_to_compare(network: str, *, built_in_text: bool) -> str:
    """Return the preset that `parity run` trains by default.

    `proof` is arranged so that 12 steps on the built-in text meet every case that a training
    can. On other text, whose vocabulary and lengths it does not fit, and for a network that has
    no such preset, it is `tiny`.

    Raises:
      UsageError: for an unknown network.
    """
    return "proof" if built_in_text and "proof" in network_of(network).presets else "tiny"


def register_network(network: Network) -> None:
    """Add a network, as a plug-in does; see parity/base/plugins.py.

    Raises:
      ValueError: if the name is taken.
    """
    if network.name in NETWORKS:
        raise ValueError(f"there is already a network {network.name!r}")
    NETWORKS[network.name] = network
