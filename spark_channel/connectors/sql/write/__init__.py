"""How a database is written: the plan of a write, its claim, the attempts of its tasks, and the merge."""
