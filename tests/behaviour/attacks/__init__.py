"""Attacks as tests: small servers on the loopback that are not who they should be, with harmless input."""
