"""What tests of your own code may use: time that moves when told, and the connector contract as a test."""

from spark_channel.testing.clock import VirtualClock
from spark_channel.testing.readers import reader_conformance
from spark_channel.testing.writers import writer_conformance

__all__ = ["VirtualClock", "reader_conformance", "writer_conformance"]
