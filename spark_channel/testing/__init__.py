"""What tests of your own code may use: time that moves when told."""

from spark_channel.testing.clock import VirtualClock

__all__ = ["VirtualClock"]
