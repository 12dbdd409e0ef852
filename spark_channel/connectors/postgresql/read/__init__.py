"""Reads a PostgreSQL database."""
