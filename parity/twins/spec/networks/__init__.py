"""The registry of networks: what the harness and both trainers need to know about each."""

from parity.twins.spec.networks.language_model import LANGUAGE_MODEL
from parity.twins.spec.networks.network import Network
from parity.twins.spec.networks.seq2seq import SEQ2SEQ

NETWORKS: dict[str, Network] = {each.name: each for each in (LANGUAGE_MODEL, SEQ2SEQ)}


def register_network(network: Network) -> None:
    """Add a network, as a plug-in does; see parity/base/plugins.py.

    Raises:
      ValueError: if the name is taken.
    """
    if network.name in NETWORKS:
        raise ValueError(f"there is already a network {network.name!r}")
    NETWORKS[network.name] = network
