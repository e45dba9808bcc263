"""Large data sets; the generator is the benchmark's."""

from agentops.benchmark.fill import MIX, Filled, fill

__all__ = ["MIX", "Filled", "fill"]
