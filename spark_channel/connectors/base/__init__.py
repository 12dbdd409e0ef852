"""What every connector uses: the contract, the registry, claims, health, and types."""
