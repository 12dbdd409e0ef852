"""Reads a MySQL or MariaDB server."""
