"""Watch jobs from outside of the program: metrics, a page for a browser, lineage events, and a call at a job's end."""
