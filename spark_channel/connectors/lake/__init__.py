"""Shared by the writers of lakehouse tables: tasks write data files, the driver makes one conditional commit.

A table format says how its log is read and committed to (`table.Lake`); claims, staging, rewrites and types are here.
"""
