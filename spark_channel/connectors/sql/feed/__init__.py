"""Changes of a database's tables: by a growing column, or by the server's log."""
