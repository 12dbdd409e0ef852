"""Databases: what they share (options, statements, JDBC's stride), and one package for each of them."""
