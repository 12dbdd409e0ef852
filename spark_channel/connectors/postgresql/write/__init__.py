"""Writes a PostgreSQL database."""
