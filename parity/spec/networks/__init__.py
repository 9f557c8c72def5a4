"""What the harness knows about each network."""

from parity.spec.networks.language_model import LANGUAGE_MODEL
from parity.spec.networks.network import Network
from parity.spec.networks.seq2seq import SEQ2SEQ

NETWORKS: dict[str, Network] = {each.name: each for each in (LANGUAGE_MODEL, SEQ2SEQ)}
