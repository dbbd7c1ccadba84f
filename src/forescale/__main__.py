"""`python -m forescale`."""

from forescale.cli import main

if __name__ == "__main__":
    main()
