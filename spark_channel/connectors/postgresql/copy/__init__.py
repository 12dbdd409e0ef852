"""PostgreSQL's COPY: the format of its rows, and how they are paced under a limit."""
