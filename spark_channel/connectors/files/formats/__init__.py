"""One module per file format, behind `base.Format`."""
