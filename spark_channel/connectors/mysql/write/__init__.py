"""Writes a MySQL or MariaDB server."""
