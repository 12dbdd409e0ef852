"""What writers of lakehouse tables share: data files that tasks write, and one conditional commit by the driver.

A table format says how its log is read and committed to (`table.Lake`); claims, staging, rewrites and types are here.
"""
