"""The base of all connectors: the contract, the registry, claims, health, and types."""
