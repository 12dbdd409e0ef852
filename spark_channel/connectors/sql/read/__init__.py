"""How a database is read: a table or a query, its splits, and the statements that read them."""
