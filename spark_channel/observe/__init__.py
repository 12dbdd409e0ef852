"""The page for a browser that shows running jobs and takes commands for them."""
