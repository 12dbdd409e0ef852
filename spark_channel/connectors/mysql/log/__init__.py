"""Follows a MySQL or MariaDB server by its binary log."""
