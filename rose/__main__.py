"""`python -m rose`: the `rose` command where its script is not on the path."""

from rose.cli.main import main

if __name__ == "__main__":
    main()
