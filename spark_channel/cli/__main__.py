"""`python -m spark_channel.cli` is the command line."""

from spark_channel.cli import main

if __name__ == "__main__":
    main()
