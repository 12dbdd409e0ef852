"""`python -m spark_channel.service`: started by `ensure_service`, never by a user."""

from spark_channel.service.detached import main

if __name__ == "__main__":
    main()
