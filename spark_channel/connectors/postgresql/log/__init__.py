"""Follows a PostgreSQL database by a replication slot."""
