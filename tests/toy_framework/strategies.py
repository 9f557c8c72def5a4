"""The registry of its one strategy."""

from oracle_side import OracleStrategy

from parity.twins.spec.strategies import StrategyRegistry

STRATEGIES = StrategyRegistry("numpy", OracleStrategy.entry)
